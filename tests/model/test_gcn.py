"""The graph network: two forms of one propagation, equal to each other, to dense algebra and to PyG's GCNConv."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.propagation import EdgePropagation, FixedPropagation, WeightedEdges
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import GraphNetworkSettings


def random_graph(nodes: int, share: float, *, seed: int, directed: bool = False) -> np.ndarray:
    generator = np.random.default_rng(seed)
    weights = generator.integers(8, 20, (nodes, nodes)) * (generator.random((nodes, nodes)) < share)
    np.fill_diagonal(weights, 0)
    return weights if directed else np.triu(weights) + np.triu(weights).T


def fixed(weights: np.ndarray, loops: np.ndarray, *, symmetric: bool | None = None) -> FixedPropagation:
    graph = csr_matrix(weights)
    return FixedPropagation(graph.indptr, graph.indices, graph.data, loops, symmetric=symmetric)


def edges(
    weights: np.ndarray, loops: np.ndarray, *, requires_grad: bool = False
) -> tuple[EdgePropagation, torch.Tensor]:
    targets, sources = np.nonzero(weights)
    values = torch.tensor(weights[targets, sources], dtype=torch.float64, requires_grad=requires_grad)
    arguments = torch.from_numpy(sources), torch.from_numpy(targets), values, torch.from_numpy(loops).double()
    return EdgePropagation(WeightedEdges(*arguments)), values


def dense(weights: np.ndarray, loops: np.ndarray) -> np.ndarray:
    looped = weights + np.diag(loops)
    scale = 1 / np.sqrt(looped.sum(axis=1))
    return scale[:, None] * looped * scale[None, :]


def network(*, dtype: torch.dtype = torch.float64, **different: Any) -> GraphNetwork:
    with seeded(0):
        return GraphNetwork(6, 2, GraphNetworkSettings(width=5, **different)).to(dtype).eval()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 14), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 99), st.booleans())
def test_both_forms_equal_dense_algebra(nodes: int, share: float, seed: int, directed: bool) -> None:
    weights = random_graph(nodes, share, seed=seed, directed=directed)
    loops = np.random.default_rng(seed).integers(1, 30, nodes).astype(float)
    states = torch.from_numpy(np.random.default_rng(seed).standard_normal((nodes, 7)))
    expected = torch.from_numpy(dense(weights, loops)) @ states
    assert torch.allclose(fixed(weights, loops, symmetric=not directed).propagate(states), expected, atol=1e-12)
    assert torch.allclose(edges(weights, loops)[0].propagate(states), expected, atol=1e-12)


@pytest.mark.parametrize("directed", [False, True])
def test_both_forms_have_the_same_gradients(directed: bool) -> None:
    weights = random_graph(12, 0.4, seed=3, directed=directed)
    loops = np.ones(12)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((12, 6)))
    model = network(skip="concat")
    results = []
    for graph in (fixed(weights, loops, symmetric=not directed), edges(weights, loops)[0]):
        embeddings = start.clone().requires_grad_()
        model.zero_grad()
        model(embeddings, graph).square().sum().backward()
        results.append([embeddings.grad, *[value.grad.clone() for value in model.parameters()]])
    assert all(torch.allclose(left, right, atol=1e-6) for left, right in zip(*results, strict=True))


def test_the_fast_form_passes_the_gradient_check() -> None:
    graph = fixed(random_graph(9, 0.5, seed=1, directed=True), np.ones(9), symmetric=False)
    states = torch.randn(9, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(graph.propagate, (states,))


def test_the_gradient_in_the_edge_weights_is_the_finite_difference() -> None:
    weights = random_graph(8, 0.6, seed=5).astype(float)
    loops = np.full(8, 3.0)
    embeddings = torch.from_numpy(np.random.default_rng(1).standard_normal((8, 6)))
    model = network()

    def logit(changed: np.ndarray) -> float:
        with torch.no_grad():
            return float(model(embeddings, edges(changed, loops)[0])[2, 1])

    graph, values = edges(weights, loops, requires_grad=True)
    model(embeddings, graph)[2, 1].backward()
    targets, sources = np.nonzero(weights)
    for entry in range(0, len(targets), 5):
        step = np.zeros_like(weights)
        step[targets[entry], sources[entry]] = 1e-5
        slope = (logit(weights + step) - logit(weights - step)) / 2e-5
        assert values.grad[entry].item() == pytest.approx(slope, abs=1e-8)


@pytest.mark.parametrize("own_codes", [False, True])
def test_equal_to_pyg(own_codes: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_geometric.nn import GCNConv
    nodes = 15
    weights = random_graph(nodes, 0.3, seed=2)
    loops = np.arange(nodes) + 5.0 if own_codes else np.ones(nodes)
    embeddings = torch.from_numpy(np.random.default_rng(1).standard_normal((nodes, 6)))
    model = network()
    targets, sources = np.nonzero(weights)
    index = torch.from_numpy(np.stack([sources, targets]))
    values = torch.tensor(weights[targets, sources], dtype=torch.float64)
    if own_codes:
        diagonal = torch.arange(nodes)
        index = torch.cat([index, torch.stack([diagonal, diagonal])], dim=1)
        values = torch.cat([values, torch.from_numpy(loops)])
    states = embeddings
    for convolution in model.convolutions:
        with seeded(0):
            layer = GCNConv(convolution.weight.shape[0], 5, add_self_loops=not own_codes).double()
        with torch.no_grad():
            layer.lin.weight.copy_(convolution.weight.T)
            layer.bias.copy_(convolution.bias.normal_(generator=torch.Generator().manual_seed(1)))
            states = torch.relu(layer(states, index, values))
    with torch.no_grad():
        assert torch.allclose(model.hidden_states(embeddings, fixed(weights, loops)), states, atol=1e-6)
        assert torch.allclose(model.hidden_states(embeddings, edges(weights, loops)[0]), states, atol=1e-6)


def test_single_precision_follows_double_precision() -> None:
    weights = random_graph(40, 0.3, seed=4)
    graph = fixed(weights, np.ones(40))
    embeddings = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        single = network(dtype=torch.float32)(embeddings, graph)
        double = network()(embeddings.double(), graph)
    assert torch.allclose(single.double(), double, atol=1e-5)


def test_evaluated_nodes_listen_to_the_bank_and_leave_it_as_it_was() -> None:
    bank = random_graph(10, 0.5, seed=6)
    links = np.random.default_rng(7).integers(8, 15, (3, 10)) * (np.random.default_rng(8).random((3, 10)) < 0.5)
    both = np.zeros((13, 13))
    both[:10, :10] = bank
    both[10:, :10] = links
    embeddings = torch.from_numpy(np.random.default_rng(9).standard_normal((13, 6)))
    model = network(skip="concat")
    with torch.no_grad():
        alone = model(embeddings[:10], fixed(bank, np.ones(10)))
        together = model(embeddings, fixed(both, np.ones(13), symmetric=False))
        assert torch.allclose(together[:10], alone, atol=1e-12)
        # One evaluated node's result does not depend on another's presence.
        rows = [*range(10), 11]
        fewer = model(embeddings[rows], fixed(both[np.ix_(rows, rows)], np.ones(11), symmetric=False))
        assert torch.allclose(fewer[10], together[11], atol=1e-12)


def test_an_isolated_patient_changes_nobody_and_sees_itself() -> None:
    weights = random_graph(10, 0.5, seed=6)
    larger = np.zeros((11, 11))
    larger[:10, :10] = weights
    embeddings = torch.from_numpy(np.random.default_rng(9).standard_normal((11, 6)))
    model = network()
    with torch.no_grad():
        alone, together = (
            model(embeddings[:10], fixed(weights, np.ones(10))),
            model(embeddings, fixed(larger, np.ones(11))),
        )
        assert torch.equal(alone, together[:10])
    own = fixed(larger, np.ones(11)).propagate(embeddings)
    assert torch.allclose(own[10], embeddings[10])


def test_the_order_of_patients_changes_nothing() -> None:
    weights = random_graph(10, 0.5, seed=6)
    embeddings = torch.from_numpy(np.random.default_rng(9).standard_normal((10, 6)))
    order = np.random.default_rng(1).permutation(10)
    model = network(skip="concat")
    with torch.no_grad():
        plain = model(embeddings, fixed(weights, np.arange(1.0, 11)))
        turned = model(embeddings[order], fixed(weights[np.ix_(order, order)], np.arange(1.0, 11)[order]))
    assert torch.allclose(turned, plain[order], atol=1e-12)


def test_information_travels_as_many_hops_as_there_are_layers() -> None:
    chain = np.zeros((6, 6))
    for place in range(5):
        chain[place, place + 1] = chain[place + 1, place] = 8
    embeddings = torch.from_numpy(np.random.default_rng(2).standard_normal((6, 6))).requires_grad_()
    model = network(layers=3)
    model(embeddings, fixed(chain, np.ones(6)))[0].sum().backward()
    assert (embeddings.grad.abs().sum(dim=1) > 0).tolist() == [True, True, True, True, False, False]


def test_concat_lets_the_classifier_see_the_node_itself() -> None:
    assert network(skip="none").classifier.in_features == 5
    assert network(skip="concat").classifier.in_features == 11


def test_dropout_acts_in_training_only_and_follows_the_seed() -> None:
    graph = fixed(random_graph(10, 0.5, seed=6), np.ones(10))
    embeddings = torch.ones(10, 6, dtype=torch.float64)
    model = network(dropout=0.5)
    with torch.no_grad():
        assert torch.equal(model(embeddings, graph), model(embeddings, graph))
        model.train()
        drawn = []
        for seed in (1, 1, 2):
            with seeded(seed):
                drawn.append(model(embeddings, graph))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_a_second_gradient_can_be_taken() -> None:
    graph = fixed(random_graph(6, 0.7, seed=1, directed=True), np.ones(6), symmetric=False)
    states = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: graph.propagate(x.square()), (states,))


def test_the_number_of_threads_changes_no_bit() -> None:
    graph = fixed(random_graph(200, 0.4, seed=1), np.ones(200))
    states = torch.randn(200, 128, generator=torch.Generator().manual_seed(0))
    results = []
    for threads in (1, 2, 7):
        torch.set_num_threads(threads)
        results.append(graph.propagate(states))
    torch.set_num_threads(1)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_symmetry_is_looked_up() -> None:
    assert fixed(random_graph(9, 0.5, seed=1), np.ones(9)).matrix.symmetric
    assert not fixed(random_graph(9, 0.5, seed=1, directed=True), np.ones(9)).matrix.symmetric


def test_a_patient_graph_brings_its_own_self_loops() -> None:
    graph = csr_matrix(random_graph(7, 0.6, seed=3))
    loops = np.arange(1, 8)
    patients = SimpleNamespace(
        indptr=graph.indptr, neighbors=graph.indices, weights=graph.data, self_loop_weights=lambda: loops
    )
    states = torch.from_numpy(np.random.default_rng(9).standard_normal((7, 4)))
    expected = torch.from_numpy(dense(graph.toarray(), loops)) @ states
    assert torch.allclose(FixedPropagation.of_graph(patients).propagate(states), expected)  # type: ignore[arg-type]


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="2 self-loop weights for 3 nodes"):
        FixedPropagation(np.array([0, 0, 0, 0]), np.array([], dtype=int), np.array([]), np.ones(2))
    with pytest.raises(ValueError, match="1 columns, 1 weights, 2 entries"):
        FixedPropagation(np.array([0, 2]), np.array([0]), np.array([1.0]), np.ones(1))
