r"""Vectors of codes through their trees, as in G-BERT: one graph attention layer, applied twice.

Every node of a tree has a vector. The first stage leads from children to their parents, the second from all ancestors
to the code,

.. math:: o_i = \big\Vert_k \sum_{j \in N(i) \cup i} \alpha^k_{ij} W^k x_j + c, \qquad
          \alpha^k_{ij} = \mathrm{softmax}_j \mathrm{LeakyReLU}(a^k_s \cdot W^k x_j + a^k_t \cdot W^k x_i).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional


def ancestor_numbers(codes: Sequence[str], ancestors: Mapping[str, Sequence[str]]) -> npt.NDArray[np.int64]:
    """Return the ancestors of codes as numbers from 1, [codes, depth]: the nearest first, the root (1) last, then 0.

    >>> ancestor_numbers(("A02B", "aspirin"), {"A02B": ("A02", "A")}).tolist()
    [[2, 3, 1], [1, 0, 0]]
    """
    number: dict[str, int] = {"": 1}
    paths = [[*(number.setdefault(above, len(number) + 1) for above in ancestors.get(code, ())), 1] for code in codes]
    found = np.zeros((len(codes), max(map(len, paths), default=0)), dtype=np.int64)
    for row, path in enumerate(paths):
        found[row, : len(path)] = path
    return found


def ontology_edges(ancestors: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return the edges [2, E] of both stages, from ancestors [codes, depth], the nearest first and 0 for none.

    Node 0 is code 1; behind the codes are the ancestors. Every node has a loop.

    >>> first, second = ontology_edges(np.array([[1, 2], [1, 2]]))
    >>> [edge for edge in first.T.tolist() if edge[0] != edge[1]]
    [[0, 2], [1, 2], [2, 3]]
    >>> [edge for edge in second.T.tolist() if edge[0] != edge[1]]
    [[2, 0], [2, 1], [3, 0], [3, 1]]
    """
    codes = len(ancestors)
    upward: set[tuple[int, int]] = set()
    downward: set[tuple[int, int]] = set()
    for code, found in enumerate(ancestors.tolist()):
        path = [code, *(codes - 1 + ancestor for ancestor in found if ancestor)]
        upward |= set(pairwise(path))
        downward |= {(ancestor, code) for ancestor in path[1:]}
    loops = [(node, node) for node in range(codes + int(ancestors.max(initial=0)))]
    first, second = (torch.tensor([*sorted(edges), *loops]).T for edges in (upward, downward))
    return first, second


class OntologyAttention(nn.Module):
    """One graph attention layer over edges [2, E] from source to receiver."""

    def __init__(self, width: int, heads: int, slope: float) -> None:
        super().__init__()
        self.heads, self.slope = heads, slope
        self.mix = nn.Linear(width, width, bias=False)
        self.of_source, self.of_receiver = (nn.Parameter(torch.empty(heads, width // heads)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(width))
        for weight in (self.mix.weight, self.of_source, self.of_receiver):
            nn.init.xavier_uniform_(weight)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Return the new vectors [N, width] of the nodes."""
        source, receiver = edges
        mixed = self.mix(nodes).view(len(nodes), self.heads, -1)
        of_source, of_receiver = ((mixed * weight).sum(dim=2) for weight in (self.of_source, self.of_receiver))
        scores = of_source.index_select(0, source) + of_receiver.index_select(0, receiver)
        scores = functional.leaky_relu(scores, self.slope)
        places = receiver[:, None].expand_as(scores)
        # The largest score of a receiver is taken away, so that no exponential overflows.
        largest = scores.new_zeros(len(nodes), self.heads).scatter_reduce(
            0, places, scores.detach(), "amax", include_self=False
        )
        weights = torch.exp(scores - largest.index_select(0, receiver))
        sums = torch.zeros_like(largest).index_add(0, receiver, weights)
        shares = (weights / sums.index_select(0, receiver))[:, :, None]
        received = torch.zeros_like(mixed).index_add(0, receiver, shares * mixed.index_select(0, source))
        return received.flatten(1) + self.bias


class OntologyEmbedding(nn.Module):
    """The vectors [codes, width] of one kind's codes, through their tree."""

    upward: Tensor
    downward: Tensor

    def __init__(self, ancestors: npt.NDArray[np.int64], width: int, heads: int, slope: float) -> None:
        super().__init__()
        self.codes = len(ancestors)
        nodes = self.codes + int(ancestors.max(initial=0))
        self.nodes = nn.Parameter(nn.init.xavier_uniform_(torch.empty(nodes, width)))
        self.attention = OntologyAttention(width, heads, slope) if ancestors.any() else None
        upward, downward = ontology_edges(ancestors)
        self.register_buffer("upward", upward)
        self.register_buffer("downward", downward)

    def forward(self) -> Tensor:
        """Apply the one attention layer in both stages; without a tree the vectors are the codes' own."""
        if self.attention is None:
            return self.nodes
        vectors: Tensor = self.attention(self.attention(self.nodes, self.upward), self.downward)
        return vectors[: self.codes]
