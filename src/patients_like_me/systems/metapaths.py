r"""Metapaths between diseases and drugs: who is joined to whom by a chain of relations, and attention along them.

=================  ================================================  =====================================
path               with typed triples                                without (``no-UMLS``)
=================  ================================================  =====================================
``treat``          D treated_by M                                    indications, or training co-occurrence
``molecular``      D abnormality O ingredient_of M                   (none)
``classification`` D class C classifies M                            D and D of one CCS group, M and M of one ATC group
=================  ================================================  =====================================

Within a path a node attends to its neighbours with weights of the path's own,

.. math:: z^k_i = \sum_j \alpha_{ij} W_k x_j, \qquad
          \alpha_{ij} = \mathrm{softmax}_j \mathrm{LeakyReLU}(a_k \cdot [W_k x_i; W_k x_j]),

and the paths of a node are summed with priors 1, 0.9 and 0.8 and learned shares over the paths that it has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.systems.triples import Triple
from patients_like_me.systems.visit_layers import masked_softmax

#: The paths with their priors.
PATHS: Final[Mapping[str, float]] = {"treat": 1.0, "molecular": 0.9, "classification": 0.8}
#: The relations that make up each path.
RELATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "treat": ("treated_by",),
    "molecular": ("abnormality", "ingredient_of"),
    "classification": ("class", "classifies"),
}
CONTRAINDICATED: Final = "contraindicated"
Pairs = list[tuple[str, str]]


def paths_in(triples: Iterable[Triple], relations: Sequence[str]) -> Pairs:
    """Return the pairs of entities that a chain of relations joins, each once.

    >>> chain = [Triple("diagnosis:1", "class", "pain"), Triple("pain", "classifies", "medication:N02B")]
    >>> paths_in(chain, ("class", "classifies"))
    [('diagnosis:1', 'medication:N02B')]
    """
    steps: list[dict[str, list[str]]] = [defaultdict(list) for _ in relations]
    for triple in triples:
        for place, relation in enumerate(relations):
            if triple.relation == relation:
                steps[place][triple.head].append(triple.tail)
    found = {(head, tail) for head, tails in steps[0].items() for tail in tails}
    for step in steps[1:]:
        found = {(head, tail) for head, between in found for tail in step.get(between, ())}
    return sorted(found)


def siblings(groups: Mapping[str, Sequence[str]], kind: str) -> Pairs:
    """Return the pairs of codes of a kind whose nearest group is the same, in both directions.

    >>> siblings({"A02B": ["A02", "A"], "A02A": ["A02", "A"], "B01A": ["B01", "B"]}, "medication")
    [('medication:A02A', 'medication:A02B'), ('medication:A02B', 'medication:A02A')]
    """
    members: dict[str, list[str]] = defaultdict(list)
    for code, above in sorted(groups.items()):
        if above:
            members[above[0]].append(f"{kind}:{code}")
    return sorted((one, other) for row in members.values() for one in row for other in row if one != other)


def edges_of(pairs: Pairs, number: Mapping[str, int], *, both_ways: bool) -> list[tuple[int, int]]:
    """Return pairs of entities as edges (receiver, sender); pairs with an unknown code are left out."""
    known = [(number[one], number[other]) for one, other in pairs if one in number and other in number]
    found = set(known) | ({(other, one) for one, other in known} if both_ways else set())
    return sorted(found)


class PathAttention(nn.Module):
    """Attention over the neighbours of one path; ``edges`` [2, E] are receivers and senders."""

    edges: Tensor

    def __init__(self, edges: Sequence[tuple[int, int]], nodes: int, width: int, slope: float) -> None:
        super().__init__()
        self.nodes, self.slope = nodes, slope
        self.register_buffer("edges", torch.tensor(edges, dtype=torch.long).view(-1, 2).T.contiguous())
        self.mix = nn.Linear(width, width, bias=False)
        self.of_receiver, self.of_sender = (nn.Parameter(torch.randn(width) / width**0.5) for _ in range(2))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return z [nodes, width]; 0 for a node without a neighbour."""
        receiver, sender = self.edges
        mixed = self.mix(vectors)
        scores = functional.leaky_relu(
            (mixed @ self.of_receiver)[receiver] + (mixed @ self.of_sender)[sender], self.slope
        )
        largest = scores.new_full((self.nodes,), -torch.inf).scatter_reduce(0, receiver, scores.detach(), "amax")
        weights = torch.exp(scores - largest[receiver])
        sums = scores.new_zeros(self.nodes).index_add(0, receiver, weights)
        shares = (weights / sums[receiver]).unsqueeze(1)
        return torch.zeros_like(mixed).index_add(0, receiver, shares * mixed[sender])


class Metapaths(nn.Module):
    """All paths of all nodes: z_i = sum over the paths k of i of prior_k share_k z^k_i."""

    has: Tensor
    priors: Tensor

    def __init__(self, edges: Mapping[str, Sequence[tuple[int, int]]], nodes: int, width: int, slope: float) -> None:
        super().__init__()
        self.names = tuple(name for name in PATHS if edges.get(name))
        self.paths = nn.ModuleList(PathAttention(edges[name], nodes, width, slope) for name in self.names)
        has = torch.zeros(nodes, len(self.names), dtype=torch.bool)
        for place, name in enumerate(self.names):
            has[[receiver for receiver, _ in edges[name]], place] = True
        self.register_buffer("has", has)
        self.register_buffer("priors", torch.tensor([PATHS[name] for name in self.names]))
        # With one path its share is 1, whatever the score.
        self.scores = nn.Parameter(torch.zeros(len(self.names))) if len(self.names) > 1 else None

    def forward(self, vectors: Tensor) -> Tensor:
        """Return what the paths say about each node, [nodes, width]; 0 for a node without any."""
        if not self.names:
            return torch.zeros_like(vectors)
        heard = torch.stack([path(vectors) for path in self.paths], dim=1)
        scores = self.priors.new_zeros(len(self.names)) if self.scores is None else self.scores
        shares = masked_softmax(scores.expand(len(vectors), -1), self.has) * self.priors
        return (shares.unsqueeze(-1) * heard).sum(1)
