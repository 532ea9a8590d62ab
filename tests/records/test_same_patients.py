"""The same patients through several forms: equal cohorts, and every difference is one of the form.

The differences that are expected here are those that docs/meds.md and docs/fhir.md explain.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.cohort import KINDS, Cohort, Kind
from patients_like_me.records.forms.form import find_form
from patients_like_me.records.prepare import prepare
from patients_like_me.records.synthetic import write_synthetic_hospital
from patients_like_me.tasks.audit import audit
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings

FORMS = ("meds", "fhir")


@pytest.fixture(scope="module")
def demo(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cohort]:
    """Return the MIMIC-IV demo through every form in which it is on this machine."""
    folder = tmp_path_factory.mktemp("demo")
    store = CodeStore(folder / "codes")
    store.add(shared_data / "codes" / "icd9proc_to_ccs.csv.gz")
    sources = {"mimic4": "mimic4_demo", "meds": "mimic4_demo_meds", "fhir": "mimic4_demo_fhir"}
    return {
        name: Cohort.load(prepare(name, shared_data / source, folder / name, store=store).folder)
        for name, source in sources.items()
    }


def by_admission(cohort: Cohort, table: pl.DataFrame) -> pl.DataFrame:
    """Name the visits of a table by patient and admission, which every form has."""
    names = cohort.visits.join(cohort.patients.select("subject", "subject_id"), on="subject")
    return table.join(names.select("visit", "subject_id", "admission_time"), on="visit").drop("visit")


def codes(cohort: Cohort, kind: Kind) -> pl.DataFrame:
    return by_admission(cohort, cohort.codes[kind]).select("subject_id", "admission_time", "code", "time")


def rows_in_visits(cohort: Cohort, kind: Kind) -> int:
    assert cohort.folder is not None
    maps = json.loads((cohort.folder / "coverage.json").read_text())
    return sum(row["rows"] for row in maps if row["map"].startswith(kind))


def test_golden_figures_of_the_demo(demo: dict[str, Cohort]) -> None:
    assert {cohort.visits.height for cohort in demo.values()} == {275}
    assert {rows_in_visits(cohort, "diagnosis") for cohort in demo.values()} == {4506}
    assert [rows_in_visits(demo[name], "procedure") for name in ("mimic4", "fhir", "meds")] == [722, 722, 721]
    assert demo["fhir"].about["rows_without_visit"]["MimicCondition.ndjson.gz and 1 more"] == 545
    assert demo["meds"].about["rows_without_visit"] == {"events.parquet": 122}


@pytest.mark.parametrize("form", FORMS)
def test_patients_and_visits_are_equal(demo: dict[str, Cohort], form: str) -> None:
    ours, theirs = demo[form], demo["mimic4"]
    assert (ours.patients.height, ours.visits.height) == (100, 275)
    assert ours.patients.select("subject_id", "sex").equals(theirs.patients.select("subject_id", "sex"))
    columns = ["subject", "position", "admission_time", "discharge_time", "next_admission_time", "age", "died"]
    assert ours.visits.select(columns).equals(theirs.visits.select(columns))


@pytest.mark.parametrize("form", FORMS)
def test_labels_are_equal(demo: dict[str, Cohort], form: str) -> None:
    for task, settings in (("readmission", None), ("length_of_stay", None)):
        ours, theirs = (build_instances(demo[name], find_task(task), settings) for name in (form, "mimic4"))
        assert ours.frame["visit"].equals(theirs.frame["visit"])
        assert np.array_equal(ours.labels, theirs.labels)
    stays = build_instances(demo[form], find_task("length_of_stay")).labels
    assert np.bincount(stays).tolist() == [30, 25, 32, 25, 28, 26, 17, 16, 50, 26]


@pytest.mark.parametrize("form", FORMS)
def test_diagnoses_are_equal(demo: dict[str, Cohort], form: str) -> None:
    ours, theirs = (codes(demo[name], "diagnosis").drop("time") for name in (form, "mimic4"))
    assert ours.sort(ours.columns).equals(theirs.sort(ours.columns))


#: In both, in MIMIC-IV's tables only, in the other form only: distinct codes of visits.
DIFFERENCES = {
    ("fhir", "procedure"): (531, 0, 0),
    ("meds", "procedure"): (527, 4, 0),
    ("fhir", "medication"): (5936, 0, 166),
    ("meds", "medication"): (5700, 236, 2),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["procedure", "medication"])
def test_procedures_and_medications_differ_as_the_form_says(demo: dict[str, Cohort], form: str, kind: Kind) -> None:
    keys = ["subject_id", "admission_time", "code"]
    ours, theirs = (codes(demo[name], kind) for name in (form, "mimic4"))
    found = (
        ours.join(theirs, on=keys).height,
        theirs.join(ours, on=keys, how="anti").height,
        ours.join(theirs, on=keys, how="anti").height,
    )
    assert found == DIFFERENCES[form, kind]
    if kind == "medication":
        same_time = pl.col("time").eq_missing(pl.col("time_right"))
        assert ours.join(theirs, on=keys).filter(same_time).height == {"fhir": 4958, "meds": 5525}[form]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
def test_no_leak_in_the_demo(demo: dict[str, Cohort], form: str, inputs: str) -> None:
    for task in ("readmission", "length_of_stay", "drug_recommendation"):
        settings = TaskSettings.model_validate({"inputs": inputs})
        assert audit(demo[form], find_task(task), settings).leaks == []


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cohort]:
    """Return a synthetic hospital through every form."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic_hospital(folder / "hospital", patients=60, seed=3, compress=False)
    made = {}
    for name in ("mimic4", *FORMS):
        source = folder / "hospital"
        if name != "mimic4":
            find_form(name).write(folder / "hospital", folder / name)
            source = folder / name
        made[name] = Cohort.load(prepare(name, source, folder / f"{name}-cohort", store=CodeStore(folder / "c")).folder)
    return made


@pytest.mark.parametrize("form", FORMS)
def test_a_synthetic_hospital_is_the_same_in_every_form(synthetic: dict[str, Cohort], form: str) -> None:
    ours, theirs = synthetic[form], synthetic["mimic4"]
    assert ours.about["synthetic"]
    assert ours.patients.equals(theirs.patients)
    # FHIR keeps insurance apart from patients; MEDS dates diagnoses at the discharge.
    left_out = {"fhir": ["insurance"], "meds": []}[form]
    assert ours.visits.drop(left_out).equals(theirs.visits.drop(left_out))
    for kind in KINDS:
        columns = ["visit", "code"] if (form, kind) == ("meds", "diagnosis") else ["visit", "code", "time"]
        assert ours.codes[kind].select(columns).equals(theirs.codes[kind].select(columns)), kind
    assert ours.vocabulary.equals(theirs.vocabulary)
