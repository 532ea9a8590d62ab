"""Small patient graphs and networks with every difficulty: ties, isolated nodes, both modes, both self-loop rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from patients_like_me.graph import GraphSettings, PatientGraph, build_graph
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import GraphNetworkSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

OUTPUTS = {"binary": 1, "multiclass": 4, "multilabel": 5}
INPUTS = 6


def small_graph(
    *, references: str = "cohort", self_loop: str = "one", nodes: int = 40, seed: int = 0, **settings: Any
) -> PatientGraph:
    """Return a graph with isolated nodes (no shared diagnoses), equal sets (ties) and, in bank mode, a test part."""
    generator = np.random.default_rng(seed)
    lists = [
        [str(code) for code in generator.choice(14, generator.integers(2, 9), replace=False)] for _ in range(nodes)
    ]
    lists[3] = lists[4] = lists[5]
    lists[0], lists[-1] = ["alone"], ["alone too"]
    splits = ["train"] * (2 * nodes // 3) + ["test"] * (nodes - 2 * nodes // 3) if references == "bank" else None
    sets = DiagnosisSets.from_lists(lists, patients=list(range(nodes)), splits=splits)
    chosen = {"tau": 3, "max_neighbors": 5, **settings}
    return build_graph(sets, GraphSettings(references=references, self_loop=self_loop, **chosen))  # type: ignore[arg-type]


def small_network(kind: str = "binary", *, seed: int = 0, **settings: Any) -> GraphNetwork:
    """Return an untrained network in double precision, with biases, so that no unit sits at its threshold."""
    with seeded(seed):
        network = GraphNetwork(INPUTS, OUTPUTS[kind], GraphNetworkSettings(**{"width": 7, **settings})).double().eval()
        for layer in network.convolutions:
            torch.nn.init.normal_(layer.bias, std=0.3)  # type: ignore[arg-type]
    return network


def embeddings_for(graph: PatientGraph, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((len(graph), INPUTS)))


def dense_weights(graph: PatientGraph) -> np.ndarray:
    return graph.to_scipy().toarray().astype(np.float64)


def logits_on(network: GraphNetwork, graph: PatientGraph, embeddings: torch.Tensor, weights: np.ndarray) -> np.ndarray:
    """Return the logits of all nodes for any dense matrix of weights, by the fast path of prediction."""
    sparse = csr_matrix(weights)
    propagation = FixedPropagation(sparse.indptr, sparse.indices, sparse.data, graph.self_loop_weights())
    with torch.no_grad():
        return network(embeddings, propagation).numpy()
