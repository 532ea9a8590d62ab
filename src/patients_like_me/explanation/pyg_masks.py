"""GNNExplainer and PGExplainer from PyG, on the ego net of each target.

Both learn a mask between 0 and 1 over the messages of the ego net that keeps the prediction while it is small. The mask
acts on the entries of Â; they are not renormalised. What is kept is the decision: the sign of the target's decision
logit (readmission; the class against all others; the mean of the recommended drugs). The score of a reference is the
mean of its edge's two directions. The size of the mask is penalised by its mean, not by its sum as in small graphs: an
ego net can have many thousands of edges, whose sum would outweigh the prediction.

The network's own forward pass runs; only how messages travel is PyG's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from patients_like_me.explanation.ego_net import EgoNet, ego_net
from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.target_edges import Floats
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.randomness import seeded
from patients_like_me.tasks.kinds import LabelKind

with warnings.catch_warnings():
    # Optional compiled parts are looked for; deprecations inside the library are not ours.
    warnings.simplefilter("ignore")
    from torch_geometric.explain import Explainer, GNNExplainer, ModelConfig, PGExplainer
    from torch_geometric.nn import MessagePassing

_STEPS = 100
_EPOCHS = 20
_TRAINING_TARGETS = 32
_SIZE_PENALTY = 0.1


class _Entries:
    """The entries of Â on an ego net, as PyG passes them."""

    def __init__(self, edge_index: Tensor, edge_values: Tensor, loop_values: Tensor) -> None:
        self.edge_index, self.edge_values, self.loop_values = edge_index, edge_values, loop_values


class _Convolution(MessagePassing):  # type: ignore[misc]
    """A layer of the network whose messages go through PyG, where masks act on them."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__(aggr="add")
        self.layer = layer

    def forward(self, states: Tensor, graph: _Entries) -> Tensor:
        convolved: Tensor = self.layer(states, _Messages(self, graph))
        return convolved

    def spread(self, states: Tensor, graph: _Entries) -> Tensor:
        # PyG reads this call to learn what its messages take.
        received: Tensor = self.propagate(graph.edge_index, x=states, edge_values=graph.edge_values)
        return received + graph.loop_values[:, None] * states

    def message(self, x_j: Tensor, edge_values: Tensor) -> Tensor:
        return x_j * edge_values[:, None]


class _Messages:
    """The propagation Â H of a layer, by PyG's message passing."""

    def __init__(self, convolution: _Convolution, graph: _Entries) -> None:
        self.convolution, self.graph = convolution, graph

    def propagate(self, states: Tensor) -> Tensor:
        return self.convolution.spread(states, self.graph)


class _DecisionNetwork(nn.Module):
    """The graph network as one decision logit per node."""

    def __init__(self, network: GraphNetwork, kind: LabelKind, choice: Tensor) -> None:
        super().__init__()
        self.network, self.kind, self.choice = deepcopy(network), kind, choice
        self.network.convolutions = nn.ModuleList(_Convolution(layer) for layer in self.network.convolutions)

    def forward(self, x: Tensor, edge_index: Tensor, edge_values: Tensor, loop_values: Tensor) -> Tensor:
        logits = self.network(x, _Entries(edge_index, edge_values, loop_values))
        return self.kind.decision_logit(logits, self.choice)


def gnn_explainer(question: Question, *, steps: int = _STEPS) -> Floats:
    """Score all edges by GNNExplainer, one target after the other."""

    def explain(model: _DecisionNetwork, inputs: dict[str, Tensor]) -> Tensor:
        algorithm = GNNExplainer(epochs=steps, edge_size=_SIZE_PENALTY, edge_reduction="mean")
        mask: Tensor = _explainer(model, algorithm, "model")(**inputs, index=0).edge_mask
        return mask

    with _inside_pyg(question.own_network("gnn_explainer")[0]):
        return _scored(question, explain, stream=1)


def pg_explainer(question: Question, *, epochs: int = _EPOCHS, training_targets: int = _TRAINING_TARGETS) -> Floats:
    """Score all edges by PGExplainer, trained on a sample of the targets."""
    with_edges = np.flatnonzero(np.diff(question.edges.indptr))
    if not len(with_edges):
        return np.zeros(0)
    sample = np.sort(np.random.default_rng(question.seed).permutation(with_edges)[:training_targets])
    network, _ = question.own_network("pg_explainer")
    with _inside_pyg(network), seeded(question.seed, 2):
        prepared = [_prepared(question, int(number)) for number in sample]
        algorithm = PGExplainer(epochs=epochs)
        algorithm.mlp.to(network.classifier.weight.dtype)
        explainer = _explainer(prepared[0][1], algorithm, "phenomenon")
        for epoch in range(epochs):
            for net, model, inputs in prepared:
                algorithm.coeffs = {**PGExplainer.coeffs, "edge_size": _SIZE_PENALTY / net.edge_index.shape[1]}
                algorithm.train(epoch, model, **inputs, target=_decision(model, inputs), index=0)

        def explain(model: _DecisionNetwork, inputs: dict[str, Tensor]) -> Tensor:
            explainer.model = model
            mask: Tensor = explainer(**inputs, target=_decision(model, inputs), index=0).edge_mask
            return mask

        return _scored(question, explain, stream=3)


def _explainer(model: nn.Module, algorithm: Any, kind: Literal["model", "phenomenon"]) -> Any:
    config = ModelConfig(mode="binary_classification", task_level="node", return_type="raw")
    return Explainer(model, algorithm, explanation_type=kind, edge_mask_type="object", model_config=config)


def _prepared(question: Question, number: int) -> tuple[EgoNet, _DecisionNetwork, dict[str, Tensor]]:
    network, known = question.own_network("learned masks")
    net = ego_net(known, int(question.edges.targets[number]))
    kind = network.classifier.weight.dtype
    model = _DecisionNetwork(network, question.kind, torch.from_numpy(question.choice[number]).to(kind)).eval()
    inputs = {
        "x": question.embeddings[net.nodes].to(kind),
        "edge_index": net.edge_index,
        "edge_values": net.edge_values.to(kind),
        "loop_values": net.loop_values.to(kind),
    }
    return net, model, inputs


def _decision(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        decided: Tensor = (model(**inputs) > 0).long()
    return decided


def _scored(
    question: Question, explain: Callable[[_DecisionNetwork, dict[str, Tensor]], Tensor], *, stream: int
) -> Floats:
    scores = np.zeros(question.edges.edges)
    for number in range(len(question.edges)):
        row = question.edges.row(number)
        if row.stop > row.start:
            net, model, inputs = _prepared(question, number)
            with seeded(question.seed, stream, int(question.edges.targets[number])):
                mask = explain(model, inputs).detach()
            back = torch.where(net.return_edges >= 0, mask[net.return_edges], mask[net.reference_edges])
            scores[row] = ((mask[net.reference_edges] + back) / 2).double().numpy()
        question.report(number + 1, len(question.edges))
    return scores


@contextmanager
def _inside_pyg(network: GraphNetwork) -> Iterator[None]:
    """Freeze the network while masks are learned, and keep PyG's warnings about its own use of torch away."""
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for parameter in learning:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in learning:
                parameter.requires_grad_(True)
