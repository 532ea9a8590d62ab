"""Prompts: the paper's fields, the budget, and what is cut first."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.small import cohort_of
from patients_like_me.tasks.catalogue.readmission import ReadmissionSettings
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.prompts import PromptParts, fit_to_budget, write_prompts
from patients_like_me.tasks.registry import all_tasks
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.tasks.tokens import packaged_token_counter

TASKS = all_tasks()


def count_words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


@pytest.fixture
def cohort() -> Cohort:
    return cohort_of(
        [
            {
                "subject_id": "p",
                "visit_id": f"v{n}",
                "order": n,
                "insurance": "Medicare",
                "ethnicity": "WHITE",
                "diagnoses": [f"d{n}"],
                "procedures": [f"p{n}"],
                "medications": [f"m{n}"],
            }
            for n in range(3)
        ],
        labels=[(f"v{n}", task, "1") for n in range(3) for task in ("readmission", "length_of_stay")],
    )


def prompt(cohort: Cohort, task: str, row: int, form: Literal["paper", "brief"] = "paper") -> str:
    instances = build_instances(cohort, TASKS[task], TaskSettings(prompt=form))
    return write_prompts(instances, count_words, budget=10_000, rows=[row]).texts[0]


def test_the_fields_of_the_template(cohort: Cohort) -> None:
    """The paper's appendix, section by section; only what stands between angle brackets there is filled in."""
    demographics = (
        "Demographics: Insurance: medicare; Language: not recorded; Religion: not recorded; "
        "Marital status: not recorded; Ethnicity: white."
    )
    history = [
        "The patient has 2 ICU visits.",
        "In visit 1, diagnoses: diagnosis d0; procedures: procedure p0; medications: medication m0.",
    ]
    current = "Current visit: diagnoses: diagnosis d1; procedures: procedure p1"
    readmission = [
        f"{current}; medications: medication m1.",
        (
            "Task: Predict whether the patient will be readmitted within 15 days after the current visit. Choose exactly one "
            "class from {0,1}, where 0 = no readmission within 15 days and 1 = readmission within 15 days."
        ),
        "Output format: A single class label in {0,1}.",
    ]
    stay = [
        f"{current}; medications: medication m1.",
        (
            "Task: Predict the ICU length-of-stay (LOS) category for the current visit. Choose exactly one class from "
            "{0,1,2,3,4,5,6,7,8,9}, where: 0: LOS < 1 day; 1: LOS = 1 day; 2: LOS = 2 days; 3: LOS = 3 days; "
            "4: LOS = 4 days; 5: LOS = 5 days; 6: LOS = 6 days; 7: LOS = 7 days; 8: LOS = 8-14 days; 9: LOS >= 15 days."
        ),
        "Output format: A single class label in {0,1,2,3,4,5,6,7,8,9}.",
    ]
    drugs = [
        f"{current}.",
        (
            "Task: Predict the medications to prescribe for the current visit. Output a multi-label set of 3-level ATC "
            "codes. Choose any number of codes from the medication vocabulary. Note that a patient may have multiple "
            "medications."
        ),
        "Output format: A multi-label set of ATC level-3 codes.",
    ]
    for task, rest in (("readmission", readmission), ("length_of_stay", stay), ("drug_recommendation", drugs)):
        assert prompt(cohort, task, 1).splitlines() == [demographics, *history, *rest]


def test_the_brief_form_has_what_is_recorded_and_no_question(cohort: Cohort) -> None:
    aged = replace(
        cohort,
        patients=cohort.patients.with_columns(sex=pl.lit("F")),
        visits=cohort.visits.with_columns(age=pl.lit(61, dtype=pl.Int16)),
    )
    expected = (
        "Patient: age 61, sex f, insurance medicare, ethnicity white.\n"
        "Hospital visits so far: 2.\n"
        "Visit 1: diagnoses: diagnosis d0; procedures: procedure p0; medications: medication m0.\n"
        "Current visit: diagnoses: diagnosis d1; procedures: procedure p1; medications: medication m1."
    )
    assert prompt(aged, "readmission", 1, "brief") == expected


def test_the_brief_form_takes_the_age_of_the_current_visit(cohort: Cohort) -> None:
    ages = pl.Series("age", [50, 51, 52], dtype=pl.Int16)
    aged = replace(cohort, visits=cohort.visits.with_columns(ages))
    assert [prompt(aged, "readmission", row, "brief")[:15] for row in range(3)] == [
        "Patient: age 50",
        "Patient: age 51",
        "Patient: age 52",
    ]


@pytest.mark.parametrize("form", ["paper", "brief"])
def test_a_prompt_does_not_change_with_what_comes_later(cohort: Cohort, form: Literal["paper", "brief"]) -> None:
    changed = replace(
        cohort,
        visits=cohort.visits.with_columns(
            insurance=pl.when(pl.col("visit") == 2).then(pl.lit("Changed")).otherwise(pl.col("insurance")),
            died=pl.col("visit") == 2,
        ),
        codes={
            kind: table.with_columns(code=pl.when(pl.col("visit") == 2).then(pl.lit("other")).otherwise(pl.col("code")))
            for kind, table in cohort.codes.items()
        },
    )
    for task in TASKS:
        assert prompt(changed, task, 1, form) == prompt(cohort, task, 1, form)


@pytest.mark.parametrize("form", ["paper", "brief"])
def test_the_current_medications_are_in_no_drug_prompt(cohort: Cohort, form: Literal["paper", "brief"]) -> None:
    for row in range(3):
        text = prompt(cohort, "drug_recommendation", row, form)
        assert f"medication m{row}" not in text
        assert "medications:" not in text.split("Current visit:")[1].split("Task:")[0]
        assert f"diagnosis d{row}" in text


def test_known_inputs_say_that_nothing_is_known_yet(cohort: Cohort) -> None:
    instances = build_instances(cohort, TASKS["length_of_stay"], TaskSettings(inputs="known"))
    assert "Current visit: no codes are known yet." in write_prompts(instances, count_words).texts[2]


def test_the_window_is_in_the_question(cohort: Cohort) -> None:
    instances = build_instances(cohort, TASKS["readmission"], ReadmissionSettings(window_days=30))
    assert "within 30 days" in write_prompts(instances, count_words).texts[0]


def test_whole_earliest_visits_go_first(cohort: Cohort) -> None:
    instances = build_instances(cohort, TASKS["readmission"])
    whole = write_prompts(instances, count_words, budget=10_000).tokens[2]
    prompts = write_prompts(instances, count_words, budget=int(whole) - 1)
    assert prompts.visits_cut.tolist() == [0, 0, 1]
    assert "In visit 1," not in prompts.texts[2]
    assert "In visit 2, diagnoses: diagnosis d1" in prompts.texts[2]
    assert prompts.summary()["visits_cut"] == 1


PARTS = st.builds(
    PromptParts,
    demographics=st.just("Insurance: none."),
    earlier=st.lists(
        st.fixed_dictionaries(
            {
                "diagnosis": st.lists(st.just("one two"), max_size=30),
                "medication": st.lists(st.just("pill"), max_size=30),
            }
        ),
        max_size=6,
    ),
    current=st.fixed_dictionaries(
        {
            "diagnosis": st.integers(0, 3000).map(lambda n: [f"code {i}" for i in range(n)]),
            "procedure": st.integers(0, 40).map(lambda n: [f"step {i}" for i in range(n)]),
        }
    ),
    question=st.just("What next?"),
    answer=st.just("One word."),
)


@settings(max_examples=60, deadline=None)
@given(PARTS, st.integers(25, 400))
def test_every_prompt_keeps_the_budget_and_its_current_visit(part: PromptParts, budget: int) -> None:
    text, tokens, visits_cut, codes_cut = fit_to_budget(part, count_words, budget)
    assert tokens == count_words([text])[0] <= budget
    assert "Current visit:" in text
    assert text.endswith("Task: What next?\nOutput format: One word.")
    assert text.count("\nIn visit ") == len(part.earlier) - visits_cut
    written = text.split("Current visit:")[1]
    kept = {kind: written.count(word) for kind, word in (("diagnosis", "code "), ("procedure", "step "))}
    assert sum(kept.values()) == sum(len(codes) for codes in part.current.values()) - codes_cut
    if codes_cut:
        assert visits_cut == len(part.earlier)
        assert abs(kept["diagnosis"] - kept["procedure"]) <= abs(
            len(part.current["diagnosis"]) - len(part.current["procedure"])
        )
    elif visits_cut:
        longer = part.write(skip_visits=visits_cut - 1)
        assert count_words([longer])[0] > budget


def test_a_budget_below_the_question_is_refused() -> None:
    part = PromptParts("none.", [], {"diagnosis": ["a"]}, "A question of seven words, is it?", "Answer.")
    with pytest.raises(PlmError, match="too small for a prompt"):
        fit_to_budget(part, count_words, 5)


def test_the_packaged_tokenizer_does_not_truncate() -> None:
    count = packaged_token_counter()
    assert count(["word " * 2_000])[0] == 2_002
