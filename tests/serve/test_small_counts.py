"""Counts under 11 that one place of a page hides cannot be worked out from another."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra 'serve' is not installed")

from patients_like_me.explanation.evidence import Evidence, TiedDiagnosis
from patients_like_me.explanation.support import _training_rate
from patients_like_me.plain_text import about_count
from patients_like_me.serve.bank_view import _change_in_words, _outcomes


@pytest.mark.parametrize(("having", "words"), [(3, "in fewer than 11 of all 33"), (15, "in 45.5 % of all")])
def test_a_rate_in_training_tells_no_small_count(having: int, words: str) -> None:
    happened = np.arange(33) < having
    scene: Any = SimpleNamespace(training_labels=happened)
    decision: Any = SimpleNamespace(happened=lambda labels, _: labels, event=lambda _: "came back", ordered=False)

    assert _training_rate(scene, decision, ()) == f"came back {words} visits that the model learned from"


@pytest.mark.parametrize(("near", "words"), [(20, ""), (35, ", this class or an adjacent one in 50.0 %")])
def test_days_of_a_stay_are_compared_with_adjacent_ones_too(near: int, words: str) -> None:
    """What makes a prediction well supported has its comparison, unless the difference tells a small count."""
    labels = np.repeat([0, 1, 5], [15, near - 15, 70 - near])
    decision: Any = SimpleNamespace(
        happened=lambda given, _: given == 0,
        event=lambda _: "1 day",
        ordered=True,
        agrees=lambda label, _: bool(label <= 1),
    )

    said = _training_rate(SimpleNamespace(training_labels=labels), decision, (0,))  # type: ignore[arg-type]
    assert said == f"1 day in 21.4 % of all visits that the model learned from{words}"


def test_all_days_of_a_stay_are_listed_in_their_order() -> None:
    rates = [SimpleNamespace(outcome=str(day), rate=None if day == 3 else day / 100) for day in range(10)]
    summary: Any = SimpleNamespace(outcomes=rates)

    def listed(*, ordered: bool) -> list[str]:
        task = SimpleNamespace(ordered=ordered, kind=SimpleNamespace(name="multiclass"))
        model: Any = SimpleNamespace(run=SimpleNamespace(task=task), names={}, label_names={})
        return [name for name, _ in _outcomes(model, summary)]

    assert listed(ordered=True) == [str(day) for day in range(10)]
    assert listed(ordered=False) == ["9", "8", "7", "6", "5", "4", "2", "1"]


def test_ties_tell_no_small_count() -> None:
    scene: Any = SimpleNamespace(training_labels=np.zeros(100))
    ties = (TiedDiagnosis("1", "a", 11, 3 / 11, 3.0), TiedDiagnosis("2", "b", 40, 0.5, 2.0))

    shown = Evidence(scene, ties, "came back", 0.25).as_json()
    assert shown["rate_in_training"] == 0.25
    assert [(tie["rate"], tie["lift"]) for tie in shown["diagnoses"]] == [(None, None), (0.5, 2.0)]
    hidden = Evidence(scene, ties, "came back", 0.09).as_json()
    assert hidden["rate_in_training"] is None
    assert [tie["lift"] for tie in hidden["diagnoses"]] == [None, None]


def test_a_total_beside_a_hidden_change_is_rough() -> None:
    row = {"action": "add", "made": datetime(2024, 5, 1), "instances": 3, "references": 1203, "remark": ""}
    words = _change_in_words(row, about_count)
    assert words == "2024-05-01: fewer than 11 visits joined; about 1,200 since then"
