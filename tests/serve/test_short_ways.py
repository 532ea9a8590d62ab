"""The short ways of a server give what the long ways give: newcomers without files, one instance without frames."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patients_like_me.model.batching import TOKENS_AT_ONCE, TokenizedPrompts
from patients_like_me.records.newcomers import Newcomer, cohort_of_newcomers
from patients_like_me.records.newcomers_at_once import QuickReader
from patients_like_me.tasks.instances import instances_to_predict
from patients_like_me.tasks.one_instance import diagnosis_set_of_one, instance_to_predict, parts_of_one, seen_by_one
from patients_like_me.tasks.prompts import parts_of_instances
from patients_like_me.tasks.registry import find_task

READER = QuickReader()
CODES = {
    "diagnoses": ["I50.9", "icd9:428.0", "ccs:108", "own:My own", "icd10: e11.9", "E11.9", "nonsense"],
    "procedures": ["5A1D70Z", "icd9:39.95", "own:bath"],
    "medications": ["furosemide 40 mg", "atc:C03CA01", "own:cure", "Sterile Water", "unheard of"],
}
DAYS = st.none() | st.dates(date(2020, 1, 1), date(2020, 3, 1)).map(str)


@st.composite
def visits(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {name: draw(st.lists(st.sampled_from(codes), max_size=4)) for name, codes in CODES.items()}
    came, left = draw(DAYS), draw(DAYS)
    found |= {"admission": came, "discharge": left if came is None or left is None or left >= came else came}
    found["age"] = draw(st.none() | st.integers(0, 100))
    return found


PEOPLE = st.fixed_dictionaries(
    {"visits": st.lists(visits(), min_size=1, max_size=3)},
    optional={
        "id": st.sampled_from(["ada", "007", "x-1"]),
        "age": st.integers(0, 130),
        "sex": st.sampled_from(["F", "male", "other", "M"]),
        "insurance": st.sampled_from(["Medicare", "private one"]),
        "ethnicity": st.just("WHITE"),
    },
)


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(person=PEOPLE)
def test_a_cohort_made_at_once_is_the_prepared_one(person: dict[str, Any]) -> None:
    quick = READER.cohort_of([Newcomer.model_validate(person)])
    if quick is None:
        # Visits whose dates disagree with their order: the long way refuses them.
        with pytest.raises(Exception, match="order"):
            cohort_of_newcomers(person)
        return
    # Whether a procedure of ICD-9 is known depends on the tables that are installed: both ways must say the same.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        expected = cohort_of_newcomers(person)
    for name, table in quick[0].tables().items():
        assert table.equals(expected.tables()[name]), (name, table, expected.tables()[name])
    assert bool(quick[1]) == bool(said)
    unknown = {code for visit in person["visits"] for code in visit["diagnoses"] + visit["medications"]}
    if unknown & {"nonsense", "unheard of"}:
        assert quick[1]


@pytest.mark.parametrize(
    "person",
    [
        {"id": " ada", "visits": [{}]},
        {"id": "12.0", "visits": [{}]},
        {"sex": "F\n", "visits": [{}]},
        {"visits": [{"diagnoses": ["nosuch:1"]}]},
        {"visits": [{"diagnoses": [" "]}]},
        {"visits": [{"admission": "2020-01-02T10:00:00Z"}]},
        {"visits": [{"admission": "2020-01-02", "discharge": "2020-01-01"}]},
        {"visits": [{"id": "a1"}, {"id": "A1"}]},
        {"visits": [{"id": "a1"}, {"id": "a01"}]},
        {"visits": [{"id": "a-b-1"}, {"id": "a-b-01"}]},
        {"id": "nan", "visits": [{}]},
        {"id": "N/A", "visits": [{}]},
        {"visits": [{"id": "null"}]},
        {"insurance": "NULL", "visits": [{}]},
        {"sex": "nan", "visits": [{}]},
    ],
)
def test_what_is_out_of_the_ordinary_is_left_to_the_long_way(person: dict[str, Any]) -> None:
    assert READER.cohort_of([Newcomer.model_validate(person)]) is None


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(person=PEOPLE, task=st.sampled_from(["readmission", "length_of_stay", "drug_recommendation"]), data=st.data())
def test_one_instance_sees_what_frames_would_show(person: dict[str, Any], task: str, data: st.DataObject) -> None:
    quick = READER.cohort_of([Newcomer.model_validate(person)])
    if quick is None:
        return
    chosen = find_task(task)
    cohort = quick[0]
    # Drugs with times, some of them after the prediction.
    codes = cohort.codes["medication"]
    times = data.draw(st.lists(st.none() | st.datetimes(), min_size=codes.height, max_size=codes.height))
    timed = codes.with_columns(pl.Series("time", times, dtype=codes.schema["time"]))
    cohort = replace(cohort, codes={**cohort.codes, "medication": timed})
    wanted = {"inputs": data.draw(st.sampled_from(["known", "retrospective"])), "prompt": "brief"}
    instances = instances_to_predict(cohort, chosen, chosen.settings(wanted))

    at_once = instance_to_predict(cohort, chosen, chosen.settings(wanted))
    assert at_once.frame.schema == instances.frame.schema
    assert at_once.frame.equals(instances.frame)
    assert at_once.labels.shape == instances.labels.shape
    assert (at_once.task.words, at_once.settings) == (instances.task.words, instances.settings)
    seen = seen_by_one(instances)
    for kind, rows in seen.items():
        assert rows == instances.inputs(kind).select("visit", "code").rows()
    assert parts_of_one(instances, seen).write() == parts_of_instances(instances)[0].write()
    one, expected = diagnosis_set_of_one(instances, seen), instances.diagnosis_sets
    assert (one.vocabulary, one.of(0), one.instance_ids) == (expected.vocabulary, expected.of(0), expected.instance_ids)
    for name in ("indptr", "codes", "patients", "splits", "sexes", "ages"):
        assert getattr(one, name).tolist() == getattr(expected, name).tolist(), name


def test_codes_that_another_thread_forgot_meanwhile_are_mapped_again() -> None:
    reader = QuickReader()

    class Forgetful:
        def __enter__(self) -> None:
            reader._mapped = {}

        def __exit__(self, *_: object) -> None:
            pass

    people = [Newcomer.model_validate({"visits": [{"diagnoses": codes}]}) for codes in (["I10"], ["I10", "I50.9"])]
    assert reader.cohort_of(people[:1]) is not None
    reader._lock = Forgetful()  # type: ignore[assignment]
    found = reader.cohort_of(people[1:])
    assert found is not None
    assert found[0].codes["diagnosis"].height == 2


def test_one_thread_computes_on_all_cores_and_every_later_one_alone() -> None:
    """More threads than cores would put one another to sleep between two layers; a child shows it undisturbed."""
    child = """
import threading, torch
from patients_like_me.serve.turns import READING, let_one_thread_team_up
torch.set_num_threads(2)
let_one_thread_team_up()
print(READING.submit(torch.get_num_threads).result())
later = threading.Thread(target=lambda: print(torch.get_num_threads()))
later.start(), later.join()
"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "1"]


def test_texts_of_many_lengths_have_few_shapes() -> None:
    shapes = set()
    for length in range(1, 200):
        prompts = TokenizedPrompts.from_lists([list(range(1, length + 1))], multiple=TOKENS_AT_ONCE, longest=190)
        ids, mask = prompts.padded(np.array([0]))
        assert int(mask.sum()) == length
        assert ids[mask].tolist() == list(range(1, length + 1))
        # A backbone has no places beyond its longest text.
        assert ids.shape[1] <= max(length, 190)
        shapes.add(ids.shape[1])
    assert shapes == {*range(16, 190, 16), *range(190, 200)}
