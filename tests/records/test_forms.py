"""The synthetic hospital through several doors: the same cohort, as far as a form carries it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import KINDS, Cohort
from patients_like_me.records.forms.form import all_forms
from patients_like_me.records.forms.synthetic import write_synthetic_hospital_as
from patients_like_me.records.prepare import prepare
from patients_like_me.records.synthetic import write_synthetic_hospital

#: What a form has no place for, by the column of the visits.
LOST = {"tables": (), "omop": ("insurance", "language", "marital_status")}


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms")
    write_synthetic_hospital(folder / "mimic4", patients=150, seed=3, compress=False)
    return folder


@pytest.fixture(scope="module")
def native(hospital: Path) -> Cohort:
    return through(hospital, "mimic4")


def through(hospital: Path, form: str) -> Cohort:
    """Write the hospital in a form and read it again."""
    if form != "mimic4":
        all_forms()[form].write(hospital / "mimic4", hospital / form)
    out = hospital / f"{form}-cohort"
    return Cohort.load(prepare(form, hospital / form, out, store=CodeStore(hospital / "codes")).folder)


@pytest.mark.parametrize("form", list(LOST))
def test_the_cohort_is_the_same(hospital: Path, native: Cohort, form: str) -> None:
    cohort = through(hospital, form)
    for name, table in native.tables().items():
        expected = table
        if name == "visits":
            expected = table.with_columns(pl.lit(None, pl.String).alias(column) for column in LOST[form])
        assert_frame_equal(cohort.tables()[name], expected)
    assert cohort.about["synthetic"]
    # A hash is of the bytes of all tables; a form that loses something has another one.
    assert (cohort.about["hash"] == native.about["hash"]) == (not LOST[form])


def test_eicu_carries_stays_without_dates(hospital: Path, native: Cohort) -> None:
    """No dates, no order within a year, no ICD procedures: all else is the same, visit by visit."""
    cohort = through(hospital, "eicu")
    stay = (pl.col("discharge_time") - pl.col("admission_time")).alias("stay")
    columns = ["visit_id", "subject_id", "sex", stay, "age", "died", "ethnicity"]
    seen, expected = (
        each.visits.join(each.patients, on="subject").select(columns).sort("visit_id") for each in (cohort, native)
    )
    assert_frame_equal(seen, expected)
    for kind in KINDS:
        since = (pl.col("time") - pl.col("admission_time")).alias("since")
        first, second = (
            each.codes[kind]
            .join(each.visits, on="visit")
            .select("visit_id", "code", *([since] if kind == "medication" else []))
            .sort("visit_id", "code")
            for each in (cohort, native)
        )
        assert_frame_equal(first, second.clear() if kind == "procedure" else second)
    assert cohort.unordered


def test_a_form_is_chosen_on_the_command_line(tmp_path: Path) -> None:
    out = tmp_path / "hospital"
    done = CliRunner().invoke(app, ["synthesize", "--patients", "5", "--form", "omop", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert (out / "visit_occurrence.parquet").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["hospital"]
    with pytest.raises(PlmError, match="there is no form 'fax'; choose one of mimic4, eicu"):
        write_synthetic_hospital_as("fax", tmp_path / "other")
    with pytest.raises(PlmError, match="exists already"):
        write_synthetic_hospital_as("omop", out)
