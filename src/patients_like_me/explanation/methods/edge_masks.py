"""GNNExplainer and PGExplainer from PyG, on the ego net of each target.

Both learn a mask between 0 and 1 over the messages of the ego net that keeps the prediction while it is small. The mask
acts on the entries of Â; they are not normalised anew. What is kept is the decision: the sign of the target's decision
logit (readmission; the class against all others; the mean of the recommended drugs). The score of a reference is the
mean of its edge's two directions. The penalty on the size of the mask is laid on its mean, not on its sum as in small
graphs: an ego net can have many thousands of edges, whose sum would drown the prediction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from patients_like_me.explanation.ego_net import EgoNet, ego_net
from patients_like_me.explanation.known_pass import Floats
from patients_like_me.explanation.methods.question import Question
from patients_like_me.model.randomness import seeded

with warnings.catch_warnings():
    # Optional compiled parts are looked for; deprecations inside the library are not ours.
    warnings.simplefilter("ignore")
    from torch_geometric.explain import Explainer, GNNExplainer, ModelConfig, PGExplainer
    from torch_geometric.nn import MessagePassing

if TYPE_CHECKING:
    from patients_like_me.model.gcn import GraphConvolution, GraphNetwork

_STEPS = 100
_EPOCHS = 20
_TRAINING_TARGETS = 32
_SIZE_PENALTY = 0.1


class _Convolution(MessagePassing):  # type: ignore[misc]
    """A graph convolution over explicit entries of Â, on whose messages PyG's masks act."""

    def __init__(self, layer: GraphConvolution) -> None:
        super().__init__(aggr="add")
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, states: Tensor, edge_index: Tensor, edge_values: Tensor, loop_values: Tensor) -> Tensor:
        mixed = states @ self.weight
        spread: Tensor = self.propagate(edge_index, x=mixed, edge_values=edge_values)
        return spread + loop_values[:, None] * mixed + self.bias

    def message(self, x_j: Tensor, edge_values: Tensor) -> Tensor:
        return x_j * edge_values[:, None]


class _DecisionNetwork(nn.Module):
    """The graph network as one decision logit per node."""

    def __init__(self, network: GraphNetwork, kind: str, choice: Tensor) -> None:
        super().__init__()
        self.network, self.kind, self.choice = network, kind, choice
        self.convolutions = nn.ModuleList(_Convolution(layer) for layer in network.convolutions)  # type: ignore[arg-type]

    def forward(self, x: Tensor, edge_index: Tensor, edge_values: Tensor, loop_values: Tensor) -> Tensor:
        states = x
        for convolution in self.convolutions:
            states = torch.relu(convolution(states, edge_index, edge_values, loop_values))
        return decision_logit(self.kind, self.network.classify(states, x), self.choice)


def decision_logit(kind: str, logits: Tensor, choice: Tensor) -> Tensor:
    """Return one logit per row whose sign is the decision about the chosen outputs.

    >>> decision_logit("multiclass", torch.tensor([[2.0, 2.0]]), torch.tensor([1.0, 0.0])).tolist()
    [0.0]
    """
    if kind == "multiclass":
        chosen = choice > 0
        return logits[:, chosen].logsumexp(dim=1) - logits[:, ~chosen].logsumexp(dim=1)
    return (logits * choice).sum(dim=1) / choice.sum()


def gnn_explainer(question: Question, *, steps: int = _STEPS) -> Floats:
    """Score all edges by GNNExplainer, one target after the other."""

    def explain(model: _DecisionNetwork, inputs: dict[str, Tensor]) -> Tensor:
        algorithm = GNNExplainer(epochs=steps, edge_size=_SIZE_PENALTY, edge_reduction="mean")
        mask: Tensor = _explainer(model, algorithm, "model")(**inputs, index=0).edge_mask
        return mask

    with _inside_pyg(question.network):
        return _scored(question, explain, stream=1)


def pg_explainer(question: Question, *, epochs: int = _EPOCHS, training_targets: int = _TRAINING_TARGETS) -> Floats:
    """Score all edges by PGExplainer, trained on a sample of the targets."""
    with_edges = np.flatnonzero(np.diff(question.edges.indptr))
    if not len(with_edges):
        return np.zeros(0)
    sample = np.sort(np.random.default_rng(question.seed).permutation(with_edges)[:training_targets])
    with _inside_pyg(question.network), seeded(question.seed, 2):
        prepared = [_prepared(question, int(number)) for number in sample]
        algorithm = PGExplainer(epochs=epochs)
        algorithm.mlp.to(question.network.classifier.weight.dtype)
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
    net = ego_net(question.known, int(question.edges.targets[number]))
    kind = question.network.classifier.weight.dtype
    model = _DecisionNetwork(question.network, question.kind, torch.from_numpy(question.choice[number]).to(kind)).eval()
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
