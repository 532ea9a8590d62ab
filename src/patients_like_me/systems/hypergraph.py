r"""Hypergraphs over codes: a training visit is a hyperedge that joins all its codes.

With H the incidence [codes, visits], a code hears the mean over its visits of the mean over each visit's codes:

.. math:: P = D_v^{-1} H D_e^{-1} H^T, \qquad X' = \sigma(P X W) .

P holds no visit, only how codes come together. A code of no training visit hears itself alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.systems.visit_layers import masked_softmax


def hypergraph_operator(incidence: Any) -> npt.NDArray[np.float32]:
    """Return P [codes, codes] from the incidence [visits, codes]; its rows sum to 1.

    >>> from scipy.sparse import csr_array
    >>> hypergraph_operator(csr_array(np.array([[1.0, 1.0, 0.0]]))).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    from scipy.sparse import diags_array

    of_visits = np.asarray(incidence.sum(axis=1)).ravel()
    of_codes = np.asarray(incidence.sum(axis=0)).ravel()
    means = diags_array(1 / np.maximum(of_visits, 1)) @ incidence
    spread = (diags_array(1 / np.maximum(of_codes, 1)) @ (incidence.T @ means)).toarray()
    alone = np.flatnonzero(of_codes == 0)
    spread[alone, alone] = 1.0
    found: npt.NDArray[np.float32] = spread.astype(np.float32)
    return found


class HypergraphConvolution(nn.Module):
    """X' = sigmoid(P X W), the same W in every layer."""

    operator: Tensor

    def __init__(self, operator: npt.NDArray[np.float32], width: int, layers: int) -> None:
        super().__init__()
        self.layers = layers
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(width, width)))
        self.register_buffer("operator", torch.from_numpy(operator))

    def forward(self, nodes: Tensor) -> Tensor:
        """Return the new vectors [codes, width] of the codes."""
        for _ in range(self.layers):
            nodes = torch.sigmoid(self.operator @ nodes @ self.weight)
        return nodes


class AttendedSum(nn.Module):
    """The vector of a hyperedge: its members weighted by softmax(w . tanh(W x))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        """Return vectors [..., width] of members [..., n, width]; 0 for a hyperedge without any."""
        weights = masked_softmax(self.score(torch.tanh(self.hidden(members))).squeeze(-1), mask)
        return (weights.unsqueeze(-1) * members).sum(-2)

    def of_rows(self, table: Tensor, rows: Tensor) -> Tensor:
        """Return the same of members that are rows [..., n] of a table [nodes, width]; row 0 is padding.

        A node has the same score in every hyperedge, so it is computed once.
        """
        scores = functional.embedding(rows, self.score(torch.tanh(self.hidden(table)))).squeeze(-1)
        weights, flat = masked_softmax(scores, rows > 0), rows.reshape(-1, rows.shape[-1])
        summed = functional.embedding_bag(flat, table, per_sample_weights=weights.view(flat.shape), mode="sum")
        return summed.view(*rows.shape[:-1], -1)


def joined_incidence(parts: Sequence[Any]) -> Any:
    """Put the incidences of several kinds side by side."""
    from scipy.sparse import hstack

    return hstack(list(parts), format="csr")
