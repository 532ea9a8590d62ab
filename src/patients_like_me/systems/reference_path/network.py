"""The network over embeddings: what references send beside their outcomes.

    m_ik = sum_j A_ij h_k(o_j) / (d_i + lambda),        h(o) = H (o - centre)

A graph convolution without a threshold function: as it is linear, what an instance gets is a sum over its references,
and each has its exact share. It has a gate of its own, from 0, next to those of the outcomes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.systems.reference_path.links import Array


def network_of(head: Array, embeddings: Array, centre: Array) -> npt.NDArray[np.float32]:
    """Return what the network makes of embeddings [J, K].

    >>> network_of(np.array([[2.0]]), np.array([[3.0], [1.0]]), np.array([2.0])).ravel().tolist()
    [2.0, -2.0]
    """
    found: npt.NDArray[np.float32] = ((embeddings - centre) @ head).astype(np.float32)
    return found
