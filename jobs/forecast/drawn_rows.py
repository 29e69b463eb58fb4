"""Rows of a source as they would be trained, for a look at them in a plan: text, what of it is trained, images."""

from collections.abc import Iterator, Sequence

import numpy as np
from pydantic import BaseModel

from packing_udfs.encode.encoder import Encoder
from packing_udfs.published.trained_text import as_marked, pieces
from packing_udfs.shard.assemble import Unit
from packing_udfs.shard.pack_shard import PackedShard

__all__ = ["DrawnRow", "draw_rows"]

NUM_CHARS = 1000  # of a row's text; of a longer one the start and the end


class DrawnRow(BaseModel):
    """A row, and what is made of it."""

    file: str
    row: int
    num_tokens: int = 0
    text: str = ""  # what is trained stands between « and »
    reason: str = ""  # why nothing of the row is trained


def draw_rows(rows: Sequence[tuple[str, int]], packed: PackedShard, encoder: Encoder) -> Iterator[DrawnRow]:
    """What a shard makes of some of its rows. `rows`: file and row of each."""
    units: dict[tuple[str, int], list[Unit]] = {}
    for unit in (unit for group in packed.groups for pack in group for unit in pack):
        units.setdefault((unit.kept["sample_files"], unit.kept["sample_rows"]), []).append(unit)
    set_aside = {(row["file"], row["row"]): row for row in packed.quarantine.to_pylist()}
    for place in rows:
        file, row = place
        if place in units:
            text = "\n".join(_text(unit, encoder) for unit in units[place])
            num_tokens = sum(len(unit.encoded.input_ids) for unit in units[place])
            yield DrawnRow(file=file, row=row, num_tokens=num_tokens, text=_shortened(text))
        elif place in set_aside:
            told = set_aside[place]
            yield DrawnRow(file=file, row=row, reason=": ".join(filter(None, (told["reason"], told["detail"]))))
        else:
            yield DrawnRow(file=file, row=row, reason="duplicate: an earlier row has the same content")


def _text(unit: Unit, encoder: Encoder) -> str:
    sizes = zip(unit.sizes, unit.encoded.image_num_tokens.tolist(), strict=True)
    images = [
        {"number": i, "height": size.height, "width": size.width, "num_tokens": num}
        for i, (size, num) in enumerate(sizes, 1)
    ]
    ids, labels = np.asarray(unit.encoded.input_ids), np.asarray(unit.encoded.labels)
    return as_marked(pieces(ids, labels, images, encoder.image_token_id, encoder.tokenizer.decode))


def _shortened(text: str) -> str:
    if len(text) <= NUM_CHARS:
        return text
    half = NUM_CHARS // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
