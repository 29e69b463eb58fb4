"""The members of a tar, from its headers alone, and proof that it is whole.

Apart from the code that reads tars: `tarfile` ends without a word where a header is cut or torn, and what was lost
there must show in the counts. A tar ends with a block of zeros; one that ends without was cut.

Format: POSIX.1-2017, pax: 512-byte headers with a checksum, a body in full blocks. Names longer than a header holds
come before it, as pax records (types x, g) or as GNU's long name (type L).
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

__all__ = ["Member", "TarError", "members"]

BLOCK = 512
_MOST_NAME_BYTES = 1 << 20  # of the records before a header


class TarError(ValueError):
    """A tar that was cut, or that is none."""


class Seekable(Protocol):
    """What headers are read from."""

    def seek(self, offset: int, /) -> int: ...
    def read(self, size: int, /) -> bytes: ...


class Member(NamedTuple):
    """A member: its name, and whether it is a regular file."""

    name: str
    is_file: bool


def members(file: Seekable) -> Iterator[Member]:
    """Each member, in order. Raises TarError for a header that is cut or torn, a cut body, and a missing end."""
    at, told = 0, {}
    while True:
        header = _read(file, at, BLOCK, "a header")
        if not header.strip(b"\0"):
            return _check_rest(file, at)
        _check(header, at)
        size, kind = _number(header[124:136], at), header[156:157]
        size = int(told.pop("size", size))
        body = at + BLOCK
        at = body + -(-size // BLOCK) * BLOCK
        if kind in (b"x", b"g", b"L"):
            told |= _told(_read(file, body, size, "a name"), kind) if kind != b"g" else {}
            continue
        if size:
            _read(file, body + size - 1, 1, "a member")
        name = told.pop("path", None) or _name(header)
        told = {}
        yield Member(name, kind in (b"0", b"\0", b"7"))


def _check_rest(file: Seekable, end: int) -> None:
    """Only zeros follow the end. Another tar behind it, or what a hole of zeros cuts off, would be lost."""
    file.seek(end)
    while data := file.read(_MOST_NAME_BYTES):
        if data.strip(b"\0"):
            raise TarError(f"it ends at byte {end} and more follows: tars put together, or one with a hole")


def _read(file: Seekable, at: int, size: int, what: str) -> bytes:
    if size > _MOST_NAME_BYTES:
        raise TarError(f"{what} of {size} bytes at byte {at}: at most {_MOST_NAME_BYTES} are read")
    file.seek(at)
    data = b""
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    if len(data) < size:
        raise TarError(f"it ends in {what} at byte {at + len(data)}, without the zeros that end a tar: it was cut")
    return data


def _check(header: bytes, at: int) -> None:
    """The sum of a header's bytes, its own field taken for spaces."""
    if sum(header[:148]) + 8 * ord(" ") + sum(header[156:]) != _number(header[148:156], at):
        raise TarError(f"no tar header at byte {at}: its checksum is wrong")


def _number(field: bytes, at: int) -> int:
    """An octal number, or a big-endian one where the first bit is set (GNU)."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise TarError(f"no tar header at byte {at}: {field!r} is no octal number") from None


def _name(header: bytes) -> str:
    name, prefix = _text(header[:100]), _text(header[345:500]) if header[257:262] == b"ustar" else ""
    return f"{prefix}/{name}" if prefix and header[263:265] == b"00" else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")


def _told(body: bytes, kind: bytes) -> dict[str, str]:
    """What records before a header say of its member: "12 path=a/b.jpg\\n" and the like."""
    if kind == b"L":
        return {"path": _text(body)}
    found = {}
    while body.strip(b"\0"):
        length, _, rest = body.partition(b" ")
        record = rest[: int(length) - len(length) - 1] if length.isdigit() else b""
        name, equals, value = record.rstrip(b"\n").partition(b"=")
        if not equals:
            raise TarError(f"a pax record that is none: {body[:20]!r}")
        found[name.decode(errors="replace")] = value.decode(errors="surrogateescape")
        body = body[int(length) :]
    return {name: value for name, value in found.items() if name in ("path", "size")}
