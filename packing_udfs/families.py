"""How each model family turns an image of a given size into placeholder text: one small class a family.

A family answers one question without decoding pixels: what does the processor write in place of its image
placeholder for an image of this height and width, and what does that image cost the vision tower? The text comes
from the processor's own `replace_image_token`, fed with the metadata that its image processor would have made,
so a change of wording in transformers is followed and not copied.
"""

from dataclasses import dataclass
from typing import Protocol

Size = tuple[int, int]  # height, width in pixels


@dataclass(frozen=True)
class ImageText:
    """What stands for one image in the text: `text` replaces the placeholder, `vision_cost` is in tiles or patches."""

    text: str
    vision_cost: int


class Family(Protocol):
    """The pixel-free part of a processor. `vision_unit` names what `vision_cost` counts."""

    vision_unit: str

    def expand(self, size: Size) -> ImageText: ...


class Idefics3:
    """Idefics3 and SmolVLM: an image is cut into rows × columns of tiles plus one global tile.

    An image no larger than a tile is one tile. `image_processor.get_number_of_image_patches` is exact when
    `size.longest_edge` is a multiple of the tile's edge, which is checked here.
    """

    vision_unit = "tiles"

    def __init__(self, processor):
        self._processor = processor
        image_processor = processor.image_processor
        longest_edge, tile = image_processor.size["longest_edge"], image_processor.max_image_size["longest_edge"]
        if longest_edge % tile:
            raise ValueError(
                f"processor: size.longest_edge {longest_edge} is no multiple of the tile edge {tile} "
                "(max_image_size.longest_edge), so tiles cannot be counted from the size alone; use a multiple"
            )

    def expand(self, size: Size) -> ImageText:
        """Placeholder text and tiles of an image of `size` (height, width)."""
        num_tiles, rows, cols = self._processor.image_processor.get_number_of_image_patches(*size, {})
        text = self._processor.replace_image_token({"rows": [[rows]], "cols": [[cols]]}, 0)
        return ImageText(text, max(num_tiles, 1))


FAMILIES: dict[str, type[Family]] = {"Idefics3Processor": Idefics3, "SmolVLMProcessor": Idefics3}


def family_of(processor) -> Family:
    """The family of a processor, by its class. Raises ValueError for one that is not known."""
    name = type(processor).__name__
    if name not in FAMILIES:
        raise ValueError(f"processor: {name} is not supported; supported are {', '.join(sorted(FAMILIES))}")
    return FAMILIES[name](processor)
