"""LEADER: alignment, distillation and the profile prompt held to plain numpy; the teacher sees training alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from systems.leak_checks import check_blind_to_test, with_a_leak
from tiny_visits import CHECKS, SIZES, evaluated, random_batch
from torch import nn

from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.leader import SYSTEM, Leader, LeaderSettings, distillation_loss, teacher_states
from patients_like_me.systems.problem import Problem, problem_of
from patients_like_me.systems.visit_layers import contrast
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

SMALL = {"width": 8, "heads": 2, "feed_forward": 12, "dropout": 0.0, "attention_dropout": 0.0}


def network(**changes: Any) -> Leader:
    torch.manual_seed(0)
    settings = LeaderSettings(**{**SMALL, **changes})
    return Leader(settings, SIZES, teacher_width=5, shows_medications=True)


def plain_contrast(first: np.ndarray, second: np.ndarray, temperature: float) -> np.ndarray:
    one = first / np.linalg.norm(first, axis=1, keepdims=True)
    other = second / np.linalg.norm(second, axis=1, keepdims=True)
    losses = []
    for row in range(len(one)):
        forth = np.array([one[row] @ each for each in other]) / temperature
        back = np.array([each @ other[row] for each in one]) / temperature
        losses.append((np.log(np.exp(forth).sum()) - forth[row] + np.log(np.exp(back).sum()) - back[row]) / 2)
    return np.array(losses)


def test_alignment_equals_plain_numpy() -> None:
    model, batch = network(temperature=0.5), random_batch(7, seed=2)
    targets = torch.zeros(7, SIZES.outputs)
    with torch.no_grad():
        found = model.alignment_loss(batch, targets).numpy()
        last = batch.visit_mask.sum(1) - 1
        sets = [set(batch.codes["medication"][row, last[row]].tolist()) - {0} for row in range(7)]
        present = [row for row in range(7) if sets[row]]
        assert 2 <= len(present) < 7
        profile = batch.demographics.numpy() @ model.profile.weight.numpy().T + model.profile.bias.numpy()
        profile = profile[present] @ model.of_profile.weight.numpy().T
        # One set at a time, alone in its batch and without padding.
        vectors = [model.encode("medication", torch.tensor([sorted(sets[row])]))[0].numpy() for row in present]
        medications = np.array(vectors) @ model.of_medications.weight.numpy().T
    expected = np.zeros(7)
    expected[present] = plain_contrast(profile, medications, 0.5)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    draw = np.random.default_rng(0)
    one, other = draw.normal(size=(4, 3)), draw.normal(size=(4, 3))
    np.testing.assert_allclose(
        contrast(torch.from_numpy(one), torch.from_numpy(other), 0.2), plain_contrast(one, other, 0.2), atol=1e-5
    )
    np.testing.assert_allclose(
        distillation_loss(torch.from_numpy(one), torch.from_numpy(other)), ((one - other) ** 2).mean(1), atol=1e-5
    )


def test_the_hidden_layer_equals_plain_numpy() -> None:
    """Set vectors are taken from the network one by one; sequence, profile and head are written out."""
    model, batch = network(), random_batch(5)
    with torch.no_grad():
        found = model(batch).numpy()
    for row in range(5):
        length, parts = int(batch.visit_mask[row].sum()), []
        for kind in ("diagnosis", "procedure", "medication"):
            visits = []
            for visit in range(length):
                codes = [code for code in batch.codes[kind][row, visit].tolist() if code]
                with torch.no_grad():
                    vector = model.encode(kind, torch.tensor([codes]))[0] if codes else torch.zeros(8)
                visits.append(vector.numpy())
            if kind == "medication":
                person = batch.demographics[row].numpy()
                visits.insert(0, model.profile.weight.detach().numpy() @ person + model.profile.bias.detach().numpy())
            states = torch.from_numpy(np.array(visits, dtype=np.float32))[None]
            with torch.no_grad():
                states = model.visit_blocks[0](states, torch.ones(1, len(visits), dtype=torch.bool))
            parts.append(states[0].numpy().mean(0))
        kept = {name: value.numpy() for name, value in model.state_dict().items()}
        hidden = kept["hidden.weight"] @ np.maximum(np.concatenate(parts), 0) + kept["hidden.bias"]
        expected = kept["output.weight"] @ np.maximum(hidden, 0) + kept["output.bias"]
        np.testing.assert_allclose(found[row], expected, atol=1e-5)


def check_gradients(model: nn.Module) -> None:
    """Every weight is used by the prediction, the distance to the teacher or the alignment."""
    assert isinstance(model, Leader)
    batch = random_batch(24)
    mediator = model.mediator(batch)
    loss = model.logits(mediator).square().mean() + model.projector(mediator).square().mean()  # type: ignore[misc]
    (loss + model.alignment_loss(batch, torch.zeros(24, SIZES.outputs)).mean()).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()] == []


@pytest.mark.parametrize("check", [*CHECKS[:-1], check_gradients])
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_medications_of_the_current_visit_stay_out_where_they_are_the_answer() -> None:
    model, batch = network(), random_batch(6)
    model.shows_medications = False
    hidden = batch.codes["medication"].clone()
    hidden[torch.arange(6), batch.visit_mask.sum(1) - 1] = 0
    without = replace(batch, codes={**batch.codes, "medication": hidden})
    assert torch.equal(evaluated(model, without), evaluated(model, batch))


@pytest.fixture(scope="module")
def problem(make_cohort: Callable[..., Path]) -> Problem:
    return problem_of(build_instances(Cohort.load(make_cohort(patients=24, seed=3)), find_task("drug_recommendation")))


def test_no_test_patient_teaches(problem: Problem, tiny_folder: Path) -> None:
    settings = LeaderSettings(
        backbone={"name": str(tiny_folder), "trainable_layers": 1},
        precision="float32",
        max_tokens=120,
        teacher_epochs=1,
        teacher_rate=0.003,
    )

    def states(given: Problem) -> list[Any]:
        return [teacher_states(given, RunContext(settings)).arrays["states"]]

    assert len(states(problem)[0]) == len(problem.train)
    check_blind_to_test(problem, states)
    with pytest.raises(AssertionError, match="records of test patients"):
        check_blind_to_test(problem, lambda given: states(with_a_leak(given)))


def test_without_a_teacher_it_has_another_name(problem: Problem) -> None:
    settings = LeaderSettings(**{**SMALL, "distillation": 0.0, "epochs": 1})
    assert SYSTEM.title_of(settings) == "LEADER[no-teacher]"
    fitted = SYSTEM.fit(problem, RunContext(settings))
    assert fitted.account.notes[0] == "without a teacher"
    assert not [name for name in fitted.arrays if name.startswith("projector")]
