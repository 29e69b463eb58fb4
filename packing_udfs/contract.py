"""The contract: the one definition of the stored columns and files, and of how they are written.

A *pack* is one output row: several samples one after another, at most `seq_len` tokens, without padding.
`packing_udfs.collate` derives all else that a model needs (cu_seqlens, position_ids, segment_ids, masks), so a pack
cannot contradict itself. Spark's types, the `datasets` features and the Parquet options derive from `PACK_SCHEMA`.

Worked example, two samples of 3 and 2 tokens, the first with one image of 2 placeholders:

    input_ids          [IMG, IMG, 7,   8, 9]
    labels             [-100, -100, 7, -100, 9]     unshifted; the first token of a sample is never a target
    sample_lengths     [3, 2]                       sums to len(input_ids)
    sample_num_images  [1, 0]                       image 0 belongs to sample 0
    image_num_tokens   [2]
    sample_files       ["a.parquet", "b.parquet"]   where the samples come from: a file of the source …
    sample_rows        [7, 0]                       … and the row in it, from 0

Every field is nullable at every level, because `datasets` recognises an `Image` only as a nullable
`struct<bytes: binary, path: string>`.
"""

import json
from collections.abc import Mapping
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "DATA_DIR",
    "IGNORE_INDEX",
    "IMAGE",
    "IMAGE_SIZE",
    "MANIFEST_JSON",
    "MANIFEST_PARQUET",
    "MANIFEST_SCHEMA",
    "PACK_COLUMNS",
    "PACK_SCHEMA",
    "QUARANTINE_DIR",
    "QUARANTINE_SCHEMA",
    "REASONS",
    "REPORT",
    "SAMPLE_SCHEMA",
    "VERSION",
    "Column",
    "ContractError",
    "Level",
    "features",
    "leaf_paths",
    "parquet_metadata",
    "schema_of",
    "writer_options",
]

VERSION = 2
IGNORE_INDEX = -100
REPORT = "report.json"
MANIFEST_JSON = "manifest/{split}.json"
MANIFEST_PARQUET = "manifest/{split}.parquet"
DATA_DIR = "data/{split}"
QUARANTINE_DIR = "quarantine/{split}"

# Recorded in each file under `content_defined_chunking`. Xet itself cuts stored bytes into chunks of about 64 KiB. A
# page adds only its header, which changes with any byte of the page, so pages are large. With a page for each pack,
# removing 1 % of the samples cost a quarter more (20 kB an image). Pages do end, because a writer holds one in memory.
CDC = {"min_chunk_size": 16 << 20, "max_chunk_size": 64 << 20, "norm_level": 0}
ZSTD_LEVEL = 9  # 8 % less than level 1 for tokens and labels, and no slower on pages of this size

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
IMAGE_SIZE = pa.struct([("height", pa.int32()), ("width", pa.int32())])
CONTENT = pa.struct([("type", pa.string()), ("text", pa.string())])
# `extra`: a JSON object of what else a message has for the template (tool_calls, function_call, reasoning_content), and
# `train`: false where the assistant's words are not to be learned. Null where there is nothing.
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.list_(CONTENT)), ("extra", pa.string())])

SAMPLE_SCHEMA = pa.schema(
    [
        ("sample_id", pa.int64()),  # hash of images and messages (jobs.adapters), or of the provenance when unusable
        ("source", pa.string()),  # the source's name in the configuration
        ("file", pa.string()),  # provenance: path in the source repository …
        ("row", pa.int64()),  # … and row in that file
        ("copy", pa.int32()),  # 0, or the number of an upsampled copy
        ("messages", pa.list_(MESSAGE)),  # chat-template form; an image is {"type": "image", "text": None}
        ("tools", pa.string()),  # a JSON list of the tools that the conversation may call, for the template
        ("images", pa.list_(IMAGE)),  # in the order of their placeholders
        ("kept", pa.string()),  # a JSON object of the row's columns that `sources.N.keep` names, null without one
        ("reason", pa.string()),  # why the adapter could not make a sample of the row, else null; "reason: detail"
        ("num_turns_dropped", pa.int32()),  # turns below a minimum rating
    ]
)

Level = Literal["token", "sample", "image", "pack"]


class Column(NamedTuple):
    """A column of packs, which is written, read, checked and taken apart by its level."""

    level: Level
    """What it has a value for: each token, sample or image of a pack, or the pack, for which samples' values add up."""
    type: pa.DataType
    """Of one value."""
    keeps: str | None = None
    """The column of SAMPLE_SCHEMA whose value it keeps for each sample."""


# Images stand first in a file, because Xet recognises a file by its first chunk. An edited text in any pack of a row
# group changes the bytes of its tokens, while its first image mostly stays.
PACK_COLUMNS = {
    "images": Column("image", IMAGE),
    "input_ids": Column("token", pa.int32()),
    "labels": Column("token", pa.int32()),
    "sample_lengths": Column("sample", pa.int32()),
    "sample_num_images": Column("sample", pa.int32()),
    "image_num_tokens": Column("image", pa.int32()),
    "image_sizes": Column("image", IMAGE_SIZE),
    "sample_ids": Column("sample", pa.int64(), keeps="sample_id"),
    "sample_sources": Column("sample", pa.string(), keeps="source"),
    "sample_files": Column("sample", pa.string(), keeps="file"),
    "sample_rows": Column("sample", pa.int64(), keeps="row"),
    "sample_kept": Column("sample", pa.string(), keeps="kept"),
    "num_tokens": Column("pack", pa.int32()),
    "num_label_tokens": Column("pack", pa.int32()),
    "num_images": Column("pack", pa.int32()),
    "vision_cost": Column("pack", pa.int32()),
}


def schema_of(columns: Mapping[str, Column]) -> pa.Schema:
    """Columns as they are stored: a list, or a single value of the pack."""
    kinds = {name: c.type if c.level == "pack" else pa.list_(c.type) for name, c in columns.items()}
    return pa.schema(list(kinds.items()))


PACK_SCHEMA = schema_of(PACK_COLUMNS)

QUARANTINE_SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("source", pa.string()),
        ("file", pa.string()),
        ("row", pa.int64()),
        ("copy", pa.int32()),
        ("sample_id", pa.int64()),
        ("num_tokens", pa.int32()),  # null when the row failed before it was tokenised
        ("num_images", pa.int32()),
    ]
)

# One row per row group of `data/{split}/`: all that the reader needs to order and fetch packs.
MANIFEST_SCHEMA = pa.schema(
    [
        ("file", pa.string()),  # path in the repository
        ("file_bytes", pa.int64()),
        ("footer_offset", pa.int64()),  # where the Parquet footer (FileMetaData) starts …
        ("footer_bytes", pa.int32()),  # … and its length, without the 8 bytes of length and magic after it
        ("row_group", pa.int32()),  # index in the file
        ("offset", pa.int64()),  # first byte of the row group's column chunks
        ("bytes", pa.int64()),  # their length
        ("num_rows", pa.int32()),
        ("num_samples", pa.int64()),
        ("num_tokens", pa.int64()),
        ("num_label_tokens", pa.int64()),
        ("num_images", pa.int64()),
        ("vision_cost", pa.list_(pa.int32())),  # of each pack, in stored order
        ("attention_cost", pa.list_(pa.int64())),  # of each pack: the sum of its samples' squared lengths
    ]
)

# Why a row is in the quarantine and not in a pack.
REASONS = {
    "taken_down": "the sample was taken down from the dataset (jobs.takedown)",
    "texts_missing": "the conversation is null or empty, a question or answer in it is null, or an answer has no words",
    "role_unknown": "a message's role is none that a chat template has",
    "field_unsupported": "a field that changes what is said or trained has a value that cannot be used",
    "ratings": "every turn is rated below a minimum",
    "part_unsupported": "a message has a part that is neither text nor image nor video",
    "image_missing": "an image has no bytes",
    "image_unidentified": "the bytes are of no known image format",
    "image_broken": "an image's header or body does not parse",
    "image_too_large": "an image has more pixels than is safe to decode",
    "image_mode": "an image's pixels have no agreed 8-bit meaning",
    "image_shape": "the processor refuses an image of this size or aspect",
    "video_broken": "a video's container or frames do not decode, or some are missing",
    "image_count": "the text has more or fewer placeholders than the sample has images",
    "template_failed": "the chat template refuses the conversation",
    "no_assistant_tokens": "nothing in the sample would be learned",
    "too_many_images": "more images than pack.max_images_per_sample or than fit in a pack",
    "too_long": "more tokens than pack.seq_len",
    "too_much_vision": "more vision cost than pack.max_vision_cost",
}


class ContractError(ValueError):
    """Data that breaks the contract, or follows a version of it that this code does not know."""


def leaf_paths(schema: pa.Schema) -> list[str]:
    """Parquet's names of a schema's leaves: `images.list.element.bytes`.

    Per-column writer options must name every leaf. A leaf without a name silently loses its compression.
    """
    empty = pa.BufferOutputStream()
    pq.write_metadata(schema, empty)
    columns = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    return [columns.column(i).path for i in range(len(columns))]


def features(schema: pa.Schema = PACK_SCHEMA) -> dict:
    """The schema as `datasets` features in their JSON form, with `IMAGE` as the Image feature."""

    def feature(kind: pa.DataType) -> dict:
        if kind.equals(IMAGE):
            return {"_type": "Image"}
        if pa.types.is_list(kind):
            return {"feature": feature(kind.value_type), "_type": "List"}
        if pa.types.is_struct(kind):
            return {kind.field(i).name: feature(kind.field(i).type) for i in range(kind.num_fields)}
        return {"dtype": str(kind), "_type": "Value"}

    return {field.name: feature(field.type) for field in schema}


def parquet_metadata(schema: pa.Schema = PACK_SCHEMA) -> dict[bytes, bytes]:
    """Key-value metadata of a file: the `huggingface` features, the chunking and the contract version."""
    return {
        b"huggingface": json.dumps({"info": {"features": features(schema)}}).encode(),
        b"content_defined_chunking": json.dumps(CDC).encode(),
        b"packing_contract": str(VERSION).encode(),
    }


def writer_options(schema: pa.Schema = PACK_SCHEMA) -> dict:
    """Arguments of `pyarrow.parquet.ParquetWriter` for files of the contract.

    Image bytes stay uncompressed and PLAIN, so that Xet finds the source's bytes again. The rest is zstd. Only scalars
    have statistics, because those of lists cost space and say nothing.
    """
    leaves = leaf_paths(schema)
    media = {leaf for leaf in leaves if leaf.endswith(".bytes")}
    return {
        "compression": {leaf: "none" if leaf in media else "zstd" for leaf in leaves},
        "compression_level": {leaf: ZSTD_LEVEL for leaf in leaves if leaf not in media},
        "data_page_size": CDC["max_chunk_size"],  # otherwise pages also end at 1 MiB
        "column_encoding": dict.fromkeys(media, "PLAIN") or None,
        "use_dictionary": [leaf for leaf in leaves if leaf not in media],
        "write_statistics": [leaf for leaf in leaves if "." not in leaf],
        "write_page_index": True,
        "write_page_checksum": True,  # the reader finds a flipped bit in image bytes
        "use_content_defined_chunking": CDC,
        "store_schema": True,
    }
