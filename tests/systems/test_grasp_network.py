"""GRASP: clusters, their graph and the gate held to plain numpy; evaluation does not depend on the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_visits import (
    CHECKS,
    SIZES,
    array,
    eight_instances,
    evaluated,
    fit,
    gru_states,
    head_logits,
    linear,
    random_batch,
    rows_of,
    sigmoid,
    visit_vectors,
)
from torch import nn

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.grasp import Grasp, GraspSettings, cluster_in_words, k_means, nearest_in_cluster
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

TRAINING = random_batch(40, seed=9)


def network(refreshes: int = 2, clusters: int = 5) -> Grasp:
    torch.manual_seed(0)
    settings = GraspSettings(embedding=8, hidden=10, clusters=clusters, neighbours=2, dropout=0.0)
    model = Grasp(settings, SIZES)
    for _ in range(refreshes):
        model.refresh_centres(model.states(TRAINING), seed=4)
    # Running statistics that differ from the start, so that the test sees them.
    model.norm.running_mean.fill_(0.1)
    model.norm.running_var.fill_(0.5)
    return model


@pytest.mark.parametrize("refreshes", [1, 2])
def test_clusters_graph_and_gate_equal_plain_numpy(refreshes: int) -> None:
    model, batch = network(refreshes), random_batch(6)
    logits, shown = evaluated(model, batch), model.choice(batch)
    centres = array(model.centres)
    distances = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    graph = np.eye(5)
    if refreshes > 1:
        for at in range(5):
            graph[at, np.argsort(distances[at])[:3]] = 1
        graph /= graph.sum(axis=1, keepdims=True)
    spread = np.maximum(graph @ linear(model.first_layer, centres), 0)
    meaning = np.maximum(graph @ linear(model.second_layer, spread), 0)

    for row in range(6):
        h = gru_states(model.gru.gru, visit_vectors(model.embedding.weights, batch, row))[-1]
        chosen = int(np.argmax(np.maximum(centres @ h, 0)))
        u = meaning[chosen]
        a, b = sigmoid(linear(model.cluster_gate, u))[0], sigmoid(linear(model.record_gate, h))[0]
        z = a / (a + b) * u + b / (a + b) * h
        normed = (z - 0.1) / np.sqrt(0.5 + model.norm.eps) * array(model.norm.weight) + array(model.norm.bias)
        np.testing.assert_allclose(array(logits[row]), head_logits(model.head, normed, batch, row), atol=1e-5)
        assert int(shown.cluster[row]) == chosen
        assert float(shown.share[row]) == pytest.approx(a / (a + b), abs=1e-5)


def test_k_means_agrees_with_scikit_learn() -> None:
    from sklearn.cluster import KMeans

    points = torch.randn(60, 3, generator=torch.Generator().manual_seed(2))
    start = points[:4]
    theirs = KMeans(4, init=start.numpy(), n_init=1, tol=0, algorithm="lloyd").fit(points.numpy())

    np.testing.assert_allclose(k_means(points, start, rounds=300).numpy(), theirs.cluster_centers_, atol=1e-5)


def test_centres_come_from_training_alone_and_evaluation_leaves_them() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluated(model, random_batch(6))
    model.choice(random_batch(6))

    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_without_centres_or_with_too_few_patients_it_refuses() -> None:
    with pytest.raises(PlmError, match="GRASP has no clusters yet"):
        evaluated(network(refreshes=0), random_batch(6))
    with pytest.raises(PlmError, match="cannot make 50 clusters of 40 training instances"):
        network(clusters=50)


def test_a_training_batch_may_be_smaller_than_the_number_of_clusters() -> None:
    model = network().train()

    assert model(rows_of(TRAINING, [0])).isfinite().all()
    assert model(rows_of(TRAINING, [0, 1, 2])).isfinite().all()


def test_similar_patients_are_the_nearest_of_the_same_cluster() -> None:
    model = network().eval()
    states, clusters = model.states(TRAINING).detach(), model.choice(TRAINING).cluster
    own = int(clusters[3])
    found = nearest_in_cluster(states[3], own, states, clusters, count=3)

    assert int(found[0]) == 3
    assert set(clusters[found].tolist()) == {own}


def test_a_cluster_in_words_tells_no_count_under_11(cohort_folder: Path) -> None:
    instances = build_instances(Cohort.load(cohort_folder), find_task("readmission"))
    subjects = instances.frame["subject"].to_numpy()
    first = np.unique(subjects, return_index=True)[1]
    happened = [row for row in first.tolist() if instances.labels[row]]
    other = [row for row in first.tolist() if not instances.labels[row]]

    def words(*rows: int) -> str:
        return cluster_in_words(instances, np.array(rows, dtype=np.int64), "readmitted")

    assert words(*happened[:11], *other[:11]) == "22 training instances. 50.0 % of them: readmitted."
    assert words(*happened[:10], *other[:11]) == words(*happened[:11], *other[:10]) == "21 training instances."
    assert words(*other[:11]) == "11 training instances. 0.0 % of them: readmitted."
    assert words(*other[:10]) == words() == "fewer than 11 training patients."


@pytest.mark.parametrize("check", CHECKS)
def test_named_checks(check: Callable[[nn.Module], None]) -> None:
    check(network())


def test_overfits_eight_instances() -> None:
    batch, labels = eight_instances()
    model = network(refreshes=0, clusters=3)

    def refresh(step: int) -> None:
        if step % 10 == 0:
            model.refresh_centres(model.states(batch), seed=0)

    torch.manual_seed(0)
    assert fit(model, batch, labels, steps=150, before_step=refresh) < 0.05
