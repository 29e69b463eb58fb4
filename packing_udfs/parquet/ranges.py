"""Parts of a Parquet file without the rest of it: the footer, and some columns of a row group in one range."""

import io
from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from packing_udfs import contract
from packing_udfs.storage.byte_source import Source, Stop

__all__ = ["PARQUET_TAIL", "RangeFile", "column_of", "parse_footer", "read_columns", "read_footer", "span_of"]

PARQUET_TAIL = 8  # four bytes of footer length, then b"PAR1"


class RangeFile(io.RawIOBase):
    """A file of `size` bytes that has only the bytes `data`, from `offset` on."""

    def __init__(self, data: pa.Buffer, offset: int, size: int):
        self._data, self._offset, self._size, self._at = data, offset, size, 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read_buffer(self, length: int) -> pa.Buffer:
        """pyarrow calls this instead of `read`. It does not copy."""
        start = self._at - self._offset
        if start < 0 or start + length > self._data.size:
            raise OSError(f"bytes {self._at}–{self._at + length - 1} lie outside what was fetched")
        self._at += length
        return self._data.slice(start, length)


def parse_footer(file: str, tail: pa.Buffer | bytes) -> pq.FileMetaData:
    """A footer from its bytes and the `PARQUET_TAIL` after them. Raises ContractError if the file has no packs."""
    try:
        metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + bytes(tail)))
    except (pa.ArrowException, OSError) as error:
        raise contract.ContractError(f"{file}: its footer cannot be read: {error}") from error
    version = (metadata.metadata or {}).get(b"packing_contract", str(contract.VERSION).encode()).decode()
    if version != str(contract.VERSION):  # other writers of our packs leave it out
        raise contract.ContractError(f"{file}: contract version {version}, this code reads {contract.VERSION}")
    if not metadata.schema.to_arrow_schema().equals(contract.PACK_SCHEMA):
        raise contract.ContractError(f"{file}: its columns are not those of the contract")
    return metadata


def read_footer(source: Source, row: dict, stop: Stop) -> pq.FileMetaData:
    """The footer of a row group's file; `row` is of `contract.MANIFEST_SCHEMA`. Raises FetchError or ContractError."""
    length = row["footer_bytes"] + PARQUET_TAIL
    if row["footer_offset"] < 0 or row["footer_offset"] + length != row["file_bytes"]:
        raise contract.ContractError(f"{row['file']}: its footer is not where its manifest says")
    return parse_footer(row["file"], source.read(row["file"], row["footer_offset"], length, stop))


def read_columns(
    source: Source, row: dict, metadata: pq.FileMetaData, columns: Collection[str], stop: Stop
) -> pa.Table:
    """Some columns of the row group of manifest row `row`, fetched as one range from the first to the last of them.

    Raises FetchError, or ContractError for damaged bytes.
    """
    file, index = row["file"], row["row_group"]
    if not 0 <= index < metadata.num_row_groups:
        raise contract.ContractError(f"{file}: it has no row group {index}, which its manifest names")
    chunks = [chunk for chunk in chunks_of(metadata.row_group(index)) if chunk.path_in_schema.split(".")[0] in columns]
    start, length = span_of(chunks)
    part = RangeFile(source.read(file, start, length, stop), start, row["file_bytes"])
    try:
        opened = pq.ParquetFile(part, metadata=metadata, pre_buffer=False, page_checksum_verification=True)
        return opened.read_row_group(index, columns=list(columns), use_threads=False).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise contract.ContractError(f"{file} row group {index}: its bytes are damaged: {error}") from error


def chunks_of(row_group: pq.RowGroupMetaData) -> list[pq.ColumnChunkMetaData]:
    """The column chunks of a row group, one per leaf."""
    return [row_group.column(i) for i in range(row_group.num_columns)]


def column_of(row_group: pq.RowGroupMetaData, path: str) -> pq.ColumnChunkMetaData:
    """The column chunk of a leaf."""
    return next(chunk for chunk in chunks_of(row_group) if chunk.path_in_schema == path)


def span_of(chunks: Iterable[pq.ColumnChunkMetaData]) -> tuple[int, int]:
    """First byte and length of the range that holds these column chunks."""
    spans = [(c.dictionary_page_offset or c.data_page_offset, c.total_compressed_size) for c in chunks]
    start = min(at for at, _ in spans)
    return start, max(at + size for at, size in spans) - start
