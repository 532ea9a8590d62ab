"""Forty-six ways in which an answer gets into the inputs, planted into an honest cohort of drawn patients.

``PLANTS`` is the table: a name, the checks that must find it, the task that leaks, and a change to the rows, the labels
or the finished cohort. In at least forty the audit must name a leak or warn, by a check of that leak's kind; what no
audit can know is in the table, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.small import cohort_of
from patients_like_me.tasks.audit import audit
from patients_like_me.tasks.registry import find_task

Row = dict[str, Any]
Label = tuple[str, str, str]
START = datetime(2150, 1, 1)
DRUGS = ("C03C", "A10A", "B01A", "N02B", "J01C", "A02B")


def honest_rows(patients: int = 120, seed: int = 0) -> list[Row]:
    """Return visits with codes, drugs and stays drawn at random, except that some codes of a patient stay."""
    draw = np.random.default_rng(seed)
    rows = []
    for patient in range(patients):
        day, chronic = int(draw.integers(0, 300)), draw.choice(60, 3, replace=False)
        for number in range(int(draw.integers(2, 5))):
            admitted = START + timedelta(days=day, hours=int(draw.integers(0, 24)))
            stay = timedelta(hours=int(draw.integers(10, 300)))
            codes = {*chronic.tolist(), *draw.choice(60, 6, replace=False).tolist()}
            rows.append(
                {
                    "subject_id": f"p{1000 + patient}",
                    "visit_id": f"p{1000 + patient}v{number}",
                    "admission_time": admitted,
                    "discharge_time": admitted + stay,
                    "age": int(draw.integers(30, 90)),
                    "insurance": str(draw.choice(["public", "private"])),
                    "religion": str(draw.choice(["one", "other"])),
                    "site": str(draw.choice(["north", "south"])),
                    "unit": str(draw.choice(["ward", "clinic"])),
                    "diagnoses": [f"d{code}" for code in sorted(codes)],
                    "procedures": [(f"q{code}", admitted + stay / 2) for code in draw.choice(20, 3, replace=False)],
                    "medications": [(drug, admitted + timedelta(hours=2)) for drug in DRUGS if draw.random() < 0.4]
                    or [("N02B", admitted)],
                }
            )
            day += stay.days + int(draw.integers(2, 60))
    return rows


def drawn_labels(rows: list[Row], seed: int = 5) -> list[Label]:
    draw = np.random.default_rng(seed)
    return [(row["visit_id"], "outcome", str(int(draw.random() < 0.4))) for row in rows]


@dataclass(frozen=True)
class Plant:
    """One leak. ``each`` changes a row by its label, ``all`` the rows, ``cohort`` the finished cohort."""

    name: str
    #: The checks of which one must find it; none where no audit can know: the sentence in every audit says so.
    checks: tuple[str, ...]
    task: str = "outcome"
    each: Callable[[Row, bool], None] | None = None
    all: Callable[[list[Row]], list[Row]] | None = None
    cohort: Callable[[Cohort], Cohort] | None = None
    inputs: str = "retrospective"
    #: Visits of each patient that are kept: what tells in the present visit need not tell in the whole history.
    visits: int = 9

    @property
    def is_knowable(self) -> bool:
        return bool(self.checks)


def _add(kind: str, code: str) -> Callable[[Row, bool], None]:
    def plant(row: Row, positive: bool) -> None:
        if positive:
            row[kind] = [*row[kind], code]

    return plant


def _many_codes(prefix: str, other: str, kind: str = "diagnoses") -> Callable[[Row, bool], None]:
    def plant(row: Row, positive: bool) -> None:
        number = int(hashlib.sha256(row["visit_id"].encode()).hexdigest(), 16) % 997
        row[kind] = [*row[kind], f"{prefix if positive else other}{number}"]

    return plant


def _field(field: str, yes: str, no: str) -> Callable[[Row, bool], None]:
    def plant(row: Row, positive: bool) -> None:
        row[field] = yes if positive else no

    return plant


def _age(row: Row, positive: bool) -> None:
    row["age"] = row["age"] // 2 * 2 + int(positive)


def _old(row: Row, positive: bool) -> None:
    row["age"] = 80 if positive else 40


def _fewer(kind: str) -> Callable[[Row, bool], None]:
    def plant(row: Row, positive: bool) -> None:
        row[kind] = row[kind][: 1 if positive else 3]

    return plant


def _noisy_code(row: Row, positive: bool) -> None:
    """A code that nearly all positives have, and one negative in fifty."""
    number = int(hashlib.sha256(row["visit_id"].encode()).hexdigest(), 16) % 100
    if (positive and number < 98) or (not positive and number < 2):
        row["diagnoses"] = [*row["diagnoses"], "lk1"]


def _weak_code(row: Row, positive: bool) -> None:
    """A code that a true sign could be: twice as frequent among positives."""
    number = int(hashlib.sha256(row["visit_id"].encode()).hexdigest(), 16) % 100
    if number < (40 if positive else 20):
        row["diagnoses"] = [*row["diagnoses"], "lk2"]


def _two_codes(row: Row, positive: bool) -> None:
    """Two codes of which each alone says nothing: their parity is the label."""
    first = int(hashlib.sha256(row["visit_id"].encode()).hexdigest(), 16) % 2
    for code, has in (("x1", first), ("x2", first ^ int(positive))):
        if has:
            row["diagnoses"] = [*row["diagnoses"], code]


def _next_codes(kind: str, *, move: bool = False, bare: bool = False) -> Callable[[list[Row]], list[Row]]:
    def plant(rows: list[Row]) -> list[Row]:
        for row, after in zip(rows, [*rows[1:], rows[0]], strict=True):
            if row["subject_id"] == after["subject_id"]:
                row[kind] = list(after[kind]) if move else [*row[kind], *(c for c in after[kind] if c not in row[kind])]
            elif bare:
                row[kind] = []
        return rows

    return plant


def _stay_in(field: str, unit: int) -> Callable[[list[Row]], list[Row]]:
    def plant(rows: list[Row]) -> list[Row]:
        for row in rows:
            number = int((row["discharge_time"] - row["admission_time"]).total_seconds() // unit)
            if field == "procedures":
                row[field] = [*row[field], f"stay{number}"]
            else:
                row[field] = number if field == "age" else f"plan {number}"
        return rows

    return plant


def _stay_in_the_count(rows: list[Row]) -> list[Row]:
    for row in rows:
        days = (row["discharge_time"] - row["admission_time"]).days
        row["procedures"] = [(f"day{n}", row["admission_time"] + timedelta(hours=1)) for n in range(days)]
    return rows


def _hidden_drug(text: str, drug: str = "C03C") -> Callable[[list[Row]], list[Row]]:
    def plant(rows: list[Row]) -> list[Row]:
        for row in rows:
            if any(code == drug for code, _ in row["medications"]):
                row["procedures"] = [*row["procedures"], text]
        return rows

    return plant


def _all_drugs_as_procedures(rows: list[Row]) -> list[Row]:
    for row in rows:
        row["procedures"] = [*row["procedures"], *(f"given {code}" for code, _ in row["medications"])]
    return rows


def _late_codes(kind: str, days: int) -> Callable[[list[Row]], list[Row]]:
    def plant(rows: list[Row]) -> list[Row]:
        for row in rows:
            row[kind] = [(code, row["discharge_time"] + timedelta(days=days)) for code, _ in row[kind]]
        return rows

    return plant


def _undated(kind: str) -> Callable[[list[Row]], list[Row]]:
    def plant(rows: list[Row]) -> list[Row]:
        for row in rows[::3]:
            row[kind] = [(code, None) for code, _ in row[kind]]
        return rows

    return plant


def _copies(change: str) -> Callable[[list[Row]], list[Row]]:
    def plant(rows: list[Row]) -> list[Row]:
        copies = []
        for row in rows:
            copy = {**row, "subject_id": f"x{row['subject_id']}9", "visit_id": f"x{row['visit_id']}9"}
            if change == "one more" and row["visit_id"].endswith("v0"):
                copy["diagnoses"] = [*row["diagnoses"], "d99"]
            if change == "one less" and row["visit_id"].endswith("v0"):
                copy["diagnoses"] = row["diagnoses"][1:]
            if change == "dates":
                copy["admission_time"] += timedelta(days=77)
                copy["discharge_time"] += timedelta(days=77)
            copies.append(copy)
        return [*rows, *copies]

    return plant


def _twins(rename: Callable[[str], str]) -> Callable[[list[Row]], list[Row]]:
    def plant(rows: list[Row]) -> list[Row]:
        twins = [
            {**row, "subject_id": rename(row["subject_id"]), "visit_id": f"{row['visit_id']}b"}
            for row in honest_rows(seed=3)
        ]
        return [*rows, *twins]

    return plant


def _death_and_return(rows: list[Row]) -> list[Row]:
    for row, after in pairwise(rows):
        if row["subject_id"] == after["subject_id"] and row["visit_id"].endswith("v0"):
            row["died"] = True
            break
    return rows


def _visits(**columns: pl.Expr) -> Callable[[Cohort], Cohort]:
    def plant(cohort: Cohort) -> Cohort:
        flow = {"flow": [{"name": "admitted before death", "visits": cohort.visits.height}]}
        return replace(cohort, visits=cohort.visits.with_columns(**columns), about=flow)

    return plant


def _names_tell(cohort: Cohort) -> Cohort:
    """Give the codes of positives, which are all different, a name that says so."""
    told = pl.when(pl.col("code").str.starts_with("ab")).then(pl.lit("Note: severe course")).otherwise("name")
    return replace(cohort, vocabulary=cohort.vocabulary.with_columns(told.alias("name")))


def _shuffled_positions(cohort: Cohort) -> Cohort:
    return replace(cohort, visits=cohort.visits.with_columns(pl.col("position").reverse().over("subject")))


def _after_death(cohort: Cohort) -> Cohort:
    early = pl.when(pl.col("subject") % 5 == 0).then(pl.lit(START - timedelta(days=1))).otherwise("death_time")
    return replace(cohort, patients=cohort.patients.with_columns(early.cast(pl.Datetime("us")).alias("death_time")))


def _shifted_all(rows: list[Row]) -> list[Row]:
    """Move all times of all tables alike: nothing in the data can show it."""
    for row in rows:
        for name in ("admission_time", "discharge_time"):
            row[name] += timedelta(days=3)
        for kind in ("procedures", "medications"):
            row[kind] = [(code, time + timedelta(days=3)) for code, time in row[kind]]
    return rows


DAY = 86_400
ALONE = ("no feature alone tells the label",)
WORDS = ("no label text in a field",)
DRUG = ("no drug under another name",)
# A code that holds the number of days is one of many with one beginning, and not a number.
STAY, STAY_CODE = ("the stay in no number",), ALONE
LATER = ("next visit's codes",)
COPIES = ("near-duplicate patients",)
NONE: tuple[str, ...] = ()
PLANTS: tuple[Plant, ...] = (
    # One feature alone tells.
    Plant("a procedure that only positives have", ALONE, each=_add("procedures", "zz9"), visits=1),
    Plant("a diagnosis that only positives have", ALONE, each=_add("diagnoses", "zz9"), visits=1),
    Plant("a drug that only negatives have", ALONE, each=lambda row, yes: _add("medications", "V03A")(row, not yes), visits=1),
    Plant("the same, in a history of several visits", ALONE, each=_add("procedures", "zz9")),
    Plant("a code with noise", ALONE, each=_noisy_code, visits=1),
    Plant("many codes with one beginning", ALONE, each=_many_codes("lk", "ok"), visits=1),
    Plant("many codes with one word in their name", ALONE, each=_many_codes("ab", "ac"), cohort=_names_tell, visits=1),
    Plant("a word of insurance", ALONE, each=_field("insurance", "public+", "public"), visits=1),
    Plant("the case of a site", ALONE, each=_field("site", "B", "a"), visits=1),
    Plant("a unit", ALONE, each=_field("unit", "palliative", "ward"), visits=1),
    Plant("a religion that is missing", ALONE, each=lambda row, yes: row.update(religion=None if yes else "one"), visits=1),
    Plant("an odd or even age", ALONE, each=_age, visits=1),
    Plant("an age group", ALONE, each=_old, visits=1),
    Plant("the number of diagnoses", ALONE, each=_fewer("diagnoses"), visits=1),
    Plant("the number of procedures", ALONE, each=_fewer("procedures"), visits=1),
    # The label's own words.
    Plant("label text in insurance", WORDS, each=_field("insurance", "outcome=1", "private")),
    Plant("label text in a site", WORDS, each=_field("site", "Outcome 1", "north")),
    Plant("label text in a code", WORDS, each=_add("diagnoses", "code of OUTCOME")),
    # Drugs under another name.
    Plant("a drug as a procedure, by ATC", DRUG, "drug_recommendation", all=_hidden_drug("c03ca01")),
    Plant("a drug as a procedure, by ATC-3", DRUG, "drug_recommendation", all=_hidden_drug("C03C")),
    Plant("a drug as a procedure, by name", DRUG, "drug_recommendation", all=_hidden_drug("furosemide 40 mg")),
    Plant("a drug as a procedure, by brand", DRUG, "drug_recommendation", all=_hidden_drug("given: Lasix")),
    Plant("all drugs as procedures", DRUG, "drug_recommendation", all=_all_drugs_as_procedures),
    Plant("a drug as a diagnosis", DRUG, "drug_recommendation", all=lambda rows: [
        {**row, "diagnoses": [*row["diagnoses"], "B01AC06"]} if any(c == "B01A" for c, _ in row["medications"]) else row
        for row in rows
    ]),
    # The stay in a number.
    Plant("days of the stay as age", STAY, "length_of_stay", all=_stay_in("age", DAY)),
    Plant("days of the stay in insurance", STAY, "length_of_stay", all=_stay_in("insurance", DAY)),
    Plant("hours of the stay in a site", STAY, "length_of_stay", all=_stay_in("site", 3_600)),
    Plant("days of the stay in a code", STAY_CODE, "length_of_stay", all=_stay_in("procedures", DAY)),
    Plant("a code for every day of the stay", STAY, "length_of_stay", all=_stay_in_the_count),
    # What comes later.
    Plant("the next visit's diagnoses too", LATER, "readmission", all=_next_codes("diagnoses")),
    Plant("the next visit's diagnoses instead", LATER, "readmission", all=_next_codes("diagnoses", move=True)),
    Plant("the same, and none in the last", LATER, "readmission", all=_next_codes("diagnoses", move=True, bare=True)),
    Plant("the next visit's procedures", LATER, "readmission", all=_next_codes("procedures", move=True)),
    Plant("codes dated long after discharge", ("codes dated after discharge",), "length_of_stay", all=_late_codes("procedures", 300)),
    Plant("codes without a time", ("undated codes",), "readmission", all=_undated("procedures"), inputs="known"),
    # People in two splits.
    Plant("patients copied", COPIES, all=_copies("none")),
    Plant("patients copied with one code more", COPIES, all=_copies("one more")),
    Plant("patients copied with other dates", COPIES, all=_copies("dates")),
    Plant("patients again in upper case", ("similar ids in two splits",), all=_twins(str.upper)),
    # Derived columns.
    Plant("next admissions moved by ten days", ("next admission recomputed",), "readmission", cohort=_visits(
        next_admission_time=pl.col("next_admission_time") + pl.duration(days=10)
    )),
    Plant("visits numbered backwards", ("visits numbered in order",), "readmission", cohort=_shuffled_positions),
    Plant("a patient who died and comes back", ("no return after death",), "readmission", all=_death_and_return),
    Plant("visits after death", ("no visit after death",), "readmission", cohort=_after_death),
    # What no audit can know.
    Plant("a code that is twice as frequent among positives", NONE, each=_weak_code, visits=1),
    Plant("two codes whose parity is the label", NONE, each=_two_codes, visits=1),
    Plant("all times of all tables shifted alike", NONE, "readmission", all=_shifted_all),
)  # fmt: skip


def planted(plant: Plant, seed: int = 0, patients: int = 120) -> Cohort:
    """Return an honest cohort with the leak in it."""
    rows = honest_rows(patients, seed)
    rows = [row for row in rows if int(row["visit_id"].rpartition("v")[2]) < plant.visits]
    labels = drawn_labels(rows, seed + 5)
    if plant.each is not None:
        for row, (_, _, value) in zip(rows, labels, strict=True):
            plant.each(row, value == "1")
    if plant.all is not None:
        rows = plant.all(rows)
        known = {visit for visit, _, _ in labels}
        labels += drawn_labels([row for row in rows if row["visit_id"] not in known], seed + 6)
    made = cohort_of(rows, labels=labels)
    return made if plant.cohort is None else plant.cohort(made)


def alarms_of(plant: Plant, seed: int = 0, patients: int = 120) -> set[str]:
    """Return the checks that name a leak or warn; the sentence of a refusal, where there is one."""
    cohort = planted(plant, seed, patients)
    try:
        task = find_task(plant.task, cohort)
        result = audit(cohort, task, task.settings({"inputs": plant.inputs}))
    except PlmError as error:
        return {str(error)}
    return {finding.check for finding in result.findings if finding.verdict in ("leak", "warning")}


def is_caught(plant: Plant, seed: int = 0, patients: int = 120) -> bool:
    """Tell whether a check of the leak's own kind finds it; other alarms and refusals do not count."""
    return not alarms_of(plant, seed, patients).isdisjoint(plant.checks)
