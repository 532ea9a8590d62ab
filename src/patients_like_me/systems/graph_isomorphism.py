"""Vectors of molecules by a graph isomorphism network over their atoms, as in MoleRec.

One layer is v_i <- BN(MLP((1 + eps) v_i + sum over neighbours j of ReLU(v_j + bond_ij))), with a batch normalisation
within the MLP too; a molecule is the mean of its atoms.

Molecules have thousands of atoms but few kinds of atoms and bonds, and few different surroundings of an atom within one
bond. Before the first dropout equal surroundings have equal vectors, so the first layer is computed once for each of
them; its batch normalisations count each as often as there are such atoms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from patients_like_me.codes.molecules import ATOM_FEATURES, BOND_FEATURES, MoleculeGraphs, refined
from patients_like_me.systems.visit_layers import Dropout


class GraphIsomorphism(nn.Module):
    """One layer: MLP((1 + eps) v + sum over neighbours of ReLU(v_j + bond)), then batch normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bonds = nn.ModuleList(nn.Embedding(size, width) for size in BOND_FEATURES)
        self.loop = nn.Parameter(torch.zeros(()))
        self.mix = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.norm = nn.BatchNorm1d(width)

    def received(self, senders: Tensor, receiver: Tensor, bond_kinds: Tensor, bond: Tensor, count: int) -> Tensor:
        """Return what ``count`` receivers hear along edges [E]: vectors of senders [E, width] and their bonds."""
        vectors = torch.stack([table(bond_kinds[:, at]) for at, table in enumerate(self.bonds)]).sum(dim=0)
        messages = torch.relu(senders + vectors.index_select(0, bond))
        return messages.new_zeros(count, messages.shape[1]).index_add(0, receiver, messages)

    def mixed(self, atoms: Tensor, received: Tensor, counts: Tensor | None = None) -> Tensor:
        """Return the new states [A, width]; ``counts`` [A] says for how many atoms each row stands."""
        first, inner, _, last = self.mix
        assert isinstance(inner, nn.BatchNorm1d)
        hidden = torch.relu(counted_norm(inner, first((1 + self.loop) * atoms + received), counts))
        return counted_norm(self.norm, last(hidden), counts)


def counted_norm(norm: nn.BatchNorm1d, values: Tensor, counts: Tensor | None) -> Tensor:
    """Normalise rows [N, width] as a batch in which row i is there ``counts[i]`` times; None: once each.

    >>> counted_norm(nn.BatchNorm1d(1), torch.tensor([[1.0], [4.0]]), torch.tensor([2, 1])).flatten()
    tensor([-0.7071,  1.4142], grad_fn=<ViewBackward0>)
    """
    if counts is None or not norm.training:
        normed: Tensor = norm(values)
        return normed
    total = int(counts.sum())
    shares = (counts / total).to(values.dtype)
    mean = shares @ values
    centred = values - mean
    variance = shares @ centred.square()
    with torch.no_grad():
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        assert norm.momentum is not None
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(variance * total / max(total - 1, 1), norm.momentum)
        norm.num_batches_tracked += 1
    return centred * (torch.rsqrt(variance + norm.eps) * norm.weight) + norm.bias


class GraphVectors(nn.Module):
    """One vector [graphs, width] per molecule graph: a graph isomorphism network and the mean over the atoms."""

    atoms: Tensor
    edges: Tensor
    bonds: Tensor
    molecule: Tensor
    atom_kinds: Tensor
    bond_kinds: Tensor
    bond: Tensor
    surroundings: Tensor
    counts: Tensor
    own_kind: Tensor
    first_sender: Tensor
    first_receiver: Tensor
    first_bond: Tensor
    sizes: Tensor

    def __init__(self, graphs: MoleculeGraphs, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        for name in ("atoms", "edges", "bonds", "molecule"):
            self.register_buffer(name, torch.as_tensor(getattr(graphs, name)))
        self.count = graphs.count
        for name, found in _kinds(graphs).items():
            self.register_buffer(name, torch.as_tensor(found), persistent=False)
        self.tables = nn.ModuleList(nn.Embedding(size, width) for size in ATOM_FEATURES)
        self.layers = nn.ModuleList(GraphIsomorphism(width) for _ in range(layers))
        self.dropout = Dropout(dropout)

    def forward(self) -> Tensor:
        """Run all layers; the last one has no ReLU."""
        first, *later = (layer for layer in self.layers if isinstance(layer, GraphIsomorphism))
        states = self._first(first)
        # Behind the dropout every atom has a vector of its own.
        states = self.dropout((torch.relu(states) if later else states).index_select(0, self.surroundings))
        for number, layer in enumerate(later, start=1):
            states = self._next(layer, states)
            states = self.dropout(torch.relu(states) if number < len(later) else states)
        sums = torch.zeros(self.count, states.shape[1], device=states.device).index_add(0, self.molecule, states)
        return sums / self.sizes

    def _first(self, layer: GraphIsomorphism) -> Tensor:
        """Return the first layer's states of every kind of surroundings."""
        kinds = torch.stack([table(self.atom_kinds[:, at]) for at, table in enumerate(self.tables)]).sum(dim=0)
        senders = kinds.index_select(0, self.first_sender)
        heard = layer.received(senders, self.first_receiver, self.bond_kinds, self.first_bond, len(self.own_kind))
        return layer.mixed(kinds.index_select(0, self.own_kind), heard, self.counts)

    def _next(self, layer: GraphIsomorphism, states: Tensor) -> Tensor:
        senders = states.index_select(0, self.edges[0])
        heard = layer.received(senders, self.edges[1], self.bond_kinds, self.bond, len(states))
        return layer.mixed(states, heard)


def _kinds(graphs: MoleculeGraphs) -> dict[str, npt.NDArray[Any]]:
    """Return the kinds of atoms and bonds, the surroundings of each atom, and the first layer's edges among them."""
    atom_kinds, kind = np.unique(graphs.atoms, axis=0, return_inverse=True)
    bond_kinds, bond = np.unique(graphs.bonds, axis=0, return_inverse=True)
    kind, bond = kind.reshape(-1), bond.reshape(-1)
    surroundings = refined(kind, graphs.edges, bond)
    _, example, counts = np.unique(surroundings, return_index=True, return_counts=True)
    # One atom stands for all with its surroundings, and its edges for theirs.
    chosen = np.isin(graphs.edges[1], example)
    return {
        "atom_kinds": atom_kinds,
        "bond_kinds": bond_kinds,
        "bond": bond,
        "surroundings": surroundings,
        "counts": counts,
        "own_kind": kind[example],
        "first_sender": kind[graphs.edges[0][chosen]],
        "first_receiver": surroundings[graphs.edges[1][chosen]],
        "first_bond": bond[chosen],
        "sizes": np.bincount(graphs.molecule, minlength=graphs.count)[:, None],
    }
