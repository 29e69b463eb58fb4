"""The configuration: what each field may be, and that every mistake is answered with field, value and way out."""

import re
from pathlib import Path

import pytest
import yaml

from packing_udfs import config, config_file
from packing_udfs.config import Config, ConfigError
from packing_udfs.knapsack import ALGORITHMS
from packing_udfs.storage import folders

ROOT = Path(__file__).parents[2]
SMALLEST = """
sources:
  - repo: user/one
  - {repo: user/two, config: charts, split: test}
processor: {path: owner/model}
output: {repo: user/packed}
"""
SECTIONS = "sources, processor, images, pack, shards, quality, output"


@pytest.fixture
def load(tmp_path):
    """Load a configuration from text (bytes for what is no text), with overrides."""

    def load(text: str | bytes, *overrides: str) -> Config:
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return config_file.load(path, overrides)

    return load


def test_smallest(load):
    job = load(SMALLEST)
    assert [source.name for source in job.sources] == ["user/one/train", "user/two/charts/test"]
    assert (job.pack.seq_len, job.pack.algorithm, job.shards.shard_bytes) == (4096, "balanced", 268435456)
    assert (job.output.split, job.output.mode, job.quality.max_quarantine_fraction) == ("train", "overwrite", 0.05)
    assert job.pack.max_vision_cost is None
    assert job.shards.num_shards is None
    assert (job.images.verify, job.images.max_side) == ("header", None)


def test_folders(load):
    job = load(SMALLEST, "sources.0={repo: dbfs:/Volumes/c/s/v/in/}", "output.repo=s3://bucket/packed/")
    assert (job.sources[0].repo, job.output.repo) == ("/Volumes/c/s/v/in", "s3://bucket/packed")
    assert load(SMALLEST, "sources.0={repo: /data/x}").sources[0].name == "/data/x"
    assert [folders.is_folder(repo) for repo in ("/data", "s3://b/x", "user/x")] == [True, True, False]


@pytest.mark.parametrize("output", ["/data/x", "/data/x/packed", "/data", "/data/y/../x"])
def test_output_in_a_source_folder(load, output):
    with pytest.raises(ConfigError, match=r"output\.repo: /data\S* is also a source"):
        load(SMALLEST, "sources.0={repo: /data/x}", f"output.repo={output}")
    assert load(SMALLEST, "sources.0={repo: /data/x}", "output.repo=/data/x-packed").output


def test_output_in_a_source_folder_behind_a_link(load, tmp_path):
    (tmp_path / "data" / "x").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"output\.repo: \S+/link/x/packed is also a source"):
        load(SMALLEST, f"sources.0={{repo: {tmp_path}/data/x}}", f"output.repo={tmp_path}/link/x/packed")


def test_frozen(load):
    with pytest.raises(ValueError, match="frozen"):
        load(SMALLEST).pack.seq_len = 1


def test_json_form_is_read_back(load):
    """What a manifest records is a configuration again."""
    job = load(SMALLEST, "sources.0.min_ratings.relevance=3", "pack.max_vision_cost=7")
    assert config.parse(job.model_dump(mode="json")) == job


@pytest.mark.parametrize("path", sorted(ROOT.glob("conf/jobs/*.yaml")), ids=lambda path: path.name)
def test_configurations_in_the_repository(path):
    assert config_file.load(path).sources


def test_overrides(load):
    job = load(
        SMALLEST + "pack: {max_vision_cost: 5}\n",
        "sources.0.split=test",
        "sources.1={repo: user/three}",
        "sources.0.min_ratings.relevance=4",
        "pack.max_vision_cost=null",
        "pack.seq_len=1",
        "pack.seq_len=8192",
        "shards.validation_fraction=0.25",
        "processor.revision=a=b",
        "output.private=true",
    )
    assert [(source.repo, source.name) for source in job.sources] == [
        ("user/one", "user/one/test"),
        ("user/three", "user/three/train"),
    ]
    assert job.sources[0].min_ratings.relevance == 4
    assert job.pack.max_vision_cost is None
    assert job.pack.seq_len == 8192  # the later of two
    assert job.shards.validation_fraction == 0.25
    assert job.processor.revision == "a=b"
    assert job.output.private is True


def quoted(names) -> str:
    *first, last = (f"'{name}'" for name in names)
    return f"{', '.join(first)} or {last}"


def at_least(least: int, value) -> str:
    return f"{value} is refused: Input should be greater than or equal to {least}"


def at_most(most, value) -> str:
    return f"{value} is refused: Input should be less than or equal to {most}"


def above(least, value) -> str:
    return f"{value} is refused: Input should be greater than {least}"


def below(limit: int, value) -> str:
    return f"{value} is refused: Input should be less than {limit}"


KEYS_OF_PACK = (
    "seq_len, max_vision_cost, max_images_per_pack, max_images_per_sample, over_length, train_on, algorithm, "
    "attention_weight"
)
KEYS_OF_SOURCE = (
    "repo, config, split, revision, name, adapter, columns, ignore, keep, limit, weight, min_ratings, prompt, video"
)
ADAPTERS = ("auto", "finevision", "messages", "vqa", "captions", "text")
KEYS_OF_RATINGS = "relevance, image_correspondence, visual_dependency, formatting"
NO_PLACE = "is neither of the form owner/name nor the absolute path or URL of a folder"
NO_SCHEME = "is refused: a repository is owner/name; a folder is /absolute/path or s3://…"
NO_PART = "is refused for a folder, which has none; name the folder itself"
NO_SPLIT = "may have letters, digits and '_' only, and '.' between them"

# Override → what is said of its field.
BAD_VALUES = {
    # unknown keys, each with those that are known there
    "pack.seq_length=1": f"unknown key; did you mean seq_len? Allowed here are {KEYS_OF_PACK}",
    "packing=1": f"unknown key; did you mean pack? Allowed here are {SECTIONS}",
    "sources.0.token=x": f"unknown key; allowed here are {KEYS_OF_SOURCE}",
    "sources.1.min_ratings.taste=1": f"unknown key; allowed here are {KEYS_OF_RATINGS}",
    "pack.over_length=cut": "'cut' is refused: Input should be 'quarantine', 'truncate_turns' or 'split_turns'",
    "pack.train_on=user": "'user' is refused: Input should be 'assistant' or 'all'",
    "pack.attention_weight=-1": "-1 is refused: Input should be greater than or equal to 0",
    # types
    "pack.seq_len=many": "'many' is refused: Input should be a valid integer",
    "pack.seq_len='4096'": "'4096' is refused: Input should be a valid integer",
    "pack.seq_len=true": "True is refused: Input should be a valid integer",
    "pack.seq_len=4096.5": "4096.5 is refused: Input should be a valid integer",
    "pack.seq_len=": "None is refused: Input should be a valid integer",
    "shards.validation_fraction=true": "True is refused: Input should be a valid number",
    "output.private=perhaps": "'perhaps' is refused: Input should be a valid boolean",
    "sources.0.revision=1.0": "1.0 is refused: must be text; in YAML, numbers and dates need quotes for that",
    "sources.0=user/one": f"'user/one' is refused: must have the keys {KEYS_OF_SOURCE}",
    "quality=null": "None is refused: must have the keys max_quarantine_fraction",
    "sources=user/one": "'user/one' is refused: must be a list",
    "sources=[]": "[] is refused: must have at least one item",
    # bounds and choices
    "pack.seq_len=0": at_least(1, 0),
    "pack.seq_len=2147483648": below(2147483648, 2147483648),
    "pack.max_vision_cost=0": at_least(1, 0),
    "pack.max_images_per_pack=0": at_least(1, 0),
    "pack.max_images_per_sample=-1": at_least(1, -1),
    "pack.algorithm=fastest": f"'fastest' is refused: Input should be {quoted(ALGORITHMS)}",
    "sources.0.adapter=llava": f"'llava' is refused: Input should be {quoted(ADAPTERS)}",
    "sources.0.columns=txt": "'txt' is refused: Input should be a valid dictionary",
    "sources.0.ignore=txt": "'txt' is refused: Input should be a valid list",
    "sources.0.keep=txt": "'txt' is refused: Input should be a valid list",
    "sources.0.limit=0": at_least(1, 0),
    "sources.0.weight=0": above(0, 0),
    "sources.0.weight=101": at_most(100, 101),
    "sources.0.prompt=''": "'' is refused: String should have at least 1 character",
    "sources.0.video.num_frames=0": at_least(1, 0),
    "sources.0.video.num_frames=1025": at_most(1024, 1025),
    "sources.0.video.fps=0": above(0, 0),
    "sources.0.video.max_frames=0": at_least(1, 0),
    "sources.0.video.longest_edge=15": at_least(16, 15),
    "sources.0.video.format=gif": "'gif' is refused: Input should be 'jpeg' or 'png'",
    "sources.0.video={num_frames: 4, fps: 1}": "num_frames and fps are both given; choose one",
    "sources.0.min_ratings.relevance=6": at_most(5, 6),
    "sources.0.min_ratings.image_correspondence=0": at_least(1, 0),
    "sources.0.min_ratings.visual_dependency=0": at_least(1, 0),
    "sources.0.min_ratings.formatting=6": at_most(5, 6),
    "images.verify=body": "'body' is refused: Input should be 'header' or 'decode'",
    "images.max_side=15": at_least(16, 15),
    "images.max_side=65501": at_most(65500, 65501),
    "shards.shard_bytes=1073741825": at_most(1073741824, 1073741825),
    "shards.num_shards=131072": at_most(65536, 131072),
    "shards.shard_bytes=1023": at_least(1024, 1023),
    "shards.num_shards=0": at_least(1, 0),
    "shards.num_shards=12": "12 is not a power of two",
    "shards.num_packs_per_row_group=0": at_least(1, 0),
    "shards.validation_fraction=1": below(1, 1),
    "shards.validation_fraction=-0.1": at_least(0, -0.1),
    "shards.duplicates=merge": "'merge' is refused: Input should be 'drop' or 'keep'",
    "shards.seed=-1": at_least(0, -1),
    "shards.seed=9223372036854775808": below(9223372036854775808, 9223372036854775808),
    "quality.max_quarantine_fraction=.nan": "nan is refused: Input should be a finite number",
    "quality.max_quarantine_fraction=1.01": at_most(1, 1.01),
    "output.mode=replace": "'replace' is refused: Input should be 'overwrite' or 'append'",
    "output.reuse=never": "'never' is refused: Input should be 'sticky' or 'off'",
    "output.max_drift=-0.1": at_least(0, -0.1),
    "output.retry_seconds=.inf": "inf is refused: Input should be a finite number",
    "output.retry_seconds=-1": at_least(0, -1),
    "output.checkpoint_seconds=-1": at_least(0, -1),
    "output.max_operations_per_commit=1": at_least(2, 1),
    "processor.trust_remote_code=true": "True is refused: Input should be False",
    "processor.path=''": "'' is refused: String should have at least 1 character",
    # names
    "output.repo=./packed": f"'./packed' {NO_PLACE}",
    "output.repo=/": "'/' is no folder: it must have a name, without any of * ? [ ] { }",
    "output.repo='s3://b/*'": "'s3://b/*' is no folder: it must have a name, without any of * ? [ ] { }",
    "output.repo=dbfs:/packed": f"'dbfs:/packed' {NO_SCHEME}",
    "sources.0.repo='hf://datasets/user/x'": f"'hf://datasets/user/x' {NO_SCHEME}",
    "sources.0={repo: /Volumes/x, split: test}": f"split: 'test' {NO_PART}",
    "sources.0={repo: 's3://b/x', config: c}": f"config: 'c' {NO_PART}",
    "output.repo=packed": f"'packed' {NO_PLACE}",
    "output.repo=a/b/c": f"'a/b/c' {NO_PLACE}",
    "sources.0.repo=user/a--b": "Cannot have -- or .. in repo_id: 'user/a--b'.",
    "output.split=a/b": f"'a/b' {NO_SPLIT}",
    "output.split=a-b": f"'a-b' {NO_SPLIT}",
    "output.split=..": f"'..' {NO_SPLIT}",
    "output.repo=user/two": "user/two is also a source; write to another repository",
    "output.repo=User/Two": "User/Two is also a source; write to another repository",
}
# Override → the whole message.
BAD_OVERRIDES = {f"{override}": f"{override.partition('=')[0]}: {said}" for override, said in BAD_VALUES.items()} | {
    "spark.executor.memory=4g": f"spark: unknown key; allowed here are {SECTIONS}",
    "pack.seq_len.tokens=3": "pack.seq_len: {'tokens': 3} is refused: Input should be a valid integer",
    "sources.1={repo: user/one}": "sources: the name 'user/one/train' is used twice; give each source its own `name`",
    "pack.seq_len": "override 'pack.seq_len': must be key=value, as in pack.seq_len=8192",
    "=8192": "override '=8192': must be key=value, as in pack.seq_len=8192",
    "pack.=8192": "override 'pack.=8192': must be key=value, as in pack.seq_len=8192",
    "pack.seq_len=[": "override 'pack.seq_len=[': the value is not YAML",
    "sources.2.split=test": "override sources.2.split: '2' is no index into a list of 2",
    "sources.-1.split=test": "override sources.-1.split: '-1' is no index into a list of 2",
    "sources.first.split=test": "override sources.first.split: 'first' is no index into a list of 2",
    "sources.2={}": "override sources.2: '2' is no index into a list of 2",
    "processor.path.name=x": "override 'processor.path.name=x': path is a value, not a group of fields",
}


@pytest.mark.parametrize("override", BAD_OVERRIDES)
def test_bad_override(load, override):
    with pytest.raises(ConfigError) as refused:
        load(SMALLEST, override)
    assert str(refused.value) == BAD_OVERRIDES[override]


def test_every_field_has_a_bad_value_above():
    """But for those that may be any text."""
    tried = {re.sub(r"\.\d+", ".N", override.partition("=")[0]) for override in BAD_VALUES}
    free = {"sources.N.config", "sources.N.split", "sources.N.name", "processor.revision"}
    assert set(field_names(Config)) - free - tried == set()


def test_validation_split_is_taken(load):
    with pytest.raises(ConfigError, match=r"^output\.split: 'validation' is where shards\.validation_fraction goes"):
        load(SMALLEST, "output.split=validation", "shards.validation_fraction=0.1")
    assert load(SMALLEST, "output.split=validation").output.split == "validation"


def test_a_secret_is_refused_and_not_repeated(load):
    with pytest.raises(ConfigError) as refused:
        load(SMALLEST + "token: hf_secret\n")
    assert str(refused.value) == f"token: unknown key; allowed here are {SECTIONS}"


def test_all_mistakes_are_named_at_once(load):
    with pytest.raises(ConfigError) as refused:
        load("sources: [{repo: user/one, name: 5}, {}]\npack: {seq_len: 0}\n")
    assert str(refused.value).splitlines() == [
        "sources.0.name: 5 is refused: must be text; in YAML, numbers and dates need quotes for that",
        "sources.1.repo: is required",
        "processor: is required",
        "pack.seq_len: 0 is refused: Input should be greater than or equal to 1",
        "output: is required",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"must be a mapping with the keys {SECTIONS}"),
        ("- a\n- b\n", f"must be a mapping with the keys {SECTIONS}"),
        ("just text", f"must be a mapping with the keys {SECTIONS}"),
        ("sources: [", "is not YAML: while parsing a flow node"),
        ("a: \0", "is not YAML: unacceptable character"),
        ("? [a]\n: b\n", "is not YAML: while constructing a mapping"),
        ("a: !!python/object:os.system {}\n", "is not YAML: could not determine a constructor"),
        (SMALLEST + "output: {repo: user/other}\n", "is not YAML: the key output stands twice"),
        (b"\xff\xfe\0", "cannot be read: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_what_is_no_configuration(load, text, message):
    with pytest.raises(ConfigError) as refused:
        load(text)
    assert re.match(r"configuration \S+job\.yaml: ", str(refused.value))
    assert message in str(refused.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: .*No such file"):
        config_file.load(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        config_file.load(tmp_path)


def field_names(model, prefix: str = ""):
    """Dotted names of the leaves of a tree of models, by pydantic's JSON schema."""
    schema = model.model_json_schema()

    def walk(node: dict, prefix: str):
        for name, value in node["properties"].items():
            inner = value.get("items", value)
            dotted = f"{prefix}.{name}".lstrip(".") + (".N" if "items" in value and "$ref" in inner else "")
            if "$ref" in inner:
                yield from walk(schema["$defs"][inner["$ref"].rpartition("/")[2]], dotted)
            else:
                yield dotted

    return list(walk(schema, prefix))


def test_describe_names_every_field_once():
    entries = dict(re.match(r"  (\S+) \(.*\)\n      (.+)$", text).groups() for text in config_file.describe())
    assert sorted(entries) == sorted(field_names(Config))
    assert len(entries) == len(list(config_file.describe()))
    assert all(len(text) > 10 and text != "None" for text in entries.values())
    assert "sources.N.min_ratings.relevance" in entries


def test_describe_tells_defaults():
    text = "\n".join(config_file.describe())
    assert "pack.seq_len (default 4096)\n" in text
    assert "output.repo (required)\n" in text


def test_yaml_anchors_may_be_used(load):
    """A merge key is no key that stands twice."""
    text = SMALLEST.replace("{path: owner/model}", "&p {path: owner/model}")
    assert yaml.safe_load(text)["processor"] == {"path": "owner/model"}
    assert load(text.replace("&p {path", "{<<: {path: x}, path")).processor.path == "owner/model"
