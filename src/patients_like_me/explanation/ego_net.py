"""The ego net of a target: everything that can reach it, with the entries of Â that the whole graph gives them.

Explainers that search (GNNExplainer, PGExplainer, SubgraphX) work on it. Entries are normalised by the degrees of the
whole graph, so the target's logits on its ego net are those on the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from patients_like_me.explanation.known_pass import KnownPass


@dataclass(frozen=True, eq=False)
class EgoNet:
    """``nodes`` are sorted by their distance from the target, which is the first; ``references`` follow it.

    ``within[k]`` nodes are at most k steps away: layer l of L needs to be known for the first ``within[L - l]`` only.

    ``edge_index`` [2, E] goes from the node that sends to the one that receives, ``edge_values`` are the entries of Â,
    ``loop_values`` its diagonal. ``reference_edges`` [R] and ``return_edges`` [R] are the edges from and to the
    references; -1 where a reference does not receive from the target.
    """

    nodes: Tensor
    within: tuple[int, ...]
    references: int
    edge_index: Tensor
    edge_values: Tensor
    loop_values: Tensor
    reference_edges: Tensor
    return_edges: Tensor

    def __len__(self) -> int:
        return len(self.nodes)


def ego_net(known: KnownPass, target: int) -> EgoNet:
    """Cut out what reaches a target within as many steps as the network has layers."""
    from scipy.sparse import csr_array

    size = len(known)
    found = [np.array([target])]
    seen = np.zeros(size, dtype=bool)
    seen[target] = True
    for _ in range(known.layers):
        reached = np.concatenate([_row(known, int(node)) for node in found[-1]]) if len(found[-1]) else found[-1]
        new = np.unique(reached[~seen[reached]])
        seen[new] = True
        found.append(new)
    nodes = np.concatenate(found).astype(np.int64)
    # Nodes at the rim only send: what they receive is too late to reach the target.
    inner = len(nodes) - len(found[-1])
    matrix = csr_array((known.graph.values, known.graph.columns, known.graph.indptr), shape=(size, size))
    part = matrix[nodes[:inner]][:, nodes].tocoo()
    receivers, senders = part.coords
    edge_of = {(int(a), int(b)): place for place, (a, b) in enumerate(zip(receivers, senders, strict=True))}
    references = len(found[1])
    return EgoNet(
        nodes=torch.from_numpy(nodes),
        within=tuple(np.cumsum([len(shell) for shell in found]).tolist()),
        references=references,
        edge_index=torch.from_numpy(np.stack([senders, receivers]).astype(np.int64)),
        edge_values=torch.from_numpy(part.data),
        loop_values=torch.from_numpy(known.graph.loops[nodes]),
        reference_edges=torch.tensor([edge_of[0, 1 + place] for place in range(references)], dtype=torch.long),
        return_edges=torch.tensor([edge_of.get((1 + place, 0), -1) for place in range(references)], dtype=torch.long),
    )


def _row(known: KnownPass, node: int) -> np.ndarray:
    return known.graph.columns[known.graph.indptr[node] : known.graph.indptr[node + 1]]
