"""Databases as sources: the wanted columns are copied into Parquet files, and those are read like any other folder.

A DuckDB file is opened read-only; PostgreSQL is read through ADBC in one read-only transaction, so that all tables are
of the same moment. Rows come in pieces, and memory does not grow with a table. What a driver says when it fails may
quote the address, and the address may hold a password: no sentence here repeats either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.registry import is_address

_POSTGRES: Final = re.compile(r"^postgres(ql)?://", re.IGNORECASE)
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_$]*"
_INSTALL: Final = "install it with: pip install 'patients-like-me[omop]'"
_PIECE: Final = 200_000
#: What a driver may say, and what is told of it.
_REASONS: Final = (
    (r"password authentication failed|no password supplied|fe_sendauth", "the user or the password is wrong"),
    (r"connection refused|no such file or directory|is the server running", "no server answers there"),
    (r"could not translate host name|name or service not known", "the host's name is unknown"),
    (r"database .* does not exist", "there is no database of that name"),
    (r"role .* does not exist", "there is no user of that name"),
    (r"timeout|timed out", "the server took too long"),
    (r"permission denied", "the user may not read it"),
    (r"no pg_hba.conf entry", "the server does not accept this user from here"),
    (r"statement timeout|canceling statement", "the server cancelled the query"),
    (r"terminating connection|closed the connection|connection .*(lost|not open|reset)|eof|broken pipe",
     "the connection was lost"),
)  # fmt: skip


class Query(Protocol):
    """Runs a query and yields its rows in pieces."""

    def __call__(self, sql: str, /) -> Iterator[pl.DataFrame]:
        """Run one query."""
        ...


@dataclass(frozen=True)
class Database:
    """An open database: its tables with their columns, all in lower case, and a way to ask it.

    ``tables`` gives for a table's name its name in SQL; ``columns`` gives for it the columns' names in SQL.
    """

    query: Query
    tables: Mapping[str, str]
    columns: Mapping[str, Mapping[str, str]]


@dataclass
class Copied:
    """What was copied: the file and the fingerprint of each table."""

    folder: Path
    fingerprints: dict[str, dict[str, int | str]] = field(default_factory=dict)


def is_database(place: str) -> bool:
    """Tell whether a place is a database's address or a DuckDB file; a plain folder or file is neither."""
    if is_address(place):
        return True
    path = Path(place)
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(12)[8:] == b"DUCK"


@contextmanager
def opened_database(place: str, *, marker: str, schemas: tuple[str, ...] = ()) -> Iterator[Database]:
    """Open a database for reading; ``marker`` is a table by which the right schema is found where none is named."""
    for schema in schemas:
        if not re.fullmatch(_NAME, schema):
            raise PlmError("the name of a schema has letters, digits and _ only", remedy="correct the setting")
    is_postgres = _POSTGRES.match(place) is not None
    if is_address(place) and not is_postgres:
        kind = re.match(r"([\w+.-]{1,20})://", place)
        raise PlmError(
            f"a database of the kind '{kind[1]}' cannot be read" if kind else "the database address is incomplete",
            remedy="give a postgresql:// address, a DuckDB file or a folder",
        )
    with _postgres(place) if is_postgres else _duckdb(place) as query:
        tables, columns = _catalogue(query, marker, [schema.lower() for schema in schemas])
        yield Database(query, tables, columns)


def copy_table(database: Database, table: str, sql: str, copied: Copied) -> int:
    """Copy the rows of a query into the file of a table; return their number."""
    import pyarrow.parquet as parquet

    copied.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = copied.folder / f"{table}.parquet"
    rows, mixed = 0, 0
    writer: Any = None
    try:
        with explained_database(table):
            for piece in database.query(sql):
                content = piece.to_arrow()
                writer = writer or parquet.ParquetWriter(path, content.schema, compression="lz4")
                writer.write_table(content.cast(writer.schema))
                rows += piece.height
                # A sum does not depend on the order of the rows, which a database does not promise.
                mixed = (mixed + int(piece.hash_rows(seed=0).sum() or 0)) % (1 << 64)
    finally:
        if writer is not None:
            writer.close()
    copied.fingerprints[path.name] = {"rows": rows, "rows_hash": f"{mixed:016x}"}
    return rows


@contextmanager
def explained_database(what: str) -> Iterator[None]:
    """Turn what a driver says into one sentence that quotes neither the address nor any value."""
    try:
        yield
    except (PlmError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError):
            if error.errno is not None:
                raise
            # Arrow passes on what a driver says in the middle of a table as an OSError without a number.
        elif type(error).__module__.split(".")[0].lstrip("_") not in ("adbc_driver_manager", "duckdb", "pyarrow"):
            raise
        said = str(error).lower()
        reason = next((told for pattern, told in _REASONS if re.search(pattern, said)), "the database refused")
        remedy = "check the address, the user and the server"
        raise PlmError(f"{what} cannot be read from the database: {reason}", remedy=remedy) from None


@contextmanager
def _postgres(address: str) -> Iterator[Query]:
    try:
        from adbc_driver_postgresql import dbapi
    except ImportError:
        raise PlmError("the driver for PostgreSQL is not installed", remedy=_INSTALL) from None
    with explained_database("the list of tables"):
        connection = dbapi.connect(address)
    try:
        with explained_database("the list of tables"), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

        def query(sql: str) -> Iterator[pl.DataFrame]:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                yield from _pieces(cursor.fetch_record_batch())

        yield query
    finally:
        try:
            connection.close()
        except Exception as error:
            # A connection that the server has ended cannot be closed any more.
            del error


@contextmanager
def _duckdb(place: str) -> Iterator[Query]:
    try:
        import duckdb
    except ImportError:
        raise PlmError("the package that reads DuckDB files is not installed", remedy=_INSTALL) from None
    with explained_database("the list of tables"):
        connection = duckdb.connect(place, read_only=True)
    try:
        yield lambda sql: _pieces(connection.sql(sql).to_arrow_reader(_PIECE))
    finally:
        connection.close()


def _pieces(reader: Any) -> Iterator[pl.DataFrame]:
    """Yield at least one piece, so that a table without rows keeps its columns."""
    import pyarrow as pa

    empty = True
    for batch in reader:
        empty = False
        yield pl.DataFrame(pl.from_arrow(batch))
    if empty:
        yield pl.DataFrame(pl.from_arrow(pa.Table.from_batches([], schema=reader.schema)))


def _catalogue(query: Query, marker: str, schemas: list[str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the tables of the wanted schemas, the first one first, and the columns of each."""
    with explained_database("the list of tables"):
        listed = pl.concat(
            query("SELECT table_schema, table_name, column_name FROM information_schema.columns"), how="vertical"
        ).cast(pl.String)
    lower = listed.with_columns(pl.all().str.to_lowercase().name.suffix("_lower"))
    if not schemas:
        schemas = sorted(lower.filter(pl.col("table_name_lower") == marker)["table_schema_lower"].unique().to_list())
        if len(schemas) > 1:
            raise PlmError(
                f"the table '{marker}' is in several schemas: {', '.join(schemas)}",
                remedy="choose with --set cdm_schema=NAME",
            )
    tables: dict[str, str] = {}
    columns: dict[str, dict[str, str]] = {}
    for schema in schemas:
        of_schema = lower.filter(pl.col("table_schema_lower") == schema)
        for (name,), rows in of_schema.group_by("table_name_lower", maintain_order=True):
            if str(name) not in tables:
                tables[str(name)] = f'"{rows["table_schema"][0]}"."{rows["table_name"][0]}"'
                columns[str(name)] = {
                    row["column_name_lower"]: f'"{row["column_name"]}"' for row in rows.iter_rows(named=True)
                }
    return tables, columns
