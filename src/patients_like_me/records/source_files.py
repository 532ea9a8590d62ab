"""Finding and opening the tables of a source: any usual folder level and header case, one file or many parts.

A table is one file, or several parts that belong together: numbered files (``events-0001.parquet``), a folder of the
table's name, or one file in each of several folders. Files are CSV, Parquet or NDJSON (one JSON object per line);
CSV and NDJSON may be gzipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.plain_text import printable
from patients_like_me.records.file_errors import explained
from patients_like_me.records.file_scans import Columns, header_of, scanned_csv, scanned_ndjson, scanned_parquet
from patients_like_me.records.row_shape import notes_on_last_row
from patients_like_me.records.table_files import (
    ENDINGS,
    NDJSON,
    ending_of,
    files_below,
    files_of_table,
    notes_on_missing_parts,
)

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Part:
    """One file of a table, opened lazily; ``first_row`` is the row of its first record as a text editor counts."""

    path: Path
    frame: pl.LazyFrame
    first_row: int = 2


@dataclass(frozen=True)
class SourceTable:
    """One table opened lazily, in one or many parts, with exactly the wanted columns; absent optional ones are null."""

    parts: tuple[Part, ...]

    @property
    def path(self) -> Path:
        """The file of the table, the first one where there are several."""
        return self.parts[0].path

    @property
    def label(self) -> str:
        """What reports call the table: the name of its file."""
        more = len(self.parts) - 1
        return self.path.name if not more else f"{self.path.name} and {more} more"

    @property
    def size(self) -> int:
        """The bytes of the files; 0 for one that is gone, which reading tells."""
        return sum(part.path.stat().st_size for part in self.parts if part.path.is_file())

    @property
    def schema(self) -> pl.Schema:
        """The columns of the table; the same in every part."""
        with explained(self.path):
            return self.parts[0].frame.collect_schema()

    def then(self, change: Callable[[pl.LazyFrame], pl.LazyFrame]) -> SourceTable:
        """Return the table with the same change made to every part, such as a selection or a filter."""
        changed = []
        for part in self.parts:
            with explained(part.path):
                changed.append(Part(part.path, change(part.frame), part.first_row))
        return SourceTable(tuple(changed))

    def collect(self) -> pl.DataFrame:
        """Read the wanted columns into memory."""
        frames = []
        for part in self.parts:
            with explained(part.path):
                frames.append(part.frame.collect(engine="streaming"))
        return frames[0] if len(frames) == 1 else pl.concat(frames)

    def batches(self, rows: int = 262_144) -> Iterator[pl.DataFrame]:
        """Read the wanted columns in pieces of about ``rows`` rows, in file order, so that memory stays bounded."""
        begun = self._begun(0, rows)
        for number, part in enumerate(self.parts):
            # The next part is read while somebody works on this one.
            pieces, begun = begun, self._begun(number + 1, rows)
            with explained(part.path):
                yield from _of_even_size(pieces, rows) if ending_of(part.path) == ".parquet" else pieces

    def _begun(self, number: int, rows: int) -> Iterator[pl.DataFrame]:
        """Let the reading of a part begin; its pieces wait until they are fetched."""
        if number >= len(self.parts):
            return iter(())
        part = self.parts[number]
        with explained(part.path):
            chunk = None if ending_of(part.path) == ".parquet" else rows // 2
            return part.frame.collect_batches(chunk_size=chunk, maintain_order=True)

    def first(self, condition: pl.Expr) -> tuple[str, dict[str, object]]:
        """Return the place (file and row) of the first row that meets a condition, and what is in that row."""
        for part in self.parts:
            with explained(part.path):
                hit = part.frame.with_row_index("row number").filter(condition).head(1).collect()
            if hit.height:
                found = hit.row(0, named=True)
                return f"'{part.path}', row {found.pop('row number') + part.first_row}", found
        raise ValueError("no row meets the condition")

    def place_of(self, condition: pl.Expr) -> str:
        """Return file and row of the first row that meets a condition."""
        return self.first(condition)[0]

    def place_of_number(self, number: int) -> str:
        """Return file and row of a record by its number over all parts, from 0."""
        for part in self.parts:
            with explained(part.path):
                rows = part.frame.select(pl.len()).collect().item() if len(self.parts) > 1 else number + 1
            if number < rows:
                return f"'{part.path}', row {number + part.first_row}"
            number -= rows
        raise ValueError("the table has fewer rows")


def _of_even_size(pieces: Iterator[pl.DataFrame], rows: int) -> Iterator[pl.DataFrame]:
    """Cut large pieces and put small ones together; those as a file has them are in one place, and are not copied."""
    small: list[pl.DataFrame] = []
    for piece in pieces:
        small.append(piece)
        if sum(each.height for each in small) >= rows // 4:
            yield from pl.concat(small, rechunk=len(small) > 1).iter_slices(rows)
            small = []
    if small:
        yield pl.concat(small)


def one_ahead(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Yield the pieces of an iterator, the next of which is made in a thread while one is worked on.

    >>> list(one_ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    ended = object()
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, pieces, ended)
        while (piece := coming.result()) is not ended:
            coming = pool.submit(next, pieces, ended)
            yield cast(Piece, piece)


@dataclass
class SourceFolder:
    """The folder or folders of a source, in which each table is found by name, whatever its level, case or ending.

    ``title`` is what messages call the source. ``used`` collects every file that was opened, for the provenance;
    ``notes`` what the coverage should mention, such as optional tables that are missing or empty. ``fingerprints`` are
    those of tables that are not files of the user's, by the name of the file that holds the copy.
    """

    folders: tuple[Path, ...]
    title: str
    used: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fingerprints: dict[str, dict[str, int | str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for folder in self.folders:
            if not folder.exists():
                raise PlmError(f"the folder '{folder}' does not exist", remedy="check the path")
            if not folder.is_dir():
                raise PlmError(
                    f"'{folder}' is a file, but {self.title} is read from a folder of tables",
                    remedy="give the folder that holds it",
                )

    @property
    def is_synthetic(self) -> bool:
        """Tell whether a folder (or the one above, where ``hosp/`` was given) says that its hospital is made up."""
        places = (place for folder in self.folders for place in (folder, folder.absolute().parent))
        return any((place / "SYNTHETIC.json").is_file() for place in places)

    def find(self, table: str, *, required: bool = True) -> list[Path]:
        """Return the files of a table: in each folder the nearest one, in the preferred form, or its parts."""
        found = [path for folder in self.folders for path in files_of_table(folder, table.lower())]
        if found or not required:
            return found
        places = " or ".join(f"'{folder}'" for folder in self.folders)
        seen = sorted({path.name for folder in self.folders for path in files_below(folder) if ending_of(path)})
        there = f"tables there: {', '.join(seen[:8])}" if seen else f"no file there ends in {', '.join(ENDINGS)}"
        raise PlmError(
            f"no table '{table}' ({table}.csv, .csv.gz, .parquet or .ndjson) in {places} ({there})",
            remedy=f"give the folder that holds the {self.title.removesuffix(' tables')} tables",
        )

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether a table with these columns is there; an unreadable one is not."""
        try:
            paths = self.find(table, required=False)
            return bool(paths) and set(columns) <= {name.strip().lower() for name in header_of(paths[0])}
        except PlmError:
            return False

    def open(self, table: str, columns: Columns, *, optional: Sequence[str] = ()) -> SourceTable:
        """Open a table lazily with lower-case column names; only ``columns`` are read, as the given types."""
        return self._opened(self.find(table), columns, optional)

    def open_optional(self, table: str, columns: Columns, *, optional: Sequence[str] = ()) -> SourceTable | None:
        """Open a table that a source may lack; None, and a note, where it is missing or an empty file."""
        paths = self.find(table, required=False)
        filled = [path for path in paths if path.stat().st_size]
        if filled:
            return self._opened(filled, columns, optional)
        self.notes.append(f"the optional table '{table}' is {'empty' if paths else 'not there'}")
        return None

    def _opened(self, paths: list[Path], columns: Columns, optional: Sequence[str]) -> SourceTable:
        self.used.extend(paths)
        self.notes += notes_on_missing_parts(paths)
        self.notes += [note for path in paths for note in notes_on_last_row(path)]
        return open_table(paths, columns, optional=optional)


def open_table(paths: Path | Sequence[Path], columns: Columns, *, optional: Sequence[str] = ()) -> SourceTable:
    r"""Open the file or files of a table lazily; missing required columns are named in the error.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "visits.csv"
    >>> _ = path.write_text("VISIT_ID,Other\n007,x\n")
    >>> open_table(path, {"visit_id": pl.String, "age": pl.Int16}, optional=("age",)).collect().rows()
    [('007', None)]
    """
    files = [paths] if isinstance(paths, Path) else list(paths)
    return SourceTable(tuple(_opened_part(path, columns, optional) for path in files))


def _opened_part(path: Path, columns: Columns, optional: Sequence[str]) -> Part:
    with explained(path):
        return _scanned_part(path, columns, optional)


def _scanned_part(path: Path, columns: Columns, optional: Sequence[str]) -> Part:
    if path.stat().st_size == 0:
        raise PlmError(f"the file '{path}' is empty", remedy="copy or download it again")
    header = header_of(path)
    by_lower: dict[str, str] = {}
    for name in header:
        if (other := by_lower.setdefault(name.strip().lower(), name)) is not name and name.strip().lower() in columns:
            raise PlmError(
                f"'{path}' has two columns of one name, '{printable(other)}' and '{printable(name)}'",
                remedy="remove or rename one; upper and lower case do not tell columns apart",
            )
    missing = [name for name in columns if name not in by_lower and name not in optional]
    if missing:
        # What is there may be a record, written with another separator, and is not shown.
        if any(re.fullmatch(r"\s*[\d.:/ -]+\s*", part) for name in header for part in re.split(r"[;|\t]", name)):
            raise PlmError(
                f"the first row of '{path}' looks like data, not like a header with {', '.join(map(repr, missing))}",
                remedy="put the names of the columns into the first row",
            )
        if len(header) == 1 and (sign := re.search(r"[;|\t]", header[0])):
            shown = "tabs" if sign.group() == "\t" else f"'{sign.group()}'"
            raise PlmError(
                f"the columns of '{path}' are separated by {shown}, not by commas", remedy="save the table with commas"
            )
        there = printable(", ".join("..." if re.search(r"\d{3}", name) else name for name in header[:30]))
        raise PlmError(
            f"'{path}' has no column {', '.join(repr(name) for name in missing)} (it has: {there})",
            remedy="check that this is the right file and version",
        )
    present = {name: by_lower[name] for name in columns if name in by_lower}
    ending = ending_of(path)
    if ending in NDJSON:
        # The first objects need not have every key; one that none has gives nulls.
        present = {name: by_lower.get(name, name) for name in columns}
    scan = scanned_parquet if ending == ".parquet" else scanned_ndjson if ending in NDJSON else scanned_csv
    scanned = scan(path, present, columns)
    absent = [pl.lit(None, dtype=columns[name]).alias(name) for name in columns if name not in present]
    return Part(path, scanned.with_columns(absent).select(list(columns)), 1 if ending in NDJSON else 2)
