"""The search for references in its plainest form: all products, sorted. The kernels must find the same."""

from __future__ import annotations

import numpy as np

from patients_like_me.systems.reference_path.relations import Neighbours


def strongest(queries, bank, k, *, patients, groups=None, at_least=0.0) -> Neighbours:
    """Return the bank rows with the largest products above 0, never of the same patient, of the same group only."""
    products = np.array(queries @ bank.T, np.float64)
    products[patients[0][:, None] == patients[1][None, :]] = 0
    if groups is not None:
        products[groups[0][:, None] != groups[1][None, :]] = 0
    products[(products < at_least) | (products < 0)] = 0
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(products, order, axis=1)
    columns, similarities = np.zeros((len(products), k), np.int32), np.zeros((len(products), k), np.float32)
    columns[:, : order.shape[1]] = np.where(found > 0, order, 0)
    similarities[:, : order.shape[1]] = found
    return Neighbours(columns, similarities)
