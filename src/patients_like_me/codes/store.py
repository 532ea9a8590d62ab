"""Where installed code tables are kept: a folder with one Parquet file per table and ``installed.json``.

``installed.json`` names the Parquet file of each table, so writing it is the one step that makes an
installation visible: until then the old tables stay in use, and a failed ``add`` leaves nothing behind.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PolarsError

from patients_like_me.codes import recognise
from patients_like_me.codes.code_tables import installable_table
from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.codes.hcup import ICD_TABLES, package_of
from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, read_json, sha256_of_file, write_json
from patients_like_me.folders import user_folder

_INDEX = "installed.json"
_FORMAT = 1


@dataclass(frozen=True)
class Source:
    """One file that a table was built from."""

    file: str
    size: int
    sha256: str
    rows: int
    added: str


@dataclass(frozen=True)
class AddedTable:
    """What one ``add`` did to one table."""

    table: str
    rows: int
    rows_without_value: int
    entries: int


@dataclass(frozen=True)
class AddReport:
    """What ``add`` installed, and sentences on what the file lacked."""

    added: list[AddedTable]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CodeStore:
    """The installed code tables of one folder; pass it to whatever maps codes.

    >>> import tempfile
    >>> store = CodeStore(Path(tempfile.mkdtemp()) / "codes")
    >>> store.table("icd9proc_ccs") is None, store.folder.exists()
    (True, False)
    """

    folder: Path

    @classmethod
    def default(cls) -> CodeStore:
        """Return this user's store: ``PLM_CODES`` where it is set, else the platform's user data folder."""
        return cls(user_folder("codes", "PLM_CODES"))

    def table(self, name: str) -> pl.DataFrame | None:
        """Return an installed table, or None where it is not installed."""
        columns = installable_table(name).columns
        entry = self._index().get(name)
        if entry is None:
            return None
        path = self.folder / str(entry["parquet"])
        try:
            frame = pl.read_parquet(path, glob=False) if sha256_of_file(path) == entry["sha256"] else None
        except (PolarsError, OSError):
            frame = None
        if frame is None:
            raise PlmError(
                f"the installed code table '{path}' is missing or damaged",
                remedy=f"install it again with: plm codes add FILE --replace --as {name}",
            )
        return frame.select(columns)

    def sources(self, name: str) -> list[Source]:
        """Return the files that an installed table was built from."""
        installable_table(name)
        return [Source(**source) for source in self._index().get(name, {}).get("sources", [])]

    def entries(self, name: str) -> int:
        """Return the number of rows of an installed table; 0 where it is not installed."""
        installable_table(name)
        return int(self._index().get(name, {}).get("entries", 0))

    def provenance(self) -> dict[str, Any]:
        """Return, ready for JSON, what maps codes here: package versions and installed files with hashes."""
        packages = {package for table in ICD_TABLES if (package := package_of(table))}
        return {
            "packages": {package: version(package) for package in sorted(packages)},
            "installed": {
                table: {"entries": entry["entries"], "sha256": entry["sha256"], "sources": entry["sources"]}
                for table, entry in sorted(self._index().items())
            },
        }

    def add(self, path: Path, *, replace: bool = False, table: str | None = None) -> AddReport:
        """Recognise a file or folder, bring it into one form and install it.

        A second file of the same table adds to the first, and wins where one code can have only one category;
        ``replace`` drops what was there. ``table`` says what the file is where its columns leave that open.
        """
        if table is not None:
            installable_table(table)
        found = recognise.read_any(path, table=table)
        index = dict(self._index())
        today = datetime.now(UTC).date().isoformat()
        added, written = [], []
        try:
            for part in found.tables:
                source = Source(path.name, found.size, found.sha256, part.frame.height, today)
                earlier = None if replace else self.table(part.table)
                entry = self._write(part, earlier)
                written.append(self.folder / entry["parquet"])
                kept = [] if replace else [old for old in self.sources(part.table) if old.sha256 != source.sha256]
                index[part.table] = entry | {"sources": [asdict(each) for each in [*kept, source]]}
                added.append(AddedTable(part.table, part.frame.height, part.rows_without_value, int(entry["entries"])))
            write_json(self.folder / _INDEX, {"format": _FORMAT, "tables": index})
        except BaseException:
            self._remove_except({str(entry["parquet"]) for entry in self._index().values()}, among=written)
            raise
        self._remove_except({str(entry["parquet"]) for entry in index.values()})
        return AddReport(added, found.notes)

    def _write(self, part: ParsedTable, earlier: pl.DataFrame | None) -> dict[str, Any]:
        """Write the union of earlier and new rows under a name of its own; return the entry for the index."""
        known = installable_table(part.table)
        columns = known.columns
        frame = part.frame.select(columns)
        if earlier is not None:
            frame = pl.concat([earlier, frame])
        frame = frame.unique(columns[0] if known.one_value_per_code else None, keep="last", maintain_order=True).sort(
            columns
        )
        content = hashlib.sha256(frame.write_csv().encode()).hexdigest()
        parquet = f"{part.table}-{content[:12]}.parquet"
        with atomic_file(self.folder / parquet) as temporary:
            frame.write_parquet(temporary)
        digest = sha256_of_file(self.folder / parquet)
        return {"parquet": parquet, "entries": frame.height, "sha256": digest}

    def _index(self) -> Mapping[str, Any]:
        path = self.folder / _INDEX
        if not path.exists():
            return {}
        content = read_json(path, what="list of installed code tables")
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise PlmError(
                f"the list of installed code tables '{path}' was written by another version of plm",
                remedy="remove the folder and install the tables again",
            )
        tables = content.get("tables")
        if not isinstance(tables, dict) or not all(_is_entry(entry) for entry in tables.values()):
            raise PlmError(
                f"the list of installed code tables '{path}' is damaged",
                remedy="remove the folder and install the tables again",
            )
        return tables

    def _remove_except(self, used: set[str], *, among: list[Path] | None = None) -> None:
        for path in self.folder.glob("*.parquet") if among is None else among:
            if path.name not in used:
                path.unlink(missing_ok=True)


def _is_entry(entry: object) -> bool:
    """Tell whether an entry of the index has what is needed to read its table and to say where it is from."""
    if not isinstance(entry, dict):
        return False
    sources, names = entry.get("sources"), {part.name for part in fields(Source)}
    return (
        isinstance(entry.get("parquet"), str)
        and isinstance(entry.get("entries"), int)
        and isinstance(entry.get("sha256"), str)
        and isinstance(sources, list)
        and all(isinstance(source, dict) and source.keys() == names for source in sources)
    )
