"""Leaks that are planted into an honest cohort are found, and the honest cohort stays silent."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from attack.leaks import PLANTS, Plant, alarms_of, is_caught
from attack.leaks import honest_rows as rows_of

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.records.small import cohort_of
from patients_like_me.tasks.audit import Audit, audit
from patients_like_me.tasks.registry import find_task

Row = dict[str, Any]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_planted_leaks_are_found(plant: Plant) -> None:
    """By a check of their kind; those that no audit can know are in the table, so that nobody expects them found."""
    alarms = alarms_of(plant)
    assert (not alarms.isdisjoint(plant.checks)) if plant.is_knowable else (not alarms)


def test_an_alarm_of_another_kind_catches_no_leak() -> None:
    other = replace(next(plant for plant in PLANTS if plant.name == "patients copied"), checks=("undated codes",))
    assert alarms_of(other)
    assert not is_caught(other)


def test_the_table_of_leaks_has_46_of_which_40_or_more_are_found() -> None:
    assert len(PLANTS) == len({plant.name for plant in PLANTS}) == 46
    assert sum(plant.is_knowable for plant in PLANTS) >= 40


def label_of(rows: list[Row]) -> list[tuple[str, str, str]]:
    draw = np.random.default_rng(5)
    return [(row["visit_id"], "outcome", str(int(draw.random() < 0.4))) for row in rows]


def audited(rows: list[Row], task: str = "readmission", *, cohort: Cohort | None = None, **settings: str) -> Audit:
    made = cohort or cohort_of(rows, labels=label_of(rows))
    found = find_task(task, made)
    return audit(made, found, found.settings(settings))


def alarms(result: Audit) -> set[str]:
    return {finding.check for finding in result.findings if finding.verdict in ("leak", "warning")}


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation", "outcome"])
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_honest_cohort_stays_silent(task: str, inputs: str, seed: int) -> None:
    result = audited(rows_of(seed=seed), task, inputs=inputs)
    assert alarms(result) == set()
    assert "what several features tell only together" in result.notes[-1]


def changed(cohort: Cohort, **columns: pl.Expr) -> Cohort:
    return replace(cohort, visits=cohort.visits.with_columns(**columns))


@pytest.mark.parametrize("days", [10, -10])
def test_moved_next_admissions_are_a_leak(days: int) -> None:
    honest = cohort_of(rows_of())
    flow = {"flow": [{"name": "admitted before death", "visits": honest.visits.height}]}
    moved = changed(honest, next_admission_time=pl.col("next_admission_time") + pl.duration(days=days))
    assert "next admission recomputed" not in alarms(audited([], cohort=replace(honest, about=flow)))
    result = audited([], cohort=replace(moved, about=flow))
    assert {"next admission recomputed", "labels recomputed"} <= alarms(result)
    assert {finding.check for finding in result.leaks} >= {"next admission recomputed"}


def test_visits_that_a_filter_left_out_are_no_leak() -> None:
    honest = cohort_of(rows_of())
    early = (
        pl.when(pl.col("visit").is_in([0, 4]))
        .then(pl.col("next_admission_time") - pl.duration(hours=1))
        .otherwise("next_admission_time")
    )
    flow = {"flow": [{"name": "admitted before death", "visits": honest.visits.height + 2}]}
    filtered = replace(changed(honest, next_admission_time=early), about=flow)
    assert "next admission recomputed" not in alarms(audited([], cohort=filtered))


@pytest.mark.parametrize("column", ["position", "visit", "subject"])
def test_reversed_numbers_are_a_leak_and_no_traceback(column: str) -> None:
    honest = cohort_of(rows_of())
    order = pl.col(column).reverse().over("subject") if column == "position" else pl.col(column).reverse()
    broken = changed(honest, **{column: order})
    for task in ("readmission", "length_of_stay", "drug_recommendation"):
        result = audited([], task, cohort=broken)
        assert "visits numbered in order" in {finding.check for finding in result.leaks}
        assert "what several features tell only together" in result.notes[-1]


def test_dated_codes_of_the_next_visit_are_a_leak() -> None:
    rows = rows_of()
    for row, after in pairwise(rows):
        if row["subject_id"] == after["subject_id"]:
            row["procedures"] = after["procedures"]
    assert "codes in the visit of their time" in alarms(audited(rows))


def test_next_visits_diagnoses_in_the_present_one_are_found() -> None:
    rows = rows_of()
    for row, after in pairwise(rows):
        if row["subject_id"] == after["subject_id"]:
            row["diagnoses"] = sorted({*row["diagnoses"], *after["diagnoses"]})
    # The codes of the next visit were complete before they were copied.
    assert "next visit's codes" in alarms(audited(rows))


@pytest.mark.parametrize("last", ["kept", "bare"])
def test_diagnoses_moved_to_the_visit_before_are_found(last: str) -> None:
    rows = rows_of()
    for row, after in zip(rows, [*rows[1:], rows[0]], strict=True):
        if row["subject_id"] == after["subject_id"]:
            row["diagnoses"] = after["diagnoses"]
        elif last == "bare":
            row["diagnoses"] = []
    assert "next visit's codes" in alarms(audited(rows))


def test_a_return_after_death_is_a_leak() -> None:
    rows = rows_of()
    rows[0]["died"] = True
    assert rows[1]["subject_id"] == rows[0]["subject_id"]
    assert "no return after death" in {finding.check for finding in audited(rows).leaks}


def test_codes_after_discharge_are_named_under_retrospective_inputs() -> None:
    rows = rows_of()
    for row in rows:
        row["procedures"] = [(code, row["discharge_time"] + timedelta(days=300)) for code, _ in row["procedures"]]
    assert "codes dated after discharge" in alarms(audited(rows, "length_of_stay", inputs="retrospective"))


def test_undated_codes_under_known_inputs_are_named() -> None:
    rows = rows_of()
    for row in rows[::3]:
        row["procedures"] = [(code, None) for code, _ in row["procedures"]]
    assert "undated codes" in alarms(audited(rows, "readmission", inputs="known"))
    never = next(f for f in audited(rows_of(), "outcome", inputs="known").findings if f.check == "undated codes")
    assert never.verdict == "passed"


@pytest.mark.parametrize("change", ["none", "one more", "one less", "dates"])
def test_near_duplicate_patients_in_two_splits_are_found(change: str) -> None:
    rows = rows_of(60)
    copies = []
    for row in rows:
        copy = {**row, "subject_id": f"x{row['subject_id']}9", "visit_id": f"x{row['visit_id']}9"}
        if row["visit_id"].endswith("v0"):
            more = {"one more": [*row["diagnoses"], "d99"], "one less": row["diagnoses"][1:]}
            copy["diagnoses"] = more.get(change, row["diagnoses"])
        if change == "dates":
            copy["admission_time"] += timedelta(days=77)
            copy["discharge_time"] += timedelta(days=77)
        copies.append(copy)
    assert "near-duplicate patients" in alarms(audited([*rows, *copies]))


def test_similar_ids_in_two_splits_are_found() -> None:
    twins = [
        {**row, "subject_id": row["subject_id"].upper(), "visit_id": f"{row['visit_id']}b"} for row in rows_of(seed=3)
    ]
    assert "similar ids in two splits" in alarms(audited([*rows_of(), *twins]))


def plant_code(row: Row, label: str) -> None:
    if label == "1":
        row["procedures"] = [*row["procedures"], "zz9"]


def plant_many_codes(row: Row, label: str) -> None:
    row["diagnoses"] = [
        *row["diagnoses"],
        f"{'lk' if label == '1' else 'ok'}{zlib.crc32(row['visit_id'].encode()) % 997}",
    ]


def plant_field(row: Row, label: str) -> None:
    row["insurance"] = f"{row['insurance']}{label}"


def plant_age(row: Row, label: str) -> None:
    row["age"] = row["age"] // 2 * 2 + int(label)


def plant_site(row: Row, label: str) -> None:
    row["site"] = {"0": "A", "1": "b"}[label]


def plant_count(row: Row, label: str) -> None:
    row["diagnoses"] = row["diagnoses"][: 3 if label == "1" else 6]


def plant_absence(row: Row, label: str) -> None:
    if label == "0":
        row["medications"] = [*row["medications"], ("V03A", row["admission_time"])]


@pytest.mark.parametrize(
    "plant", [plant_code, plant_many_codes, plant_field, plant_age, plant_site, plant_count, plant_absence]
)
def test_one_feature_that_tells_the_label_is_found(plant: Callable[[Row, str], None]) -> None:
    rows = rows_of()
    labels = label_of(rows)
    for row, (_, _, label) in zip(rows, labels, strict=True):
        plant(row, label)
    # The codes of the current visit alone tell: earlier visits have their own.
    first = [row for row in rows if row["visit_id"].endswith("v0")]
    result = audited([], "outcome", cohort=cohort_of(first, labels=[x for x in labels if x[0].endswith("v0")]))
    finding = next(f for f in result.findings if f.check == "no feature alone tells the label")
    # A leak ends plm audit with exit code 1.
    assert finding in result.leaks
    assert "1 is perfect, 0.5 is chance, 0.99 or more is a leak" in finding.meaning
    found = re.search(r"AUROC of ([\d.]+) on validation with them and ([\d.]+) without", finding.meaning)
    assert found is not None
    # Without the count each code still tells a little: where a list was cut, many are missing.
    assert float(found[1]) > 0.85
    assert float(found[2]) < (0.95 if plant is plant_count else 0.75)


def test_the_regression_predicts_the_drug_that_a_feature_tells_and_leaves_out_all_forms_of_it() -> None:
    """A rare drug is told by a code; the same code in other letters, a little noisy, must be left out with it."""
    rows = rows_of(200)
    for number, row in enumerate(rows):
        if (has_it := number % 9 == 0) and row["medications"]:
            row["medications"] = [*row["medications"], ("H03A", row["admission_time"])]
            row["diagnoses"] = [*row["diagnoses"], "thy1"]
        if has_it != (number % 20 == 1):
            row["procedures"] = [*row["procedures"], "THY-1"]
    first = [row for row in rows if row["visit_id"].endswith("v0")]
    result = audited(first, "drug_recommendation", inputs="retrospective")
    meaning = next(f.meaning for f in result.leaks if f.check == "no feature alone tells the label")
    assert re.search(r"diagnosis thy1 tells H03A \(.+\): (1\.000|0\.99\d)", meaning)
    found = re.search(
        r"regression for H03A \(.+\) on training patients .* AUROC of ([\d.]+) .* and ([\d.]+) without", meaning
    )
    assert found is not None
    assert float(found[1]) > 0.95
    assert float(found[2]) < 0.75


def first_visits(patients: int, plant: Callable[[Row, bool, int], None]) -> Audit:
    """Audit the first visits of patients after something was planted by label and number."""
    rows = [row for row in rows_of(patients) if row["visit_id"].endswith("v0")]
    labels = label_of(rows)
    for number, (row, (_, _, label)) in enumerate(zip(rows, labels, strict=True)):
        plant(row, label == "1", number)
    return audited([], "outcome", cohort=cohort_of(rows, labels=labels))


def verdicts(result: Audit) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in result.findings}


def test_a_feature_that_is_nearly_perfect_is_a_warning_and_not_yet_a_leak() -> None:
    def noisy(row: Row, positive: bool, number: int) -> None:
        if positive != (number % 49 == 0):
            row["procedures"] = [*row["procedures"], "zz9"]

    assert verdicts(first_visits(300, noisy))["no feature alone tells the label"] == "warning"


@pytest.mark.parametrize(("share", "verdict"), [(4, "warning"), (40, "passed")])
def test_a_code_that_only_positives_have_is_found_with_its_numbers(share: int, verdict: str) -> None:
    """One in four positives has it: far too few to tell the label of all, and no negative does."""

    def rare(row: Row, positive: bool, number: int) -> None:
        if positive and number % share == 0:
            row["procedures"] = [*row["procedures"], "zz9"]

    result = first_visits(400, rare)
    assert verdicts(result)["no feature alone tells the label"] == "passed"
    finding = next(f for f in result.findings if f.check == "no code of one outcome alone")
    assert finding.verdict == verdict
    if verdict == "warning":
        assert re.search(r"procedure zz9: all of \d\d patients, [34]\d\.\d% in training", finding.meaning)


def test_a_value_that_only_positives_have_is_found_without_being_shown() -> None:
    def rare(row: Row, positive: bool, number: int) -> None:
        if positive and number % 4 == 0:
            row["unit"] = "hospice"

    finding = next(f for f in first_visits(400, rare).findings if f.check == "no code of one outcome alone")
    assert finding.verdict == "warning"
    assert "a value of 'unit': all of" in finding.meaning
    assert "hospice" not in finding.meaning


def test_a_code_that_mostly_positives_have_may_be_a_true_sign() -> None:
    def sign(row: Row, positive: bool, number: int) -> None:
        if number % 3 == 0 and (positive or number % 9 == 0):
            row["procedures"] = [*row["procedures"], "zz9"]

    assert alarms(first_visits(400, sign)) == set()


def test_a_field_that_tells_one_drug_is_a_leak() -> None:
    rows = rows_of()
    for row in rows:
        row["insurance"] = "plan b" if any(drug == "C03C" for drug, _ in row["medications"]) else "plan a"
    result = audited(rows, "drug_recommendation")
    assert "no feature alone tells the label" in {finding.check for finding in result.leaks}


def test_the_class_of_a_stay_in_a_code_is_found() -> None:
    rows = rows_of()
    for row in rows:
        row["procedures"] = [*row["procedures"], f"stay{(row['discharge_time'] - row['admission_time']).days}"]
    result = alarms(audited(rows, "length_of_stay", inputs="retrospective"))
    assert {"no feature alone tells the label", "the stay in no number"} & result


@pytest.mark.parametrize("unit", [86_400, 3_600])
@pytest.mark.parametrize("field", ["age", "insurance", "site"])
def test_the_stay_in_a_number_is_found(field: str, unit: int) -> None:
    rows = rows_of()
    for row in rows:
        number = int((row["discharge_time"] - row["admission_time"]).total_seconds() // unit)
        row[field] = number if field == "age" else f"plan {number}"
    assert "the stay in no number" in alarms(audited(rows, "length_of_stay"))


@pytest.mark.parametrize(
    ("text", "field"), [("outcome=1", "insurance"), ("Outcome 0", "site"), ("code of OUTCOME", "diagnoses")]
)
def test_label_text_in_a_field_is_found(text: str, field: str) -> None:
    rows = rows_of()
    rows[3][field] = [*rows[3][field], text] if field == "diagnoses" else text
    assert "no label text in a field" in alarms(audited(rows, "outcome"))


def test_a_label_of_many_pages_is_no_traceback() -> None:
    rows = rows_of()
    labels = [(visit, task, "x" * 200_000 if value == "1" else value) for visit, task, value in label_of(rows)]
    assert "no label text in a field" not in alarms(audited([], "outcome", cohort=cohort_of(rows, labels=labels)))


@pytest.mark.parametrize("hidden", ["c03ca01", "C03C", "furosemide 40 mg", "given: Lasix", "C03CA"])
def test_drugs_under_another_name_are_found(hidden: str) -> None:
    rows = rows_of()
    for row in rows:
        if any(drug == "C03C" for drug, _ in row["medications"]):
            row["procedures"] = [*row["procedures"], hidden]
    assert "no drug under another name" in alarms(audited(rows, "drug_recommendation"))


def test_checks_that_could_look_at_nothing_say_why() -> None:
    bare = cohort_of([{"subject_id": str(n), "visit_id": str(n), "order": 0} for n in range(40)], labels=[
        (str(n), "outcome", str(n % 2)) for n in range(40)
    ])  # fmt: skip
    findings = {finding.check: finding for finding in audited([], "outcome", cohort=bare).findings}
    for check in ("next admission recomputed", "codes in the visit of their time", "no return after death"):
        assert findings[check].verdict == "cannot be checked"
        assert "cannot be checked, because " in findings[check].meaning


@pytest.mark.parametrize(
    ("source", "folder", "task"),
    [("mimic4", "mimic4_demo", "readmission"), ("mimic4", "mimic4_demo", "drug_recommendation"),
     ("tables", "nhds2010", "length_of_stay")],
)  # fmt: skip
def test_real_records_raise_no_false_alarm(
    source: str, folder: str, task: str, shared_data: Path, tmp_path: Path
) -> None:
    store = CodeStore(tmp_path / "codes")
    for table in ("icd9proc_to_ccs", "icd10pcs_to_ccs"):
        store.add(shared_data / "codes" / f"{table}.csv.gz")
    made = prepare(source, shared_data / folder, tmp_path / "cohort", store=store).folder
    assert alarms(audited([], task, cohort=Cohort.load(made), inputs="retrospective")) == set()
