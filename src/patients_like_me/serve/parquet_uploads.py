"""A Parquet file that was sent, decoded with care and written again, so that the readers behind see a sound one.

A file of a few hundred bytes can be damaged in a way that ends the process of the reader that believes it, and a
column of one long text takes next to nothing in the file and any amount of memory. So Arrow, which checks what it
decodes, reads the file batch by batch; texts stay coded until their lengths are known, and bytes are counted.
"""

from __future__ import annotations

import io
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_ROWS_AT_ONCE: Final = 1024
_TEXTS: Final = (pa.types.is_string, pa.types.is_large_string)
_PLAIN: Final = (
    *_TEXTS,
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal, pa.types.is_null),
    *(pa.types.is_date, pa.types.is_timestamp, pa.types.is_time),
)


class UnfitParquetError(Exception):
    """A file that is not taken; the message says why, without anything of its content."""


class TooLargeError(UnfitParquetError):
    """A file that is larger than the limit when it is decoded."""


def sound_parquet(content: bytes, *, most_bytes: int, longest_text: int) -> bytes:
    """Return a file with the same rows that Arrow has decoded and written, or refuse it.

    >>> sent = io.BytesIO()
    >>> pq.write_table(pa.table({"code": ["I10", "I50.9"]}), sent)
    >>> again = sound_parquet(sent.getvalue(), most_bytes=1000, longest_text=5)
    >>> pq.read_table(io.BytesIO(again)).to_pylist()
    [{'code': 'I10'}, {'code': 'I50.9'}]
    >>> sound_parquet(sent.getvalue(), most_bytes=1000, longest_text=4)
    Traceback (most recent call last):
    patients_like_me.serve.parquet_uploads.UnfitParquetError: column 1 has a text of more than 4 characters
    """
    try:
        table = _decoded(content, most_bytes, longest_text)
        written = io.BytesIO()
        pq.write_table(table, written, compression="none")
    except (OSError, ValueError, KeyError, pa.ArrowException):
        words = "the file cannot be unpacked: it is damaged, or of another form than its name says"
        raise UnfitParquetError(words) from None
    return written.getvalue()


def _decoded(content: bytes, most_bytes: int, longest_text: int) -> pa.Table:
    about = pq.ParquetFile(io.BytesIO(content))
    metadata = about.metadata
    said = sum(metadata.row_group(place).total_byte_size for place in range(metadata.num_row_groups))
    # A column of one value takes next to nothing in the file.
    if max(said, metadata.num_rows * metadata.num_columns) > most_bytes:
        raise TooLargeError
    schema = about.schema_arrow
    for place, field in enumerate(schema, start=1):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not any(is_kind(kind) for is_kind in _PLAIN):
            raise UnfitParquetError(f"column {place} has neither texts nor numbers nor dates")
    texts = [field.name for field in schema if any(is_text(field.type) for is_text in _TEXTS)]
    opened = pq.ParquetFile(io.BytesIO(content), read_dictionary=texts, metadata=metadata)
    batches, size = [], 0
    for batch in opened.iter_batches(batch_size=_ROWS_AT_ONCE):
        batch.validate(full=True)
        columns = [_plain(column, place, longest_text) for place, column in enumerate(batch.columns, start=1)]
        plain = pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
        size += plain.nbytes
        if size > most_bytes:
            raise TooLargeError
        batches.append(plain)
    if sum(batch.num_rows for batch in batches) != metadata.num_rows:
        raise ValueError("rows are missing")
    if not batches:
        return schema.remove_metadata().empty_table()
    return pa.Table.from_batches(batches)


def _plain(column: Any, place: int, longest_text: int) -> Any:
    """Return a column with its values written out; a text that is too long is never repeated."""
    coded = pa.types.is_dictionary(column.type)
    values = column.dictionary if coded else column
    # Of a coded column, the check of its batch looks at the places alone.
    values.validate(full=True)
    if any(is_text(values.type) for is_text in _TEXTS):
        longest = pc.max(pc.utf8_length(values)).as_py()
        if longest is not None and longest > longest_text:
            raise UnfitParquetError(f"column {place} has a text of more than {longest_text:,} characters")
    return column.dictionary_decode() if coded else column
