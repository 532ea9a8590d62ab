from __future__ import annotations

import numpy as np
import pytest
import torch

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.model import propagation
from patients_like_me.model.count_product import CountMatrix
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


def sets_with_splits(nodes: int) -> DiagnosisSets:
    drawn = drawn_sets(nodes)
    splits = np.where(np.arange(nodes) % 3 == 0, "test", "train")
    return DiagnosisSets(drawn.indptr, drawn.codes, drawn.patients, drawn.instance_ids, drawn.vocabulary, splits=splits)


@pytest.mark.parametrize("references", ["cohort", "bank"])
@pytest.mark.parametrize("keep", [None, 4])
def test_counts_give_the_product_and_the_gradient_of_numbers(
    references: str, keep: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = GraphSettings(tau=8, max_neighbors=keep, references=references, self_loop="own_codes")  # type: ignore[arg-type]
    graph = build_graph(sets_with_splits(60), settings)
    numbers = FixedPropagation.of_graph(graph)
    monkeypatch.setattr(propagation, "LARGE", 1)
    counts = FixedPropagation.of_graph(graph)
    assert isinstance(counts.matrix, CountMatrix)
    assert counts.matrix.symmetric == numbers.matrix.symmetric
    for kind, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        states = torch.randn(60, 5, dtype=kind, generator=torch.Generator().manual_seed(0)).requires_grad_()
        weights = torch.randn(60, 5, dtype=kind, generator=torch.Generator().manual_seed(1))
        found = [form.propagate(states) for form in (counts, numbers)]
        gradients = [torch.autograd.grad((each * weights).sum(), states)[0] for each in found]
        torch.testing.assert_close(found[0], found[1], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(gradients[0], gradients[1], atol=tolerance, rtol=tolerance)


def test_the_graph_of_some_nodes_is_the_same_in_any_order() -> None:
    graph = build_graph(sets_with_splits(60), GraphSettings(tau=8))
    nodes = np.flatnonzero(np.arange(60) % 3 != 1)
    rising, turned = graph.sub_graph(nodes), graph.sub_graph(nodes[::-1])
    np.testing.assert_array_equal(rising.to_scipy().toarray(), turned.to_scipy().toarray()[::-1, ::-1])
    assert rising.weights.dtype == graph.weights.dtype
    assert len(rising.neighbors)
