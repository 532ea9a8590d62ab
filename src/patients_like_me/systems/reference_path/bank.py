"""The bank of the reference path: labelled instances with their codes, patients, sites, outcomes and residuals.

A newcomer is compared with the bank and with nothing else. The vocabulary and the weights of codes come from the
training instances; a bank that grows keeps both, so a prediction changes only through the references that were added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from patients_like_me.graph.dense_neighbors import DenseIndex
from patients_like_me.graph.people import ANYBODY, Bounds, PersonRule
from patients_like_me.graph.weighted_index import WeightedIndex
from patients_like_me.records.ids import KnownPeople
from patients_like_me.systems.reference_path.described import (
    EMBEDDING,
    FEATURES_OF,
    OF_SITE,
    SHARED_DIAGNOSES,
    Described,
    feature_columns,
    sets_of_diagnoses,
)
from patients_like_me.systems.reference_path.learned import TRAINED, compared_as
from patients_like_me.systems.reference_path.links import Array
from patients_like_me.systems.reference_path.network import network_of
from patients_like_me.systems.reference_path.relations import (
    NETWORK,
    OUTCOMES,
    Neighbours,
    Sent,
    centred_embeddings,
    looked_up,
    neighbours_of,
    numbered,
    pairs_of_names,
    places_of,
    weighted_codes,
)
from patients_like_me.systems.reference_path.two_hops import PER_HOP, TWO_HOPS, VIA, strongest_of_two_hops

Floats = npt.NDArray[np.float64]
#: The fold of every query, and of every instance of the bank.
Folds = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


@dataclass(frozen=True)
class ReferenceBank:
    """Labelled instances as references.

    ``weights`` [F] are the IDF weights of the bag's ``features`` and ``centre`` the mean embedding, both of training
    instances. ``targets`` [J, K] are the outcomes and ``residuals`` [J, K] what the own path did not know of them.
    """

    described: Described
    features: tuple[str, ...]
    weights: Floats
    similarities: tuple[str, ...]
    instance_ids: tuple[str, ...]
    targets: npt.NDArray[np.int8]
    residuals: npt.NDArray[np.float32]
    tau: int = 8
    centre: Array | None = None
    #: How what was learned is compared: weights of leaves, the mean of trained embeddings.
    scales: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    #: The network over embeddings: its weights [width, K], and what it makes of every instance [J, K].
    head: Array | None = None
    network: npt.NDArray[np.float32] | None = None
    #: Who may be a reference of whom by sex and age, in every relation.
    rule: PersonRule = ANYBODY
    #: The fold [J] of cross-fitting in which an instance was left out; -1 for one that joined later.
    fold: npt.NDArray[np.int16] | None = None
    _indexes: dict[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.described)

    def sent(self, rows: npt.NDArray[np.int64] | None = None) -> Sent:
        """Return what instances (by default all) send to those they are references of, by what a relation reads."""
        chosen = slice(None) if rows is None else rows
        outcomes = self.residuals[chosen].astype(np.float64)
        if self.network is None:
            return outcomes
        return {OUTCOMES: outcomes, NETWORK: self.network[chosen].astype(np.float64)}

    def with_network(self, head: Array) -> ReferenceBank:
        """Return the bank with what a network makes of every instance's embedding."""
        assert self.described.embeddings is not None, "a network needs embeddings"
        assert self.centre is not None, "a network needs their mean"
        return replace(self, head=head, network=network_of(head, self.described.embeddings, self.centre))

    @cached_property
    def _people(self) -> dict[Any, int]:
        """The numbers of the bank's patients."""
        return places_of(self.described.subjects)

    @cached_property
    def _known_people(self) -> KnownPeople:
        return KnownPeople(self._people)

    def _numbers_of(self, subjects: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return the number of every patient in the bank, also where the id is written in another way; else -1."""
        found = looked_up(subjects, self._people)
        for place in np.flatnonzero(found < 0).tolist():
            if subjects[place] is not None:
                same = self._known_people.number_of(subjects[place])
                found[place] = -1 if same is None else same
        return found

    @cached_property
    def _sites(self) -> tuple[dict[Any, int], npt.NDArray[np.int64]]:
        """The numbers of the bank's sites, and that of every instance."""
        places = places_of(self.described.sites)
        return places, looked_up(self.described.sites, places)

    def lists(self, queries: Described, k: int, *, folds: Folds | None = None) -> dict[str, Neighbours]:
        """Return the strongest k references of every query by each similarity, never of the same patient.

        Where sex or age decides, they are the strongest among those who may be references.

        ``folds`` names the fold of every query and of every instance of the bank: then references are of the same
        fold, as gates are fitted.
        """
        patients = self._numbers_of(queries.subjects)
        return {name: self._list(name, queries, patients, k, folds) for name in self.similarities}

    def rows(self, rows: npt.NDArray[np.int64]) -> ReferenceBank:
        """Return a bank of some of the instances."""
        return replace(
            self,
            described=self.described.rows(rows),
            instance_ids=tuple(self.instance_ids[row] for row in rows),
            targets=self.targets[rows],
            residuals=self.residuals[rows],
            network=None if self.network is None else self.network[rows],
            fold=None if self.fold is None else self.fold[rows],
            _indexes={},
        )

    def nearest(self, queries: Described) -> Floats:
        """Return the similarity of every query to its nearest instance of another patient: by embedding, or by codes.

        Of codes the similarity that compares most of them is taken. All are 0 where the bank compares nothing.
        """
        plain = [name for name in (EMBEDDING, "whole bag", "all codes", *FEATURES_OF) if name in self.similarities]
        if not plain or not len(queries):
            return np.zeros(len(queries))
        patients = self._numbers_of(queries.subjects)
        found: Floats = self._list(plain[0], queries, patients, 1, None).similarities[:, 0].astype(np.float64)
        return found

    def _list(
        self,
        name: str,
        queries: Described,
        patients: npt.NDArray[np.int64],
        k: int,
        folds: Folds | None,
    ) -> Neighbours:
        if name == TWO_HOPS:
            return self._two_hops(queries, patients, k, folds)
        groups, kind = None, ""
        if name.endswith(OF_SITE):
            # A query without a site, or of one that the bank lacks, has no reference; nor has the bank's a query.
            places, own = self._sites
            groups, kind = (looked_up(queries.sites, places), np.where(own < 0, -2, own)), "site"
        if folds is not None:
            if groups is None:
                groups = folds
            else:
                paired = pairs_of_names(np.concatenate(groups), np.concatenate(folds))
                groups = paired[: len(queries)], paired[len(queries) :]
            kind = "fold"
        plain = name.removesuffix(OF_SITE)
        index = self._index(plain, kind, None if groups is None else groups[1])
        found = index.strongest(
            self._compared(plain, queries),
            k,
            patients=patients,
            groups=None if groups is None else groups[0],
            people=self.bounds(queries, reach=True),
        )
        return neighbours_of(found, self.tau if plain == SHARED_DIAGNOSES else 0.0)

    def _two_hops(
        self,
        queries: Described,
        patients: npt.NDArray[np.int64],
        k: int,
        folds: Folds | None,
    ) -> Neighbours:
        """Return the references of the queries' references; those of the bank are listed once and kept."""
        own = numbered(self.described.subjects, self.described.subjects)
        first = self._list(VIA, queries, patients, PER_HOP, folds)
        between = self._indexes.get((TWO_HOPS, ""))
        if between is None or folds is not None:
            of_bank = None if folds is None else (folds[1], folds[1])
            between = self._list(VIA, self.described, own, PER_HOP, of_bank)
            if folds is None:
                self._indexes[TWO_HOPS, ""] = between
        bounds = self.bounds(queries, reach=True), self.bounds(self.described)
        return strongest_of_two_hops(first, between, k, patients, own, bounds)

    def bounds(self, described: Described, *, reach: bool = False) -> Bounds | None:
        """Return whom instances go with by sex and age; ``reach`` for those who look for references."""
        if not self.rule.compares:
            return None
        assert described.people is not None, "references are chosen by sex and age, which are not described"
        return self.rule.bounds(*described.people.T, reach=reach)

    def _index(self, name: str, kind: str, groups: npt.NDArray[np.int64] | None) -> Any:
        """Return the index of the bank; those of folds serve once and are not kept."""
        if (name, kind) in self._indexes:
            return self._indexes[name, kind]
        build: Any = DenseIndex.build if name in (EMBEDDING, TRAINED) else WeightedIndex.build
        people = numbered(self.described.subjects, self.described.subjects)
        index = build(
            self._compared(name, self.described), patients=people, groups=groups, people=self.bounds(self.described)
        )
        if kind != "fold":
            self._indexes[name, kind] = index
        return index

    def _compared(self, name: str, described: Described) -> Any:
        """Return what a similarity compares: weighted codes, or embeddings around the mean."""
        if name == EMBEDDING:
            assert described.embeddings is not None, "a relation by embeddings needs embeddings"
            assert self.centre is not None, "a relation by embeddings needs their mean"
            return centred_embeddings(described.embeddings, self.centre)
        if name in described.learned:
            return compared_as(name, described.learned[name], self.scales[name])
        if name == SHARED_DIAGNOSES:
            return sets_of_diagnoses(described.codes, self.features)
        columns = feature_columns(name, self.features)
        return weighted_codes(described.codes[:, columns], self.weights[columns])

    def compared_codes(self, codes: Any) -> Any:
        """Return diagnoses, procedures and drugs of a bag's rows, weighted and scaled to length 1, as sparse rows."""
        from scipy.sparse import csr_array

        is_code = FEATURES_OF["all codes"]
        rows = weighted_codes(codes, self.weights * np.array([is_code(feature) for feature in self.features], float))
        return csr_array((rows.weights, rows.codes, rows.indptr), shape=codes.shape)

    def kept_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is kept of the instances as references, besides who and where they are."""
        codes = self.described.codes
        found = {
            "indptr": codes.indptr.astype(np.int64),
            "codes": codes.indices.astype(np.int32),
            "targets": self.targets,
            "residuals": self.residuals,
        }
        if self.described.embeddings is not None:
            found["embeddings"] = self.described.embeddings
        if self.described.people is not None:
            found["people"] = self.described.people
        return found | {f"learned.{name}": values for name, values in self.described.learned.items()}

    def of_kept(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        subjects: Sequence[str],
        sites: Sequence[str | None],
        instance_ids: Sequence[str],
    ) -> ReferenceBank:
        """Return a bank of other instances, of which :meth:`kept_arrays` were kept, with the same vocabulary."""
        from scipy.sparse import csr_array

        present = np.ones(len(arrays["codes"]), np.float32)
        shape = (len(instance_ids), len(self.features))
        codes = csr_array((present, arrays["codes"], arrays["indptr"]), shape=shape)
        kept = replace(
            self,
            described=Described(
                codes,
                list(subjects),
                list(sites),
                arrays.get("embeddings"),
                {name: arrays[f"learned.{name}"] for name in self.described.learned},
                arrays.get("people"),
            ),
            instance_ids=tuple(instance_ids),
            targets=arrays["targets"],
            residuals=arrays["residuals"],
            fold=None,
            _indexes={},
        )
        return kept if self.head is None else kept.with_network(self.head)

    def grown(self, more: ReferenceBank) -> ReferenceBank:
        """Return the bank with further instances; its vocabulary, weights and centre stay."""
        return replace(
            self,
            described=self.described.followed_by(more.described),
            instance_ids=(*self.instance_ids, *more.instance_ids),
            targets=np.concatenate([self.targets, more.targets]),
            residuals=np.concatenate([self.residuals, more.residuals]),
            network=None
            if self.network is None or more.network is None
            else np.concatenate([self.network, more.network]),
            fold=None if self.fold is None else np.concatenate([self.fold, np.full(len(more), -1, np.int16)]),
            _indexes={},
        )
