"""Do two rankings of the same references agree? Rank correlation and overlap of the first few, over targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges

#: The number of references whose overlap is counted: the paper masks three.
TOP = 3
_MOST_TARGETS = 2_000
_MOST_REFERENCES = 200


@dataclass(frozen=True)
class Agreement:
    """How alike two rankings are: mean Kendall tau-b, mean Spearman correlation and mean overlap of the top three.

    ``chance`` is the overlap of a ranking with one made at random. Only targets with more than ``TOP`` references
    count; correlations leave out targets on which a ranking has only ties. None where no target is left.
    """

    first: str
    second: str
    kendall: float | None
    spearman: float | None
    top_overlap: float | None
    chance: float | None
    targets: int

    def as_json(self) -> dict[str, Any]:
        """Return the agreement as plain data."""
        return asdict(self)


def ordered_entries(edges: TargetEdges, scores: Floats, *, seed: int = 0) -> Integers:
    """Return the edges with the best of each target first, as places in ``edges``; ties are broken by chance.

    >>> edges = TargetEdges(np.array([7]), np.array([0, 3]), np.array([1, 2, 4]), np.array([0, 1, 2]))
    >>> ordered_entries(edges, np.array([0.1, 0.9, 0.5])).tolist()
    [1, 2, 0]
    """
    refuse_wrong_scores(edges, scores)
    ties = np.random.default_rng(seed).permutation(edges.edges)
    return np.lexsort((ties, -scores, edges.target_of_edge))


def refuse_wrong_scores(edges: TargetEdges, scores: Any, method: str = "") -> None:
    """Refuse what a method must not return: another number of scores than edges, or some that are not numbers."""
    name = f"the method '{method}'" if method else "a method"
    wrong = ""
    if not isinstance(scores, np.ndarray) or scores.dtype.kind not in "fiub":
        wrong = "scores that are not an array of numbers"
    elif scores.shape != (edges.edges,):
        wrong = f"{scores.size:,} scores for {edges.edges:,} references"
    elif not np.isfinite(scores).all():
        wrong = "some scores that are not numbers"
    if wrong:
        raise PlmError(f"{name} gave {wrong}", remedy="correct the method: one finite score per edge")


def agreements(
    edges: TargetEdges,
    scores: Mapping[str, Floats],
    *,
    seed: int = 0,
    most_targets: int = _MOST_TARGETS,
    against: str | None = None,
) -> list[Agreement]:
    """Compare every two rankings, or all others with the one named ``against``.

    More than ``most_targets`` targets are sampled, and of more than 200 references of a target 200 take part.
    """
    names = list(scores)
    table = np.stack([scores[name] for name in names]) if names else np.zeros((0, edges.edges))
    generator = np.random.default_rng(seed)
    usable = np.flatnonzero(np.diff(edges.indptr) > TOP)
    chosen = np.sort(generator.permutation(usable)[:most_targets])
    kendall, spearman, overlap, chance = [], [], [], []
    for number in chosen:
        row = edges.row(int(number))
        part = table[:, row]
        if part.shape[1] > _MOST_REFERENCES:
            part = part[:, np.sort(generator.choice(part.shape[1], _MOST_REFERENCES, replace=False))]
        kendall.append(_kendall(part))
        spearman.append(_spearman(part))
        overlap.append(_overlap(part, generator))
        chance.append(TOP / part.shape[1])
    pairs = [
        (a, b)
        for a in range(len(names))
        for b in range(len(names))
        if (a < b if against is None else names[a] == against and a != b)
    ]
    return [
        Agreement(
            names[a],
            names[b],
            _mean([found[a, b] for found in kendall]),
            _mean([found[a, b] for found in spearman]),
            _mean([found[a, b] for found in overlap]),
            _mean(chance),
            len(chosen),
        )
        for a, b in pairs
    ]


def _kendall(scores: Floats) -> Floats:
    """Return tau-b of every two rows [rows, rows]; NaN where one has ties only."""
    first, second = np.triu_indices(scores.shape[1], 1)
    signs = np.sign(scores[:, first] - scores[:, second])
    return _cosines(signs)


def _spearman(scores: Floats) -> Floats:
    from scipy.stats import rankdata

    ranks = rankdata(scores, axis=1)
    return _cosines(ranks - ranks.mean(axis=1, keepdims=True))


def _cosines(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1)
    products = np.outer(lengths, lengths)
    cosines: Floats = np.divide(rows @ rows.T, products, out=np.full(products.shape, np.nan), where=products > 0)
    return cosines


def _overlap(scores: Floats, generator: np.random.Generator) -> Floats:
    """Return the shared part of the top three of every two rows; ties are broken by chance."""
    is_top: npt.NDArray[np.float64] = np.zeros(scores.shape)
    for row, values in enumerate(scores):
        order = np.lexsort((generator.permutation(len(values)), -values))
        is_top[row, order[:TOP]] = 1
    return is_top @ is_top.T / TOP


def _mean(values: list[Any]) -> float | None:
    numbers = np.array(values, dtype=np.float64)
    numbers = numbers[~np.isnan(numbers)]
    return float(numbers.mean()) if len(numbers) else None
