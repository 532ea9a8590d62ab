r"""The graph network p_phi: a graph convolutional network on the patient graph, and its classifier.

.. math:: H^{(0)} = O, \qquad H^{(l+1)} = \mathrm{ReLU}(\hat A H^{(l)} W^{(l)} + b^{(l)}), \qquad
          \mathrm{logits} = H^{(L)} U + c

with Â of ``propagation``. With ``skip = concat`` the classifier reads [H^(L) ; O], so that a node with many neighbours
does not lose sight of itself.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from patients_like_me.model.propagation import EdgePropagation, Propagation, WeightedEdges
from patients_like_me.model.settings import GraphNetworkSettings

_DROPOUT_STEPS = 1 << 16


class NodeNetwork(Protocol):
    """The contract of a graph network that can be explained: a torch module with these two methods.

    ``propagation`` turns raw edges into whatever graph the network's forward pass takes, differentiable in the weights;
    this is where another normalisation, another edge weight or attention has its place. Calling the network with the
    embeddings of all nodes and that graph gives their logits. Further inputs per node are buffers of the module.
    """

    training: bool

    def propagation(self, edges: WeightedEdges) -> Any:
        """Return the graph of these edges in the form that the network takes."""
        ...

    def __call__(self, embeddings: Tensor, graph: Any) -> Any:
        """Return the logits [N, outputs] of all nodes from their embeddings [N, inputs]."""
        ...

    def double(self) -> Self:
        """Compute in double precision."""
        ...

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let the parameters learn, or not."""
        ...


class GraphConvolution(nn.Module):
    """One layer: H [N, F_in] -> Â H W + b [N, F_out]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, states: Tensor, graph: Propagation) -> Tensor:
        """Mix each node's values, then spread them over the graph."""
        return graph.propagate(states @ self.weight) + self.bias


class GraphNetwork(nn.Module):
    """phi: the graph convolutions and the classifier.

    Draws its first weights and its dropout from torch's global generator: use it inside ``randomness.seeded``.
    """

    def __init__(self, inputs: int, outputs: int, settings: GraphNetworkSettings) -> None:
        super().__init__()
        self.settings = settings
        widths = [inputs] + [settings.width] * settings.layers
        self.convolutions = nn.ModuleList(GraphConvolution(before, after) for before, after in pairwise(widths))
        seen = settings.width + (inputs if settings.skip == "concat" else 0)
        self.classifier = nn.Linear(seen, outputs)

    def propagation(self, edges: WeightedEdges) -> EdgePropagation:
        """Return Â of some edges, differentiable in their weights."""
        return EdgePropagation(edges)

    def hidden_states(self, embeddings: Tensor, graph: Propagation) -> Tensor:
        """Return H^(L) [N, width] from the embeddings O [N, inputs]."""
        states = embeddings
        for convolution in self.convolutions:
            states = torch.relu(convolution(states, graph))
            states = dropout(states, self.settings.dropout, self.training)
        return states

    def classify(self, states: Tensor, embeddings: Tensor) -> Tensor:
        """Return the logits from H^(L) and O."""
        seen = torch.cat([states, embeddings], dim=1) if self.settings.skip == "concat" else states
        logits: Tensor = self.classifier(seen)
        return logits

    def forward(self, embeddings: Tensor, graph: Propagation) -> Tensor:
        """Return the logits [N, outputs] of all nodes from their embeddings O [N, inputs]."""
        return self.classify(self.hidden_states(embeddings, graph), embeddings)


def dropout(states: Tensor, share: float, training: bool) -> Tensor:
    """Set a share of the values to zero and scale the others, so that the mean stays; nothing outside of training.

    torch draws one number after another on a CPU, which would take a quarter of a full-batch step. Here sixteen random
    bits decide about a value, drawn in bulk by a generator seeded from torch's: inside ``randomness.seeded`` the same
    seed drops the same values. The share is rounded to a multiple of 2^-16, and the scale fits the rounded one.

    >>> dropout(torch.ones(2, 3), 0.5, training=False).sum().item()
    6.0
    """
    if not training or share == 0:
        return states
    if states.device.type != "cpu":
        return nn.functional.dropout(states, share)
    dropped = round(share * _DROPOUT_STEPS)
    if dropped == _DROPOUT_STEPS:
        return states * 0.0
    seed = int(torch.randint(1 << 62, ()))
    drawn = np.random.Generator(np.random.SFC64(seed)).bytes(2 * states.numel())
    kept = np.frombuffer(drawn, dtype=np.uint16) >= dropped
    mask = np.multiply(kept, _DROPOUT_STEPS / (_DROPOUT_STEPS - dropped), dtype=np.float32)
    return states * torch.from_numpy(mask).to(states.dtype).reshape(states.shape)
