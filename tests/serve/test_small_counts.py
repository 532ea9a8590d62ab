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
from patients_like_me.serve.bank_view import _change_in_words


@pytest.mark.parametrize(("having", "words"), [(3, "in fewer than 11 of all 33"), (15, "in 45.5 % of all")])
def test_a_rate_in_training_tells_no_small_count(having: int, words: str) -> None:
    happened = np.arange(33) < having
    scene: Any = SimpleNamespace(training_labels=happened)
    decision: Any = SimpleNamespace(happened=lambda labels, _: labels, event=lambda _: "came back")

    assert _training_rate(scene, decision, ()) == f"came back {words} training instances"


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
