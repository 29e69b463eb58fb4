"""The configuration of a packing job: one tree of frozen models, which `packing_udfs.config_file` reads from YAML.

Every field is documented where it is defined. Unknown keys are errors.
Spark's properties are not here: they have another owner and live in `conf/spark/*.conf`. Secrets are not here
either: the Hub's token comes from the environment (HF_TOKEN) and nowhere else.
"""

import os
import posixpath
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from packing_udfs.config_faults import message
from packing_udfs.knapsack import ALGORITHMS
from packing_udfs.storage.folders import is_folder, is_repository

GIB = 1 << 30
INT32_LIMIT = 1 << 31  # counts of a pack are stored as int32
MOST_SHARDS = 1 << 16  # the largest power of two below the Hub's limit of 100,000 files in a repository


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the field, the value and what is allowed."""


def _is_repo_id(value: str) -> str:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    if not is_repository(value):
        raise ValueError(f"{value!r} is neither of the form owner/name nor the absolute path or URL of a folder")
    try:
        validate_repo_id(value)
    except HFValidationError as error:
        raise ValueError(str(error)) from None
    return value


def _is_place(value: str) -> str:
    """A repository, or a folder as the one spelling of it: /Volumes/x for dbfs:/Volumes/x/."""
    if value.startswith("dbfs:/Volumes/"):
        value = value.removeprefix("dbfs:")
    if value.startswith(("dbfs:", "hf:", "file:")):
        raise ValueError(f"{value!r} is refused: a repository is owner/name; a folder is /absolute/path or s3://…")
    if not is_folder(value):
        return _is_repo_id(value)
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


Place = Annotated[str, AfterValidator(_is_place)]
SplitName = Annotated[str, AfterValidator(_is_split)]
NumShards = Annotated[int, Field(ge=1, le=MOST_SHARDS), AfterValidator(_is_power_of_two)]


class _Model(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class MinRatings(_Model):
    """FineVision's four ratings of a turn (1–5); a turn is kept when each rating present is at least its minimum."""

    relevance: int = Field(1, ge=1, le=5)
    """Does the answer answer the question?"""
    image_correspondence: int = Field(1, ge=1, le=5)
    """Does the answer fit the image?"""
    visual_dependency: int = Field(1, ge=1, le=5)
    """Is the image needed to answer?"""
    formatting: int = Field(1, ge=1, le=5)
    """Is the text well formed?"""


class Video(_Model):
    """How a video becomes images."""

    num_frames: int | None = Field(None, ge=1, le=1024)
    """Frames at equal distances over the whole video; 8 when fps is absent too. A shorter video gives all it has."""
    fps: float | None = Field(None, gt=0)
    """Frames a second, instead of num_frames."""
    max_frames: int = Field(32, ge=1, le=1024)
    """Frames at most with fps; a longer video gives so many at equal distances."""
    longest_edge: int | None = Field(None, ge=16)
    """Pixels of a frame's longer side at most; larger frames are scaled down. As recorded when absent."""
    format: Literal["jpeg", "png"] = "jpeg"
    """How frames are stored: JPEG of quality 90, or PNG without loss."""

    @model_validator(mode="after")
    def _check_rate(self) -> "Video":
        if self.num_frames is not None and self.fps is not None:
            raise ValueError("num_frames and fps are both given; choose one")
        return self


class Source(_Model):
    """One dataset to read rows from."""

    repo: Place
    """Dataset repository, owner/name; or a folder of Parquet files: /Volumes/…, another absolute path or a URL."""
    config: str | None = None
    """Configuration (subset) of the repository; its default when absent."""
    split: str = "train"
    """Split to read."""
    revision: str = "main"
    """Branch, tag or commit; pinned to a commit when the job starts."""
    name: str = ""
    """Name in sample_sources and in the ledger; repo, config and split when absent."""
    adapter: Literal["auto", "finevision", "messages", "vqa", "captions", "text"] = "auto"
    """How rows become samples; auto recognises it by the columns."""
    columns: dict[str, str] = {}
    """Columns of the source by the names the adapter has for them, as in {caption: txt, messages: json.turns}."""
    limit: int | None = Field(None, ge=1)
    """About how many rows to use, chosen by hash; all when absent."""
    weight: float = Field(1.0, gt=0, le=100)
    """How often a row is used: 0.25 is a quarter of the rows, chosen by hash, 2.5 two copies and half a third."""
    min_ratings: MinRatings = MinRatings()
    """Minimum ratings of a turn, for rows that carry ratings."""
    prompt: str = Field("Describe the image.", min_length=1)
    """What the user says before a caption."""
    video: Video = Video()
    """How videos become images, in sources that have them."""

    @model_validator(mode="before")
    @classmethod
    def _fill_name(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("name"):
            if is_folder(str(values.get("repo"))):
                return {**values, "name": values["repo"]}
            parts = [values.get("repo"), values.get("config"), values.get("split", "train")]
            values = {**values, "name": "/".join(str(part) for part in parts if part)}
        return values

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
    """Branch, tag or commit of a Hub repository; pinned to a commit when the job starts."""
    trust_remote_code: Literal[False] = False
    """Always false: code from a repository is never run."""


class Images(_Model):
    """What is done to images beyond reading their headers."""

    verify: Literal["header", "decode"] = "header"
    """decode: each image is decoded (4–8 ms a megapixel), and a sample with one that does not decode is quarantined."""
    max_side: int | None = Field(None, ge=16, le=65_500)  # JPEG has no more
    """Pixels of the longer side at most; a larger image is scaled down and re-encoded. Bytes untouched when absent."""


class Pack(_Model):
    """What fits in a pack."""

    seq_len: int = Field(4096, ge=1, lt=INT32_LIMIT)
    """Tokens in a pack at most."""
    max_vision_cost: int | None = Field(None, ge=1)
    """Vision cost (tiles or patches, by the processor) in a pack at most."""
    max_images_per_pack: int | None = Field(None, ge=1)
    """Images in a pack at most."""
    max_images_per_sample: int | None = Field(None, ge=1)
    """A sample with more images is quarantined."""
    over_length: Literal["quarantine", "truncate_turns", "split_turns"] = "quarantine"
    """A sample over a budget: left out, ended after the last turn that fits, or made several samples of whole turns."""
    train_on: Literal["assistant", "all"] = "assistant"
    """Which tokens are labels: what the assistant says, or all text."""
    algorithm: Literal[tuple(ALGORITHMS)] = "balanced"  # type: ignore[valid-type]
    """How samples are chosen for packs."""
    attention_weight: float = Field(0.0, ge=0.0)
    """How much attention work (the sum of squared lengths) counts beside vision cost when packs are made alike."""


class Shards(_Model):
    """How samples are shuffled into shards, and shards into files."""

    shard_bytes: int = Field(256 << 20, ge=1 << 10, le=GIB)
    """Source bytes in a shard, about; held in memory 3–4 times. One of over twice that, or 1 GiB, is several files."""
    num_shards: NumShards | None = None
    """Number of shards, a power of two; from shard_bytes when absent, or as before where a split is overwritten."""
    num_packs_per_row_group: int = Field(32, ge=1)
    """R: packs in a row group, the reader's unit of I/O; `jobs.plan` says when larger ones would do better."""
    validation_fraction: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of samples, chosen by hash, that goes to the split `validation`."""
    duplicates: Literal["drop", "keep"] = "drop"
    """What to do with a sample whose images and messages equal another's."""
    seed: int = Field(0, ge=0, lt=1 << 63)
    """Seed of the shuffle."""

    @property
    def max_file_bytes(self) -> int:
        """Bytes of images and tokens in a file at most; a single sample may have more."""
        return min(2 * self.shard_bytes, GIB)


class Output(_Model):
    """Where packs go."""

    repo: Place
    """Dataset repository, owner/name; or a folder, as in sources. Made when it does not exist."""
    split: SplitName = "train"
    """Split to write."""
    mode: Literal["overwrite", "append"] = "overwrite"
    """overwrite replaces the split and nothing else; append adds files to it."""
    reuse: Literal["sticky", "off"] = "sticky"
    """sticky: a split packed again as before keeps its packs where their samples still are; off packs it afresh."""
    max_drift: float = Field(0.003, ge=0.0, le=1.0)
    """Share of packs that reuse may cost; a shard that would take more is packed afresh."""
    private: bool = False
    """Whether a repository that has to be made is private."""
    max_operations_per_commit: int = Field(100, ge=2)
    """Files in a commit at most; above it, commits go to a pull request that is merged last."""
    checkpoint_seconds: float = Field(600, ge=0)
    """How often finished shards are kept in a pull request, from which a run that died goes on; 0 is at once."""
    retry_seconds: float = Field(300, ge=0)
    """How long an upload or a commit is tried again, with backoff, while the Hub is busy or away."""

    @field_validator("reuse", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        """YAML takes the word off for false."""
        return "off" if value is False else value


class Quality(_Model):
    """When a run is not worth publishing."""

    max_quarantine_fraction: float = Field(0.05, ge=0.0, le=1.0)
    """Share of rows in quarantine above which the run fails and the repository stays as it was."""


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
    """Whether two places are one, or a folder and one in it, behind links too. The Hub compares names without case."""
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
