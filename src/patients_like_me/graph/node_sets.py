"""Cutting, joining and comparing the diagnosis sets of nodes."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


def taken(sets: DiagnosisSets, nodes: npt.NDArray[np.int64]) -> DiagnosisSets:
    """Return the sets of some nodes, in the order given.

    >>> sets = DiagnosisSets.from_lists([["2"], ["2", "50"], ["9"]], patients=[0, 1, 2])
    >>> [taken(sets, np.array([2, 1])).of(row) for row in (0, 1)]
    [('9',), ('2', '50')]
    """
    sizes = np.diff(sets.indptr)[nodes]
    indptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    places = np.arange(indptr[-1]) + np.repeat(sets.indptr[:-1][nodes] - indptr[:-1], sizes)
    return replace(
        sets,
        indptr=indptr,
        codes=sets.codes[places],
        patients=sets.patients[nodes],
        instance_ids=tuple(sets.instance_ids[node] for node in nodes),
        splits=None if sets.splits is None else sets.splits[nodes],
        sexes=None if sets.sexes is None else sets.sexes[nodes],
        ages=None if sets.ages is None else sets.ages[nodes],
    )


def split_names(sets: DiagnosisSets) -> list[str]:
    """Return the splits that occur, in the order in which they are used.

    >>> split_names(DiagnosisSets.from_lists([["a"]] * 2, patients=[0, 1], splits=["test", "train"]))
    ['train', 'test']
    """
    found = set() if sets.splits is None else {str(name) for name in np.unique(sets.splits)}
    usual = [name for name in ("train", "validation", "test") if name in found]
    return usual + sorted(found.difference(usual))


def rounds_of(sets: DiagnosisSets) -> npt.NDArray[np.int64]:
    """Return for every node how many nodes of its patient come before it.

    >>> rounds_of(DiagnosisSets.from_lists([["a"]] * 5, patients=[7, 7, 3, 7, 3])).tolist()
    [0, 1, 0, 2, 1]
    """
    order = np.argsort(sets.patients, kind="stable")
    in_order = sets.patients[order]
    starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]]) if len(order) else order
    rounds = np.empty(len(order), dtype=np.int64)
    rounds[order] = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return rounds


def aligned(newcomers: DiagnosisSets, vocabulary: tuple[str, ...]) -> DiagnosisSets:
    """Return the sets with codes numbered by a given vocabulary; codes it lacks are added at its end.

    >>> sets = DiagnosisSets.from_lists([["2", "50"]], patients=[0])
    >>> aligned(sets, ("50", "7")).codes.tolist(), aligned(sets, ("50", "7")).vocabulary
    ([0, 2], ('50', '7', '2'))
    """
    if newcomers.vocabulary == vocabulary:
        return newcomers
    number_of = {code: number for number, code in enumerate(vocabulary)}
    added = [code for code in newcomers.vocabulary if code not in number_of]
    number_of.update({code: len(vocabulary) + number for number, code in enumerate(added)})
    numbers = np.array([number_of[code] for code in newcomers.vocabulary], dtype=np.int32)
    codes = numbers[newcomers.codes] if len(numbers) else newcomers.codes
    rows = np.repeat(np.arange(len(newcomers)), np.diff(newcomers.indptr))
    return replace(newcomers, codes=codes[np.lexsort((codes, rows))], vocabulary=(*vocabulary, *added))


def joined(first: DiagnosisSets, second: DiagnosisSets) -> DiagnosisSets:
    """Return the nodes of both, the second numbered after the first; its vocabulary must continue the first's."""
    if second.vocabulary[: len(first.vocabulary)] != first.vocabulary:
        raise ValueError("the second vocabulary does not continue the first")
    splits = None
    if first.splits is not None and second.splits is not None:
        splits = np.concatenate([first.splits, second.splits])
    return replace(
        first,
        indptr=np.concatenate([first.indptr, first.indptr[-1] + second.indptr[1:]]),
        codes=np.concatenate([first.codes, second.codes]),
        patients=np.concatenate([first.patients, second.patients]),
        instance_ids=(*first.instance_ids, *second.instance_ids),
        vocabulary=second.vocabulary,
        splits=splits,
        sexes=_both(first.sexes, second.sexes),
        ages=_both(first.ages, second.ages),
    )


def _both(first: npt.NDArray[np.int16] | None, second: npt.NDArray[np.int16] | None) -> npt.NDArray[np.int16] | None:
    return None if first is None or second is None else np.concatenate([first, second])


def check_sets(sets: DiagnosisSets) -> None:
    """Refuse sets that contradict themselves, in words that name the place."""
    indptr, codes = sets.indptr, sets.codes
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(codes) or (np.diff(indptr) < 0).any():
        raise PlmError("the diagnosis sets do not fit together: indptr does not cut the codes into rows")
    for name, length in (("patients", len(sets.patients)), ("instance_ids", len(sets.instance_ids))):
        if length != len(sets):
            raise PlmError(f"the diagnosis sets have {len(sets):,} instances but {length:,} {name}")
    if sets.splits is not None and len(sets.splits) != len(sets):
        raise PlmError(f"the diagnosis sets have {len(sets):,} instances but {len(sets.splits):,} splits")
    if len(codes) == 0:
        return
    if codes.min() < 0 or codes.max() >= len(sets.vocabulary):
        raise PlmError(
            f"a diagnosis has the number {codes.max() if codes.min() >= 0 else codes.min()}, outside of the "
            f"vocabulary of {len(sets.vocabulary):,} codes"
        )
    starts_row = np.zeros(len(codes), dtype=bool)
    starts_row[indptr[:-1][np.diff(indptr) > 0]] = True
    unsorted = np.flatnonzero((np.diff(codes) <= 0) & ~starts_row[1:])
    if len(unsorted):
        row = int(np.searchsorted(indptr, unsorted[0], side="right")) - 1
        raise PlmError(f"the diagnoses of row {row} are not sorted and distinct")


def digest_of(sets: DiagnosisSets) -> str:
    """Return a hash of everything that the graph of these sets depends on."""
    digest = hashlib.sha256()
    for array in (sets.indptr, sets.codes, sets.patients):
        digest.update(np.ascontiguousarray(array).tobytes())
    for people in (sets.sexes, sets.ages):
        digest.update(b"" if people is None else np.ascontiguousarray(people).tobytes())
    splits = [] if sets.splits is None else sets.splits.tolist()
    for texts in (sets.instance_ids, sets.vocabulary, splits):
        digest.update("\n".join(texts).encode() + b"\0")
    return digest.hexdigest()
