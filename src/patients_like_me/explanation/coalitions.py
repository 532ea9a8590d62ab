r"""SubgraphX on the ego net of a target: which small set of references carries the prediction?

A Monte-Carlo tree search starts with the target and all its references and takes references away one by one, down to
``kept``. Any such set is connected, through the target. The reward of a set is its Shapley value as one player among
all other nodes of the ego net, estimated by sampling: with a coalition S of other nodes drawn in random order,

.. math:: v(S \cup \text{set}) - v(S)

where v is the decision logit with the embeddings of absent nodes set to zero, turned so that the decision made is
positive. References in the best set come first; within and after it they are ordered by their own Shapley value.

Thousands of coalitions are evaluated per target. The first layer's product with the weights is computed once for all of
them, and every layer only for the nodes whose values still reach the target. A test holds these values to the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.explanation.ego_net import EgoNet, ego_net
from patients_like_me.explanation.methods.question import Question
from patients_like_me.explanation.target_edges import Floats
from patients_like_me.model.gcn import GraphConvolution, GraphNetwork
from patients_like_me.model.randomness import mixed_seed
from patients_like_me.model.sparse_product import CsrMatrix
from patients_like_me.tasks.kinds import LabelKind

Members = frozenset[int]

_ROLLOUTS, _CHILDREN, _SAMPLES, _KEPT = 10, 6, 16, 5
_EXPLORATION = 10.0
_VALUES_AT_ONCE = 1 << 24


def subgraphx(
    question: Question,
    *,
    rollouts: int = _ROLLOUTS,
    children: int = _CHILDREN,
    samples: int = _SAMPLES,
    kept: int = _KEPT,
) -> Floats:
    """Score all edges by SubgraphX, one target after the other."""
    scores = np.zeros(question.edges.edges)
    for number in range(len(question.edges)):
        row = question.edges.row(number)
        if row.stop > row.start:
            game = _Game.of_target(question, number, samples)
            best = _search(game, rollouts=rollouts, children=children, kept=kept)
            alone = game.shapley([frozenset([place]) for place in range(1, game.net.references + 1)])
            spread = np.ptp(alone) or 1.0
            within = (alone - alone.min()) / (2 * spread)
            scores[row] = within + np.array([place in best for place in range(1, game.net.references + 1)])
        question.report(number + 1, len(question.edges))
    return scores


@dataclass(eq=False)
class _Game:
    """The players are the nodes of the ego net but the target, which is always there."""

    net: EgoNet
    own: Tensor
    mixed: Tensor
    adjacencies: list[CsrMatrix]
    network: GraphNetwork
    kind: LabelKind
    choice: Tensor
    samples: int
    generator: np.random.Generator
    sign: float = 1.0
    rewards: dict[Members, float] = field(default_factory=dict)

    @classmethod
    def of_target(cls, question: Question, number: int, samples: int) -> _Game:
        node = int(question.edges.targets[number])
        network, known = question.own_network("subgraphx")
        net = ego_net(known, node)
        kind = network.classifier.weight.dtype
        generator = np.random.default_rng(mixed_seed(question.seed, 4, node))
        choice = torch.from_numpy(question.choice[number]).to(kind)
        embeddings = question.embeddings[net.nodes].to(kind)
        first = network.convolutions[0]
        assert isinstance(first, GraphConvolution)
        with torch.no_grad():
            mixed = embeddings @ first.weight
        adjacencies = _adjacencies(net, kind)
        game = cls(net, embeddings[0], mixed, adjacencies, network, question.kind, choice, samples, generator)
        everyone = np.ones((1, len(net)), dtype=bool)
        game.sign = 1.0 if game.values(everyone)[0] >= 0 else -1.0
        return game

    def values(self, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
        """Return v of coalitions [C, nodes]."""
        step = max(1, _VALUES_AT_ONCE // self.mixed.numel())
        found = []
        with torch.no_grad():
            for first in range(0, len(present), step):
                there = torch.from_numpy(present[first : first + step]).to(self.mixed)
                # Coalitions side by side: [nodes, C * width].
                states = (there.T[:, :, None] * self.mixed[:, None, :]).flatten(1)
                for number, (layer, adjacency) in enumerate(
                    zip(self.network.convolutions, self.adjacencies, strict=True)
                ):
                    assert isinstance(layer, GraphConvolution)
                    spread = adjacency.product(states).reshape(adjacency.size, len(there), -1)
                    states = torch.relu((spread if number == 0 else spread @ layer.weight) + layer.bias).flatten(1)
                # The target is a member of every coalition.
                own = self.own.expand(len(there), -1)
                logits = self.network.classify(states.reshape(len(there), -1), own)
                found.append(self.sign * self.kind.decision_logit(logits, self.choice))
        return torch.cat(found).double().numpy()

    def shapley(self, sets: list[Members]) -> npt.NDArray[np.float64]:
        """Return the sampled Shapley values of sets as one player each; each is computed once."""
        missing = [members for members in dict.fromkeys(sets) if members not in self.rewards]
        if missing:
            nodes = len(self.net)
            without = np.empty((len(missing), self.samples, nodes), dtype=bool)
            for place, members in enumerate(missing):
                # A player's place in a random order: those before it are the coalition.
                share = self.generator.random((self.samples, 1))
                without[place] = self.generator.random((self.samples, nodes)) < share
                without[place][:, list(members)] = False
            without[:, :, 0] = True
            with_them = without.copy()
            for place, members in enumerate(missing):
                with_them[place][:, list(members)] = True
            gained = self.values(with_them.reshape(-1, nodes)) - self.values(without.reshape(-1, nodes))
            for members, value in zip(missing, gained.reshape(len(missing), -1).mean(axis=1), strict=True):
                self.rewards[members] = float(value)
        return np.array([self.rewards[members] for members in sets])


def _adjacencies(net: EgoNet, kind: torch.dtype) -> list[CsrMatrix]:
    """Return Â for every layer: from the nodes that it reads to those whose values still reach the target."""
    from scipy.sparse import coo_array

    loops = np.arange(len(net))
    rows = np.concatenate([net.edge_index[1].numpy(), loops])
    columns = np.concatenate([net.edge_index[0].numpy(), loops])
    values = torch.cat([net.edge_values, net.loop_values]).to(kind).numpy()
    whole = coo_array((values, (rows, columns)), shape=(len(net), len(net))).tocsr()
    parts = [whole[:kept][:, :read] for read, kept in pairwise(reversed(net.within))]
    return [CsrMatrix(part.indptr, part.indices, part.data, symmetric=False) for part in parts]


@dataclass(eq=False)
class _Branch:
    """A node of the search tree: a set of references, and what was found below it."""

    members: Members
    children: list[_Branch] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    prior: float = 0.0


def _search(game: _Game, *, rollouts: int, children: int, kept: int) -> Members:
    """Return the set of at most ``kept`` references with the largest reward that the search met."""
    root = _Branch(frozenset(range(1, game.net.references + 1)))
    if len(root.members) <= kept:
        return root.members
    inner = game.net.edge_index[1].numpy()
    degree = np.bincount(inner, minlength=len(game.net))
    leaves: dict[Members, float] = {}
    for _ in range(rollouts):
        path = [root]
        while len(path[-1].members) > kept:
            branch = path[-1]
            if not branch.children:
                # The least connected references are tried first, as in the original.
                order = sorted(branch.members, key=lambda place: (degree[place], place))[:children]
                branch.children = [_Branch(branch.members - {place}) for place in order]
                rewards = game.shapley([child.members for child in branch.children])
                for child, reward in zip(branch.children, rewards, strict=True):
                    child.prior = float(reward)
            seen = sum(child.visits for child in branch.children)
            path.append(max(branch.children, key=lambda child: _promise(child, seen)))
        reward = float(game.shapley([path[-1].members])[0])
        leaves[path[-1].members] = reward
        for branch in path:
            branch.visits += 1
            branch.total += reward
    return max(leaves, key=lambda members: leaves[members])


def _promise(branch: _Branch, seen: int) -> float:
    mean = branch.total / branch.visits if branch.visits else 0.0
    return mean + _EXPLORATION * branch.prior * float(np.sqrt(1 + seen)) / (1 + branch.visits)
