"""The configuration of a packing job: one tree of frozen models, which `packing_udfs.config_file` reads from YAML.

Each field is documented where it is defined. Unknown keys are errors. Spark's properties are not here, because they
have another owner: `conf/spark/*.conf`. Secrets are not here either. The Hub's token comes only from the environment
(HF_TOKEN).
"""

import os
import posixpath
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from packing_udfs.config_faults import message
from packing_udfs.knapsack import ALGORITHMS
from packing_udfs.storage.folders import is_folder

__all__ = ["GIB", "INT32_LIMIT", "Config", "ConfigError", "Images", "OverLength", "Source", "Video", "parse"]

GIB = 1 << 30
INT32_LIMIT = 1 << 31  # counts of a pack are stored as int32
_MAX_NUM_SHARDS = 1 << 16  # the largest power of two below the Hub's limit of 100,000 files in a repository


class ConfigError(ValueError):
    """A configuration that cannot be used. The message names the field, the value and what is allowed."""


def _is_place(value: str) -> str:
    """A repository, or a folder in its one spelling: /Volumes/x for dbfs:/Volumes/x/."""
    from huggingface_hub.utils import validate_repo_id

    if value.startswith("dbfs:/Volumes/"):
        value = value.removeprefix("dbfs:")
    if value.startswith(("dbfs:", "hf:", "file:")):
        raise ValueError(f"{value!r} is refused: a repository is owner/name; a folder is /absolute/path or s3://…")
    if not is_folder(value):
        if value.count("/") != 1 or value.startswith("."):
            raise ValueError(f"{value!r} is neither of the form owner/name nor the absolute path or URL of a folder")
        validate_repo_id(value)
        return value
    scheme, separator, path = value.rpartition("://")
    folder = f"{scheme}{separator}{posixpath.normpath(path)}"
    if not path.strip("/") or any(character in folder for character in "*?[]{}"):
        raise ValueError(f"{value!r} is no folder: it must have a name, without any of * ? [ ] {{ }}")
    return folder


def _is_split(value: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)*", value):  # what `datasets` takes for a split
        raise ValueError(f"{value!r} may have letters, digits and '_' only, and '.' between them")
    return value


def _is_power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError(f"{value} is not a power of two")
    return value


def _unread_off(value: Any) -> Any:
    return "off" if value is False else value  # YAML reads the word off as false


Place = Annotated[str, AfterValidator(_is_place)]
SplitName = Annotated[str, AfterValidator(_is_split)]
NumShards = Annotated[int, Field(ge=1, le=_MAX_NUM_SHARDS), AfterValidator(_is_power_of_two)]
OverLength = Literal["quarantine", "truncate_turns", "split_turns"]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class MinRatings(_Model):
    """FineVision's four ratings of a turn (1–5). A turn is kept when each rating present is at least its minimum."""

    relevance: int = Field(default=1, ge=1, le=5)
    """Does the answer answer the question?"""
    image_correspondence: int = Field(default=1, ge=1, le=5)
    """Does the answer fit the image?"""
    visual_dependency: int = Field(default=1, ge=1, le=5)
    """Is the image needed to answer?"""
    formatting: int = Field(default=1, ge=1, le=5)
    """Is the text well formed?"""


class Video(_Model):
    """How a video becomes images."""

    num_frames: int | None = Field(default=None, ge=1, le=1024)
    """Frames to take at equal distances. A shorter video gives all it has. 8 when neither this nor fps is set."""
    fps: float | None = Field(default=None, gt=0)
    """Frames to take per second, instead of num_frames."""
    max_frames: int = Field(default=32, ge=1, le=1024)
    """Maximum number of frames with fps. A longer video gives this many, at equal distances."""
    longest_edge: int | None = Field(default=None, ge=16)
    """Maximum pixels of a frame's longer side. Larger frames are scaled down. Frames stay as recorded when not set."""
    format: Literal["jpeg", "png"] = "jpeg"
    """How frames are stored: JPEG of quality 90, or lossless PNG."""

    @model_validator(mode="after")
    def _check_rate(self) -> "Video":
        if self.num_frames is not None and self.fps is not None:
            raise ValueError("num_frames and fps are both given; choose one")
        return self


class Source(_Model):
    """One dataset to read rows from."""

    repo: Place
    """Dataset repository owner/name, or a folder of Parquet files: /Volumes/…, another absolute path or a URL."""
    config: str | None = None
    """Configuration (subset) of the repository. Its default when not set."""
    split: str = "train"
    """Split to read."""
    revision: str = "main"
    """Branch, tag or commit. The job pins it to a commit when it starts."""
    name: str = ""
    """Name in sample_sources and in the ledger. Made of repo, config and split when not set."""
    adapter: Literal["auto", "finevision", "messages", "vqa", "captions", "text"] = "auto"
    """How rows become samples. auto chooses by the columns."""
    columns: dict[str, str] = {}
    """The adapter's names of columns and the source's own, as in {caption: txt, messages: json.turns}."""
    ignore: list[str] = []
    """Columns, and fields of turns as messages.name, to leave out without a word."""
    keep: list[str] = []
    """Columns, and fields as json.url, that go with each sample, as JSON in sample_kept: licences, ids, addresses."""
    limit: int | None = Field(default=None, ge=1)
    """About how many rows to use, chosen by hash. All rows when not set."""
    weight: float = Field(default=1.0, gt=0, le=100)
    """Uses of a row: 0.25 is a quarter of the rows, chosen by hash; 2.5 is all rows twice, and half once more."""
    min_ratings: MinRatings = MinRatings()
    """Minimum ratings of a turn, for rows that have ratings."""
    prompt: str = Field(default="Describe the image.", min_length=1)
    """What the user says before a caption."""
    video: Video = Video()
    """How videos become images, in sources that have them."""

    @model_validator(mode="before")
    @classmethod
    def _fill_name(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("name"):
            return values
        parts = [values.get("repo"), values.get("config"), values.get("split", "train")]
        if is_folder(str(values.get("repo"))):
            return {**values, "name": values["repo"]}
        return {**values, "name": "/".join(str(part) for part in parts if part)}

    @model_validator(mode="after")
    def _check_folder(self) -> "Source":
        for name, default in (("config", None), ("split", "train"), ("revision", "main")):
            value = getattr(self, name)
            if is_folder(self.repo) and value != default:
                raise ValueError(f"{name}: {value!r} is refused for a folder, which has none; name the folder itself")
        return self


class Processor(_Model):
    """The model's processor: tokenizer, image processor and chat template."""

    path: str = Field(min_length=1)
    """Local directory, or a Hub repository owner/name."""
    revision: str = "main"
    """Branch, tag or commit of a Hub repository. The job pins it to a commit when it starts."""
    trust_remote_code: Literal[False] = False
    """Always false: code from a repository is never run."""


class Images(_Model):
    """What is done to images besides reading their headers."""

    verify: Literal["header", "decode"] = "header"
    """decode: decode each image (4–8 ms a megapixel), and quarantine a sample with an image that does not decode."""
    max_side: int | None = Field(default=None, ge=16, le=65_500)  # JPEG has no more
    """Maximum pixels of the longer side. A larger image is scaled down and re-encoded. When not set, bytes stay."""


class Pack(_Model):
    """What fits in a pack."""

    seq_len: int = Field(default=4096, ge=1, lt=INT32_LIMIT)
    """Maximum number of tokens in a pack."""
    max_vision_cost: int | None = Field(default=None, ge=1)
    """Maximum vision cost of a pack (tiles or patches, by the processor)."""
    max_images_per_pack: int | None = Field(default=None, ge=1)
    """Maximum number of images in a pack."""
    max_images_per_sample: int | None = Field(default=None, ge=1)
    """A sample with more images is quarantined."""
    over_length: OverLength = "quarantine"
    """What to do with a sample that fits no pack: leave it out, end it after the last turn that fits, or split it."""
    train_on: Literal["assistant", "all"] = "assistant"
    """Which tokens are labels: what the assistant says, or all text."""
    algorithm: Literal[tuple(ALGORITHMS)] = "balanced"  # pyright: ignore[reportInvalidTypeForm]  # named once
    """How samples are chosen for packs."""
    attention_weight: float = Field(default=0.0, ge=0.0)
    """Weight of attention work (the sum of squared lengths) beside vision cost when packs are balanced."""


class Shards(_Model):
    """How samples are shuffled into shards, and shards into files."""

    shard_bytes: int = Field(default=256 << 20, ge=1 << 10, le=GIB)
    """About the source bytes in a shard. Memory: 3–4 times this. One above twice this, or 1 GiB, is several files."""
    num_shards: NumShards | None = None
    """Number of shards, a power of two. When not set: as many as an overwritten split has, else by shard_bytes."""
    num_packs_per_row_group: int = Field(default=32, ge=1)
    """Packs in a row group, the reader's unit of I/O. `jobs.plan` says when larger row groups would be better."""
    validation_fraction: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of samples, chosen by hash, that goes to the split `validation`."""
    duplicates: Literal["drop", "keep"] = "drop"
    """What to do with a sample whose images and messages equal another's."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the shuffle."""

    @property
    def max_file_bytes(self) -> int:
        """Maximum bytes of images and tokens in a file. A single sample may have more."""
        return min(2 * self.shard_bytes, GIB)


class Output(_Model):
    """Where packs go."""

    repo: Place
    """Dataset repository owner/name, or a folder as in sources. Created when it does not exist."""
    split: SplitName = "train"
    """Split to write."""
    mode: Literal["overwrite", "append"] = "overwrite"
    """overwrite replaces this split and no other. append adds files to it."""
    reuse: Annotated[Literal["sticky", "off"], BeforeValidator(_unread_off)] = "sticky"
    """sticky: when a split is packed again, keep its packs where their samples are still there. off: pack afresh."""
    max_drift: float = Field(default=0.003, ge=0.0, le=1.0)
    """Maximum share of additional packs for reuse. A shard that would need more is packed afresh."""
    private: bool = False
    """Whether a repository that the job creates is private."""
    max_operations_per_commit: int = Field(default=100, ge=2)
    """Maximum number of files in a commit. With more files, commits go to a pull request that is merged at the end."""
    checkpoint_seconds: float = Field(default=600, ge=0)
    """How often to save finished shards in a pull request, from which a failed run can resume. 0 saves each at once."""
    retry_seconds: float = Field(default=300, ge=0)
    """How long to retry an upload or a commit, with backoff, while the Hub is busy or unavailable."""


class Quality(_Model):
    """When a run is not worth publishing."""

    max_quarantine_fraction: float = Field(default=0.05, ge=0.0, le=1.0)
    """Maximum share of rows in quarantine. Above it, the run fails and the repository stays as it was."""


class Config(_Model):
    """A packing job."""

    sources: tuple[Source, ...] = Field(min_length=1, strict=False)  # YAML has lists
    """Datasets to read, concatenated and shuffled into one."""
    processor: Processor
    images: Images = Images()
    pack: Pack = Pack()
    shards: Shards = Shards()
    quality: Quality = Quality()
    output: Output

    @model_validator(mode="after")
    def _check_tree(self) -> "Config":
        names = [source.name for source in self.sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"sources: the name {twice[0]!r} is used twice; give each source its own `name`")
        for source in self.sources:
            if _overlap(self.output.repo, source.repo):
                raise ValueError(f"output.repo: {self.output.repo} is also a source; write to another repository")
        if self.output.split == "validation" and self.shards.validation_fraction:
            raise ValueError("output.split: 'validation' is where shards.validation_fraction goes; name another split")
        return self


def _overlap(one: str, other: str) -> bool:
    """Whether two places are equal, or one folder is inside the other, links followed. The Hub ignores case."""
    if is_folder(one) or is_folder(other):
        one, other = (os.path.realpath(place) if place.startswith("/") else place for place in (one, other))
        return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")
    return one.lower() == other.lower()


def parse(tree: dict) -> Config:
    """A Config from plain values. Raises ConfigError with one line for each fault."""
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        faults = error.errors()
        inside = {fault["loc"][:i] for fault in faults for i in range(len(fault["loc"]))}
        lines = [message(fault, Config) for fault in faults if fault["loc"] not in inside]
        raise ConfigError("\n".join(lines)) from None
