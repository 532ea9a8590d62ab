"""A decision, its margin and what agrees with it belong together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from patients_like_me.errors import PlmError
from patients_like_me.explanation.decision import Decision, decision_for
from patients_like_me.tasks.registry import find_task

LABELS = ("A02B", "A10A", "B01A")
probabilities = some.lists(some.floats(0.001, 0.999), min_size=3, max_size=3).map(np.array)
decisions = some.sampled_from(
    [
        Decision(find_task("readmission"), ("no readmission", "readmission")),
        Decision(find_task("length_of_stay"), ("short", "middle", "long")),
        Decision(find_task("drug_recommendation"), LABELS, threshold=0.2),
        Decision(find_task("drug_recommendation"), LABELS, label=1, threshold=0.2),
    ]
)


@given(decisions, probabilities, probabilities)
def test_the_margin_says_when_a_decision_changes(decision: Decision, before: np.ndarray, after: np.ndarray) -> None:
    decided = decision.key(before)
    assert decision.margin(before, decided) >= 0
    margin = decision.margin(after, decided)
    if margin > 0:
        assert decision.key(after) == decided
    if margin < 0:
        assert decision.key(after) != decided


@given(decisions, probabilities)
def test_every_decision_can_be_said(decision: Decision, found: np.ndarray) -> None:
    assert decision.in_words(found)
    assert decision.question()
    probability = decision.probability(found)
    assert probability is None or probability in found


def test_yes_and_no() -> None:
    decision = Decision(find_task("readmission"), ("no readmission", "readmission"))
    assert decision.key(np.array([0.5])) == (1,)
    assert decision.in_words(np.array([0.49])) == "no readmission"
    assert decision.counted([1, 1, 0], (0,)) == "2 of 3 were readmitted"
    assert decision.counted([0, 1, 0], (0,)) == "1 of 3 was readmitted"
    assert decision.agrees(0, (0,))
    assert not decision.agrees(1, (0,))
    assert decision.outcome_in_words(1, (0,)) == "readmitted within 15 days"


def test_what_is_counted_as_agreeing_is_what_is_said() -> None:
    stay = Decision(find_task("length_of_stay"), ("short", "middle", "long", "very long"))
    assert stay.agrees(1, (0,))
    assert stay.agreed == "had the predicted class or an adjacent one"
    assert stay.disagreed == "whose class is neither the predicted one nor an adjacent one"
    assert Decision(find_task("readmission"), ("no", "yes")).agreed == "had the predicted outcome"
    assert Decision(find_task("drug_recommendation"), LABELS).agreed == "received at least half of the likely drugs"


def test_a_set_agrees_from_half_of_it_on() -> None:
    decision = Decision(find_task("drug_recommendation"), LABELS, threshold=0.2)
    assert decision.key(np.array([0.3, 0.1, 0.2])) == (0, 2)
    assert decision.agrees(np.array([1, 0, 0]), (0, 2))
    assert not decision.agrees(np.array([0, 1, 0]), (0, 2))
    assert decision.outcome_in_words(np.array([1, 1, 0]), (0, 2)) == "received 1 of 2 likely drugs and 1 other"
    assert decision.outcome_in_words(np.array([1, 0, 0]), (0, 2)) == "received 1 of 2 likely drugs and no other"


def test_one_drug() -> None:
    decision = decision_for(find_task("drug_recommendation"), LABELS, drug="a10a", names={"A10A": "Insulins"})
    assert decision.named(1) == "A10A (Insulins)"
    assert decision.counted([np.array([0, 1, 0]), np.array([1, 0, 0])], (1,)) == "1 of 2 received A10A (Insulins)"
    assert decision.happened(np.array([[0, 1, 0], [0, 0, 1]]), (1,)).tolist() == [True, False]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("readmission", {"drug": "A10A"}, "--drug means nothing"),
        ("drug_recommendation", {"drug": "Z99Z"}, "does not predict 'Z99Z'"),
        ("readmission", {"threshold": 1.5}, "between 0 and 1"),
    ],
)
def test_wrong_options_are_named(task: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(PlmError, match=message):
        decision_for(find_task(task), LABELS, **options)  # type: ignore[arg-type]
