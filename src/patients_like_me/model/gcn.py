r"""The graph network p_phi: a graph convolutional network on the patient graph, and its classifier.

.. math:: H^{(0)} = O, \qquad H^{(l+1)} = \mathrm{ReLU}(\hat A H^{(l)} W^{(l)} + b^{(l)}), \qquad
          \mathrm{logits} = H^{(L)} U + c

with Â of ``propagation``. With ``skip = concat`` the classifier reads [H^(L) ; O], so that a node with many neighbours
does not lose sight of itself.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from patients_like_me.model.dropout import dropout
from patients_like_me.model.propagation import Propagation


class GraphNetworkSettings(BaseModel):
    """The shape of the graph network; the defaults are the paper's, dropout excepted, which it does not state."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layers: int = Field(3, ge=1, description="number of graph convolutions: how many hops information travels")
    width: int = Field(128, ge=1, description="number of values per node and layer")
    dropout: float = Field(0.1, ge=0, lt=1, description="share of values dropped after each layer in training")
    skip: Literal["none", "concat"] = Field(
        "none", description="concat: the classifier also sees the node's own embedding"
    )


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
