"""A cohort is compared with what was noted when it was prepared, and with its source where that is given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from patients_like_me.files import digest_of_file, read_json, sealed, write_json
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.tasks.audit_findings import Finding
from patients_like_me.tasks.audit_provenance import as_its_source_says, counts_as_noted
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

VISITS = ["subject_id,visit_id,admission_time,discharge_time"] + [
    f"p{patient},p{patient}v{number},2150-{1 + number:02d}-{1 + patient:02d},2150-{1 + number:02d}-{3 + patient:02d}"
    for patient in range(20)
    for number in range(2)
]
EVENTS = ["visit_id,kind,code"] + [f"p{patient}v{number},diagnosis,I10" for patient in range(20) for number in range(2)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, lines in (("visits", VISITS), ("events", EVENTS)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def cohort(source: Path, tmp_path: Path) -> Path:
    return prepare("tables", source, tmp_path / "cohort").folder


def changed(folder: Path, table: str, change: Callable[[pl.DataFrame], pl.DataFrame], **about: Any) -> Cohort:
    """Change a table and seal the cohort again, so that no digest tells."""
    path = folder / f"{table}.parquet"
    change(pl.read_parquet(path)).write_parquet(path)
    content = {**read_json(folder / "cohort.json", what="cohort"), **about}
    content["digests"][path.name] = digest_of_file(path)
    write_json(folder / "cohort.json", sealed(content))
    return Cohort.load(folder)


def noted(cohort: Cohort) -> Finding:
    return counts_as_noted(build_instances(cohort, find_task("length_of_stay", cohort)))


def test_an_honest_cohort_is_what_was_noted_and_what_its_source_says(cohort: Path, source: Path) -> None:
    loaded = Cohort.load(cohort)
    assert noted(loaded).verdict == "passed"
    assert as_its_source_says(loaded, [str(source)]).verdict == "passed"
    # What was prepared for the comparison is gone.
    assert sorted(path.name for path in cohort.parent.iterdir()) == ["cohort", "source"]


def test_rows_that_were_removed_are_a_leak(cohort: Path) -> None:
    found = noted(changed(cohort, "diagnoses", lambda table: table.head(-5)))
    assert (found.verdict, found.found) == ("leak", 2)
    assert "conditions per patient" in found.meaning


def test_times_that_were_moved_are_a_leak(cohort: Path, source: Path) -> None:
    """All counts stay as they were; a new fingerprint hides it from all but the source."""
    later = pl.col("discharge_time") + pl.duration(days=10)
    moved = changed(cohort, "visits", lambda table: table.with_columns(later))
    assert "the fingerprint of the tables" in noted(moved).meaning
    found = as_its_source_says(moved, [str(source)])
    assert found.verdict == "leak"
    assert found.meaning.endswith("(visits)")


def test_another_source_is_named(cohort: Path, source: Path) -> None:
    (source / "events.csv").write_text("\n".join(EVENTS[:-1]) + "\n")
    found = as_its_source_says(Cohort.load(cohort), [str(source)])
    assert found.verdict == "warning"
    assert "files.events.csv.bytes is" in found.meaning
