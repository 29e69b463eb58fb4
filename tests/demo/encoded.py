"""Pictures as the `struct<bytes, path>` that they are stored as."""

import io

from PIL import Image

SUFFIX = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp"}


def encode(
    image: Image.Image, name: str, kind: str, *, quality: int = 70, colours: int = 0, orientation: int = 0
) -> dict:
    """Encode as `kind` (a key of `SUFFIX`), without anything that names time or machine.

    `colours` > 0 makes a PNG with a palette. `orientation` 6 stores the picture turned a quarter to the left with
    the EXIF tag that tells a viewer to turn it back, as a phone held upright does.
    """
    options = {}
    if orientation:
        assert orientation == 6
        image = image.transpose(Image.Transpose.ROTATE_90)
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif
    if kind == "PNG":
        options["optimize"] = True
        if colours:
            image = image.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    else:
        options |= {"quality": quality, "optimize": True} if kind == "JPEG" else {"quality": quality, "method": 6}
    out = io.BytesIO()
    image.save(out, kind, **options)
    return {"bytes": out.getvalue(), "path": f"{name}.{SUFFIX[kind]}"}
