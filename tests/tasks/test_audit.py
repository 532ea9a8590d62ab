"""The audit must pass on honest instances and catch every leak that is put into them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from patients_like_me.records.cohort import TIME, Cohort, Kind
from patients_like_me.records.small import cohort_of
from patients_like_me.tasks.audit import Audit, _impossible_times, audit_instances
from patients_like_me.tasks.audit_page import audit_page, shown_rates
from patients_like_me.tasks.audit_records import above_the_usual
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import all_tasks, find_task
from patients_like_me.tasks.task import TaskSettings

TASKS = all_tasks()

START = datetime(2150, 1, 1)


def hospital(**more: object) -> Cohort:
    return cohort_of(
        [
            {
                "subject_id": f"p{patient:02d}",
                "visit_id": f"p{patient:02d}v{n}",
                "admission_time": START + timedelta(days=20 * n + patient),
                # No field tells the stay: neither the place of the visit nor the patient.
                "discharge_time": START + timedelta(days=20 * n + patient + (n + patient) % 3),
                "diagnoses": ["1", str(patient)],
                "procedures": ["7"],
                "medications": [("A02B", START + timedelta(days=20 * n + patient)), ("B01A", None)],
            }
            for patient in range(20)
            for n in range(3)
        ],
        **more,  # type: ignore[arg-type]
    )


def verdict(audit: Audit, check: str) -> str:
    return next(finding.verdict for finding in audit.findings if finding.check == check)


def build(task: str, cohort: Cohort | None = None, **settings: str) -> Instances:
    return build_instances(cohort or hospital(), TASKS[task], find_task(task).settings(settings))


@pytest.mark.parametrize("task", list(TASKS))
@pytest.mark.parametrize("inputs", ["retrospective", "known"])
def test_honest_instances_pass(task: str, inputs: str) -> None:
    audit = audit_instances(build(task, inputs=inputs))
    assert audit.leaks == []
    page = audit_page(audit, hospital())
    # The sum of the page is as careful as its table: a warning is not a green light.
    assert ("No leak found" in page) == (not audit.warnings)
    assert ('class="sum warning"' in page) == bool(audit.warnings)
    assert "could\nnot be made" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_patient_in_two_splits_is_a_leak() -> None:
    instances = build("length_of_stay")
    moved = instances.frame.with_columns(
        pl.when(pl.col("instance") == 0)
        .then(pl.lit("test"))
        .when(pl.col("instance") == 1)
        .then(pl.lit("train"))
        .otherwise("split")
        .alias("split")
    )
    assert verdict(audit_instances(replace(instances, frame=moved)), "one split per patient") == "leak"


def test_a_target_code_in_the_input_is_a_leak() -> None:
    careless = replace(TASKS["drug_recommendation"], current_inputs=("diagnosis", "medication"))
    audit = audit_instances(build_instances(hospital(), careless))
    assert verdict(audit, "no target code in the input") == "leak"


def test_a_forbidden_list_in_the_prompt_is_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    instances = build("drug_recommendation")
    from patients_like_me.tasks import audit as module

    honest = module.parts_of_instances

    def careless(them: Instances, rows: list[int]) -> list[object]:
        return [replace(part, current={**part.current, "medication": ["x"]}) for part in honest(them, rows)]

    monkeypatch.setattr(module, "parts_of_instances", careless)
    assert verdict(audit_instances(instances), "no forbidden list in the prompt") == "leak"


@pytest.mark.parametrize("shift", [1, 3])
def test_a_later_visit_or_another_patient_in_the_input_is_a_leak(shift: int) -> None:
    instances = build("length_of_stay")
    instances.__dict__["history"] = pl.DataFrame(
        {"instance": [0], "visit": [shift]}, schema={"instance": pl.UInt32, "visit": pl.UInt32}
    )
    assert verdict(audit_instances(instances), "no visit after the prediction") == "leak"


class SeesEverything(Instances):
    """Instances that forget what was known when."""

    def current_codes(self, kind: Kind) -> pl.DataFrame:
        retrospective = replace(self, settings=TaskSettings())
        return Instances(**retrospective.__dict__).current_codes(kind)


def test_inputs_after_the_prediction_are_a_leak() -> None:
    honest = build("length_of_stay", inputs="known")
    careless = SeesEverything(**{name: getattr(honest, name) for name in Instances.__dataclass_fields__})
    assert verdict(audit_instances(careless), "only what was known at prediction time") == "leak"


def test_an_earlier_visit_that_still_goes_on_is_a_leak() -> None:
    overlapping = cohort_of(
        [
            {
                "subject_id": "p",
                "visit_id": "a",
                "admission_time": START,
                "discharge_time": START + timedelta(days=9),
                "diagnoses": ["1"],
            },
            {
                "subject_id": "p",
                "visit_id": "b",
                "admission_time": START + timedelta(days=3),
                "discharge_time": START + timedelta(days=4),
            },
        ]
    )
    honest = build("length_of_stay", overlapping, inputs="known")
    assert verdict(audit_instances(honest), "only what was known at prediction time") == "cannot be checked"
    honest.__dict__["history"] = pl.DataFrame(
        {"instance": [1], "visit": [0]}, schema={"instance": pl.UInt32, "visit": pl.UInt32}
    )
    assert verdict(audit_instances(honest), "only what was known at prediction time") == "leak"


def test_an_own_label_that_is_an_input_code_is_a_leak() -> None:
    rows = [{"subject_id": str(n), "visit_id": str(n), "order": 0, "diagnoses": ["108", "5"]} for n in range(10)]
    cohort = cohort_of(rows, labels=[(str(n), "main", "108" if n % 2 else "7") for n in range(10)])
    audit = audit_instances(build_instances(cohort, find_task("main", cohort)))
    assert verdict(audit, "no target code in the input") == "leak"


def test_visits_out_of_order_are_a_leak() -> None:
    cohort = hospital()
    swapped = cohort.visits.with_columns(
        pl.when(pl.col("visit") == 0)
        .then(pl.lit(START + timedelta(days=900)))
        .otherwise("admission_time")
        .alias("admission_time")
    )
    audit = audit_instances(build("drug_recommendation", replace(cohort, visits=swapped)))
    assert verdict(audit, "visits in time order") == "leak"


def test_a_visit_after_death_is_a_leak() -> None:
    audit = audit_instances(build("length_of_stay", hospital(deaths={"p00": START + timedelta(days=5)})))
    assert verdict(audit, "no visit after death") == "leak"


@pytest.mark.parametrize("task", ["readmission", "length_of_stay"])
def test_a_wrong_label_is_a_leak(task: str) -> None:
    instances = build(task)
    labels = instances.labels.copy()
    labels[0] = 1 - labels[0]
    assert verdict(audit_instances(replace(instances, labels=labels)), "labels recomputed") == "leak"


def test_a_vocabulary_beyond_training_is_a_leak() -> None:
    instances = build("drug_recommendation")
    labels = np.hstack([instances.labels, np.zeros((len(instances), 1), dtype=np.int64)])
    labels[instances.rows_of("test")[0], -1] = 1
    wider = replace(instances, labels=labels, label_vocabulary=(*instances.label_vocabulary, "Z99Z"))
    assert verdict(audit_instances(wider), "vocabulary from training patients") == "leak"


def test_impossible_times_and_duplicates_are_warnings() -> None:
    cohort = cohort_of(
        [
            {
                "subject_id": "p",
                "visit_id": "a",
                "admission_time": START,
                "discharge_time": START + timedelta(days=5),
            },
            {
                "subject_id": "p",
                "visit_id": "b",
                "admission_time": START,
                "discharge_time": START + timedelta(days=9),
            },
        ]
    )
    audit = audit_instances(build("length_of_stay", cohort))
    assert verdict(audit, "impossible times") == "warning"
    assert verdict(audit, "duplicate visits") == "warning"
    undated = replace(
        cohort,
        visits=cohort.visits.with_columns(
            pl.lit(None, TIME).alias("admission_time"), pl.lit(None, TIME).alias("discharge_time")
        ),
    )
    found = _impossible_times(replace(build("length_of_stay", cohort), cohort=undated))
    assert found.meaning.endswith("cannot be checked, because the records have no dates of admission and discharge")
    assert audit.leaks == []


@pytest.mark.parametrize(("codes", "verdict", "found"), [(12, "warning", 10), (2, "cannot be checked", 0)])
def test_equal_inputs_in_two_splits_are_counted_unless_they_are_short(codes: int, verdict: str, found: int) -> None:
    same = cohort_of(
        [
            {
                "subject_id": str(n),
                "visit_id": str(n),
                "admission_time": START,
                "discharge_time": START,
                "diagnoses": [str(code) for code in range(codes)],
            }
            for n in range(10)
        ]
    )
    finding = next(f for f in audit_instances(build("length_of_stay", same)).findings if f.check.startswith("equal"))
    assert (finding.verdict, finding.found) == (verdict, found)


def rated(split: str, instances: int, positives: int, clock: str = "admission", **more: int) -> dict[str, object]:
    """Return a row of the label rates; there are as many patients as instances unless said otherwise."""
    counts = [[instances - positives, instances - positives], [positives, positives]]
    row = {"clock": clock, "split": split, "instances": instances, "patients": instances, **more}
    return {
        **row,
        "label rate": positives / instances,
        "shown": f"{positives / instances:.1%}",
        "of each class": counts,
    }


def audit_with(*rows: dict[str, object]) -> Audit:
    return Audit("readmission", "a title", {}, label_rates=list(rows))


def test_a_rate_that_gives_a_small_count_away_is_hidden() -> None:
    shown = shown_rates(audit_with(rated("train", 500, 60), rated("validation", 200, 3), rated("test", 200, 195)))
    assert shown == [
        ["admission", "train", "500", "500", "12.0%"],
        ["admission", "validation", "200", "200", "hidden"],
        ["admission", "test", "200", "200", "hidden"],
    ]


def test_a_small_split_takes_another_one_with_it() -> None:
    """The total is on the page: one hidden split alone could be worked out."""
    shown = shown_rates(audit_with(rated("train", 500, 60), rated("validation", 9, 3), rated("test", 90, 30)))
    assert [row[2:] for row in shown] == [
        ["500", "500", "12.0%"],
        ["fewer than 11", "fewer than 11", "hidden"],
        ["hidden", "hidden", "hidden"],
    ]


def test_two_clocks_that_differ_by_few_are_not_both_shown() -> None:
    rows = [rated(split, 500, 60 + more, clock) for clock, more in (("admission", 0), ("discharge", 4))
            for split in ("train", "validation", "test")]  # fmt: skip
    assert [row[-1] for row in shown_rates(audit_with(*rows))] == ["12.0%"] * 3 + ["hidden"] * 3


def test_a_few_that_are_usual_are_not_counted_by_their_share() -> None:
    assert above_the_usual(3, 1000, "things") == (0, "things (a few, fewer than 11, which is usual)")
    assert above_the_usual(15, 1000, "things") == (0, "things (a few, 1.50%, which is usual)")


def test_the_page_fits_a_narrow_screen() -> None:
    page = audit_page(audit_instances(build("readmission")), hospital())
    assert '<meta name="viewport"' in page
    # Every table is in a box that scrolls by itself.
    assert page.count('<div class="wide') == page.count("<table>") == page.count("</table></div>") == 3
    assert ".wide { overflow-x: auto }" in page


def test_label_rates_are_given_per_split_and_clock() -> None:
    rates = audit_instances(build("readmission")).label_rates
    assert {(row["clock"], row["split"]) for row in rates} == {
        (clock, split) for clock in ("admission", "discharge") for split in ("train", "validation", "test")
    }
    assert sum(row["instances"] for row in rates if row["clock"] == "admission") == 40
