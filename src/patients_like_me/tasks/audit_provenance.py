"""Checks of the audit against the cohort's provenance: what was noted when it was prepared, and the source itself.

Who moves a row or a column in a cohort, with all its digests, does not thereby change the source. Where the source is
given, the cohort is prepared from it once more, with the settings that were noted, and compared table by table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from patients_like_me.files import sha256_of_file
from patients_like_me.records.assemble import CohortSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.settings import differences_between
from patients_like_me.tasks.audit_findings import Finding, cannot_be_checked, finding
from patients_like_me.tasks.instances import Instances

#: Numbers with fractions are equal up to this share.
_ROUNDING: Final = 1e-9


def counts_as_noted(instances: Instances) -> Finding:
    """Compare patients, visits, codes and content with what ``cohort.json`` notes of the preparation."""
    name, meaning = "counts as noted when prepared", "numbers or tables that are not those noted when it was prepared"
    compared = list(_noted_and_found(instances.cohort))
    differing = [what for what, noted, found in compared if not _equal(noted, found)]
    meaning += f" ({', '.join(differing[:3])})" if differing else ""
    return finding(name, len(compared), len(differing), meaning, because="the cohort was not read from a folder")


def _noted_and_found(cohort: Cohort) -> Iterator[tuple[str, Any, Any]]:
    """Yield what is compared: its name, what was noted, and what is there."""
    about = cohort.about
    statistics = cohort.statistics()
    for what, noted in about.get("statistics", {}).items():
        yield what.replace("_", " "), noted, statistics.get(what)
    stations = about.get("flow") or []
    for what in ("patients", "visits"):
        left = [station[what] for station in stations if what in station]
        if left:
            yield f"{what} after the last filter", left[-1], int(statistics[what])
            yield f"{what} from filter to filter", left, sorted(left, reverse=True)
    if about.get("hash") and cohort.folder is not None:
        written = "".join(f"{table}:{sha256_of_file(cohort.folder / f'{table}.parquet')};" for table in cohort.tables())
        yield "the fingerprint of the tables", about["hash"], hashlib.sha256(written.encode()).hexdigest()


def _equal(noted: Any, found: Any) -> bool:
    if isinstance(noted, float) and isinstance(found, float | int):
        return abs(noted - found) <= _ROUNDING * max(1.0, abs(noted))
    return bool(noted == found)


def as_its_source_says(
    cohort: Cohort, folders: Sequence[str], report: Callable[[str], None] = lambda _: None
) -> Finding:
    """Prepare the cohort again from its source, in a folder that is removed, and compare all tables."""
    name, meaning = "the cohort as its source says", "tables that differ from those that the source gives"
    noted = cohort.about.get("identity")
    if not noted or cohort.folder is None:
        return cannot_be_checked(name, meaning, "the cohort was not read from a folder")
    # Beside the cohort, for the owner alone: it holds the same records.
    with TemporaryDirectory(prefix=".audit-", suffix=".partial", dir=cohort.folder.absolute().parent) as scratch:
        again = prepare(
            cohort.source,
            list(folders),
            Path(scratch) / "cohort",
            settings=CohortSettings.model_validate(noted["settings"]),
            reading=noted["reading"],
            report=report,
        )
        fresh = Cohort.load(again.folder)
    if differences := differences_between(noted, again.about["identity"]):
        because = f"it was prepared differently: {'; '.join(differences[:3])}"
        return Finding(name, "warning", 1, 1, f"{meaning}; cannot be compared, because {because}")
    tables, theirs = cohort.tables(), fresh.tables()
    differing = [table for table in tables if not tables[table].equals(theirs[table])]
    meaning += f" ({', '.join(differing)})" if differing else ""
    return finding(name, len(tables), len(differing), meaning)
