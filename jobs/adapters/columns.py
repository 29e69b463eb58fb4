"""A source's columns by the names that adapters have for them, whatever their spelling and nesting.

An adapter asks for `image`; the source may have `Image`, a WebDataset field `jpg`, or `json.image`. A column is found

1. under the name that the configuration gives for it (`sources.N.columns: {caption: json.text}`),
2. under its own name, upper or lower case,
3. as a field of WebDataset's column `json`, which holds a sample's JSON file.

Only types are looked at here, before Spark starts.
"""

import re
from dataclasses import dataclass

from pyspark.sql.types import ArrayType, BinaryType, DataType, NullType, StringType, StructType

__all__ = ["ColumnError", "Columns", "Field", "Turns", "element_of", "field_of", "media_kind", "turns_of"]

# Names of WebDataset columns, which are extensions: "jpg", "0.jpg", "left.png".
_IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jp2", "ppm")
_VIDEO_EXTENSIONS = ("mp4", "mkv", "webm", "mov", "avi", "mpeg")


class ColumnError(ValueError):
    """Columns that an adapter cannot use; the message says which and why. `field`: of the source's configuration."""

    def __init__(self, message: str, field: str = "adapter"):
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Field:
    """A column, or a field inside structs, and its type."""

    path: tuple[str, ...]
    kind: DataType

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def inner(self, name: str) -> "Field | None":
        """A field inside this one, by its name in any case."""
        found = field_of(self.kind, name)
        return Field(self.path + found.path, found.kind) if found else None


class Columns:
    """The columns of one source.

    `given`: the configuration's names, adapter's name → the source's, with dots between a column and its fields.
    """

    def __init__(self, schema: StructType, given: dict[str, str]):
        self.schema = schema
        self._given = given

    def find(self, *names: str) -> Field | None:
        """The first of the names that the source has. Raises ColumnError for a given name that it does not have."""
        for name in names:
            if name in self._given:
                return self.at(self._given[name])
        for name in names:
            found = field_of(self.schema, name) or self._in_json(name)
            if found:
                return found
        return None

    def images(self) -> tuple[Field, ...]:
        """The columns with images: `images` or `image`, else all that are named as image files are."""
        return self._media(("images", "image"), _IMAGE_EXTENSIONS)

    def videos(self) -> tuple[Field, ...]:
        """The columns with videos: `videos` or `video`, else all that are named as video files are."""
        return self._media(("videos", "video"), _VIDEO_EXTENSIONS)

    def check_given(self, known: tuple[str, ...]) -> None:
        """Raises ColumnError for a name in the configuration that no adapter asks for or the source does not have."""
        for name, path in self._given.items():
            if name not in known:
                raise ColumnError(f"no adapter has a column {name!r}; they have {', '.join(known)}", "columns")
            self.at(path)

    def at(self, path: str, setting: str = "columns") -> Field:
        """The column, or the field inside columns, at a path with dots. Raises ColumnError, which names the setting."""
        whole = field_of(self.schema, path)  # WebDataset's names have dots themselves
        if whole:
            return whole
        found = Field((), self.schema)
        for name in path.split("."):
            inner = found.inner(name)
            if inner is None:
                raise ColumnError(f"there is no column {path!r} with values; there are {self}", setting)
            found = inner
        return found

    def _in_json(self, name: str) -> Field | None:
        json = field_of(self.schema, "json")
        return json.inner(name) if json else None

    def _media(self, names: tuple[str, str], extensions: tuple[str, ...]) -> tuple[Field, ...]:
        found = self.find(*names)
        if found:
            kind = media_kind(found.kind)
            if isinstance(kind, StringType):
                raise ColumnError(
                    f"the column {found.name} is text; images and videos are read as bytes, never by path"
                )
            if kind is None:
                raise ColumnError(f"the column {found.name} is {found.kind.simpleString()}, which holds no bytes")
            return (found,)
        files = [f for f in self.schema.fields if f.name.lower().rpartition(".")[2] in extensions]
        usable = [Field((f.name,), f.dataType) for f in files if not isinstance(media_kind(f.dataType), StringType)]
        return tuple(sorted((f for f in usable if media_kind(f.kind)), key=lambda field: _natural(field.name)))

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {_short(field.dataType)}" for field in self.schema.fields)


def element_of(kind: DataType) -> DataType:
    """The type of a list's elements; any other type is itself."""
    return kind.elementType if isinstance(kind, ArrayType) else kind


def field_of(kind: DataType, name: str) -> Field | None:
    """A struct's field by its name in any case; None for another type, and for a field that is null in every row.

    Raises ColumnError when several names differ in case alone.
    """
    if not isinstance(kind, StructType):
        return None
    same = [field for field in kind.fields if field.name.lower() == name.lower()]
    if len(same) > 1:
        raise ColumnError(
            f"the columns {', '.join(f.name for f in same)} differ in case alone, which Spark cannot read"
        )
    has_values = bool(same) and not isinstance(same[0].dataType, NullType)
    return Field((same[0].name,), same[0].dataType) if has_values else None


@dataclass(frozen=True)
class Turns:
    """A column of turns with two fields each: a list of structs, or a struct of lists.

    The second is how `datasets` stores a `Sequence` of a dict.
    """

    field: Field
    names: tuple[str, str]  # of the two fields, as the source spells them
    kinds: tuple[DataType, DataType]
    is_transposed: bool  # a struct of lists
    more: tuple[Field, ...] = ()  # further fields of a turn that are used

    @property
    def fields(self) -> tuple[Field, ...]:
        """What is used of the column."""
        names = (*self.names, *(field.name for field in self.more))
        return tuple(Field((*self.field.path, name), self.field.kind) for name in names)


def turns_of(field: Field, first: str, second: str) -> Turns | None:
    """The turns in a column whose two fields have these names; None when it is of another type."""
    is_transposed = isinstance(field.kind, StructType)
    struct = element_of(field.kind)
    a, b = field_of(struct, first), field_of(struct, second)
    if a is None or b is None:
        return None
    if is_transposed and not (isinstance(a.kind, ArrayType) and isinstance(b.kind, ArrayType)):
        return None
    kinds = (element_of(a.kind), element_of(b.kind)) if is_transposed else (a.kind, b.kind)
    return Turns(field, (a.name, b.name), kinds, is_transposed)


def media_kind(kind: DataType) -> DataType | None:
    """The type of one image or video in a column of them, or of lists of them; None when it holds neither.

    BinaryType, a struct with `bytes`, or StringType where a column holds paths alone.
    """
    one = element_of(kind)
    if isinstance(one, StructType):
        inner = field_of(one, "bytes")
        return one if inner and isinstance(inner.kind, BinaryType) else None
    return one if isinstance(one, BinaryType | StringType) else None


def _natural(name: str) -> list:
    """A key that sorts "2.jpg" before "10.jpg"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _short(kind: DataType) -> str:
    text = kind.simpleString()
    return text if len(text) <= 80 else f"{text[:77]}..."
