"""Similarities that the own path has learned: shared leaves of its boosted trees, its trained embedding.

A newcomer is compared with the bank through the own path that was fitted to all training instances. While gates are
fitted, a training instance and its references, all of one fold, are seen through the own path that was fitted without
that fold: neither's label has shaped what makes them alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.weighted_rows import WeightedRows
from patients_like_me.systems.reference_path.relations import centred_embeddings

#: Learned values [N, width]: numbers of leaves, or embeddings.
Values = npt.NDArray[Any]

LEAVES: Final = "leaves"
TRAINED: Final = "trained embedding"
LEARNED: Final = (LEAVES, TRAINED)


def scales_of(learned: Mapping[str, Values]) -> dict[str, Values]:
    """Return how learned values of training instances are compared: rare leaves weigh more, embeddings are centred."""
    scales: dict[str, Values] = {}
    for name, values in learned.items():
        if name == LEAVES:
            counts = np.bincount(values.ravel(), minlength=int(values.max(initial=-1)) + 1)
            scales[name] = np.log((len(values) + 1.0) / (counts + 1.0))
        else:
            scales[name] = values.mean(axis=0)
    return scales


def compared_as(name: str, values: Values, scale: Values) -> Any:
    """Return learned values as an index compares them: rows of leaves of length 1, or embeddings around the mean.

    >>> rows = compared_as("leaves", np.array([[0, 2], [1, 2]], np.int32), np.array([1.0, 1.0, 0.0]))
    >>> rows.weights.round(2).tolist()
    [1.0, 1.0]
    """
    if name == TRAINED:
        return centred_embeddings(values, scale)
    # A leaf that no training instance reached has the number of none: it tells nothing.
    known = np.where(values < len(scale), values, len(scale))
    weights = np.append(scale, 0.0)
    pointers = np.arange(0, known.size + 1, max(known.shape[1], 1), dtype=np.int64)
    codes = np.sort(known, axis=1).ravel().astype(np.int32)
    rows = WeightedRows.of(pointers, codes, np.ones(len(codes), np.float32), number_of_codes=len(weights))
    return rows.times(weights).normalised()


def out_of_fold(
    parts: Sequence[Mapping[str, Values]], fold: npt.NDArray[np.int64]
) -> tuple[dict[str, Values], dict[str, Values]]:
    """Return learned values of training instances and their scales, each instance seen by the model of its fold.

    ``parts[f]`` are the values of the instances of fold f by the model that was fitted without it. Leaves of different
    folds get different numbers and embeddings are centred fold by fold: instances of two folds are never compared.
    """
    values: dict[str, Values] = {}
    scales: dict[str, Values] = {}
    for name in parts[0]:
        of_folds = [scales_of({name: part[name]})[name] for part in parts]
        found = np.zeros((len(fold), parts[0][name].shape[1]), parts[0][name].dtype)
        if name == LEAVES:
            starts = np.concatenate([[0], np.cumsum([len(each) for each in of_folds])]).astype(np.int32)
            # Folds may have different numbers of trees: a place without one repeats the first.
            width = max(part[name].shape[1] for part in parts)
            found = np.zeros((len(fold), width), np.int32)
            for number, part in enumerate(parts):
                padded = np.pad(part[name], ((0, 0), (0, width - part[name].shape[1])), constant_values=-1)
                found[fold == number] = np.where(padded < 0, starts[-1], padded + starts[number])
            scales[name] = np.concatenate(of_folds)
        else:
            for number, part in enumerate(parts):
                found[fold == number] = part[name] - of_folds[number]
            scales[name] = np.zeros_like(of_folds[0])
        values[name] = found
    return values, scales
