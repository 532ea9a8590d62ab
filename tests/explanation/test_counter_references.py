"""Counter-references are the nearest that disagree; turning sets are the smallest that turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from patients_like_me.explanation.counter_references import counter_references, smallest_turning_set
from patients_like_me.explanation.decision import Decision, decision_for
from patients_like_me.explanation.scene import set_scene
from patients_like_me.runs.run import load_run
from patients_like_me.tasks.registry import find_task

YES_NO = Decision(find_task("readmission"), ("no", "yes"))


@given(some.lists(some.floats(-0.4, 0.4), min_size=1, max_size=6), some.floats(0.02, 0.98), some.integers(0, 99))
def test_a_set_of_up_to_three_is_the_smallest_there_is(effects: list[float], start: float, seed: int) -> None:
    pairs = np.random.default_rng(seed).uniform(-0.1, 0.1, (len(effects), len(effects)))

    def removal(gone: Sequence[int]) -> np.ndarray:
        both = sum(pairs[first, second] for first, second in combinations(sorted(gone), 2))
        return np.array([np.clip(start - sum(effects[node] for node in gone) + both, 0.001, 0.999)])

    decided = YES_NO.key(removal([]))
    turning = [
        size
        for size in range(1, len(effects) + 1)
        if any(YES_NO.key(removal(chosen)) != decided for chosen in combinations(range(len(effects)), size))
    ]
    found = smallest_turning_set(range(len(effects)), lambda sets: [removal(gone) for gone in sets], YES_NO, decided)
    if found is not None:
        assert YES_NO.key(removal(found.nodes)) != decided
        assert len(found.nodes) >= turning[0]
        if found.is_smallest:
            assert len(found.nodes) == turning[0]
    if turning and turning[0] <= 3:
        assert found is not None
        assert found.is_smallest


def test_none_is_said_where_nothing_turns() -> None:
    assert smallest_turning_set([1, 2], lambda sets: [np.array([0.9])] * len(sets), YES_NO, (1,)) is None
    assert smallest_turning_set([], lambda _: [], YES_NO, (1,)) is None


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_counter_references_are_the_nearest_training_patients_that_disagree(
    references: str, finished_run: Callable[..., Path]
) -> None:
    scene = set_scene(load_run(finished_run(references=references)))
    decision = decision_for(scene.task, scene.instances.label_vocabulary)
    train, labels = scene.training_rows, scene.instances.labels
    bank = scene.run.graph_bank.embeddings.astype(np.float64)
    sets = scene.instances.diagnosis_sets
    subjects = scene.instances.frame["subject"].to_numpy()
    for row in scene.own_rows[:6].tolist():
        node = scene.node_of_row(row)
        own = scene.embeddings[node].double().numpy()
        cosine = bank @ own / np.linalg.norm(bank, axis=1) / np.linalg.norm(own)
        for decided in ((0,), (1,)):
            found = counter_references(scene, node, decision, decided)
            assert {int(labels[item.row]) for item in found} == {1 - decided[0]}
            assert len({int(subjects[item.row]) for item in found}) == len(found) == 3
            own_codes = set(sets.of(row))
            near = [bool(own_codes & set(sets.of(int(other)))) for other in train]
            best = cosine[(labels[train] != decided[0]) & near].max()
            assert found[0].cosine == pytest.approx(best, abs=1e-9)
            assert [item.cosine for item in found] == sorted((item.cosine for item in found), reverse=True)
