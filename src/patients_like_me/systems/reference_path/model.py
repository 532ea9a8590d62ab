"""The fitted method as one object: the own path, the reference path and the bank; all that a newcomer needs."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.graph.people import ONLY_REFERENCES_OF, fitting
from patients_like_me.runs.added_records import Added
from patients_like_me.runs.predictions import ids_of
from patients_like_me.systems.bags import bag_with
from patients_like_me.systems.contract import Arrays
from patients_like_me.systems.frozen_embeddings import embeddings_of
from patients_like_me.systems.problem import Logits, only, outputs_of
from patients_like_me.systems.reference_path.bank import Folds, ReferenceBank
from patients_like_me.systems.reference_path.correction import ReferencePath, rewired
from patients_like_me.systems.reference_path.described import Described
from patients_like_me.systems.reference_path.gates import Gates
from patients_like_me.systems.reference_path.links import residuals
from patients_like_me.systems.reference_path.own_learned import learned_of
from patients_like_me.systems.reference_path.own_parts import OwnParts
from patients_like_me.systems.reference_path.relations import Neighbours, Relation, numbered
from patients_like_me.systems.reference_path.shares import ReferenceShares
from patients_like_me.tasks.instances import Instances, Rows

Lists = dict[str, Neighbours]
#: Up to this many instances are few: they use a small part of a bank.
_FEW: Final = 256


@dataclass(frozen=True)
class ReferenceModel:
    """z = u + correction: ``own`` gives u, ``path`` and ``bank`` the correction."""

    settings: Any
    own: OwnParts
    path: ReferencePath
    bank: ReferenceBank
    exclusive: bool

    @property
    def uses_references(self) -> bool:
        """Tell whether any gate is open."""
        return bool(self.path.gates.values.any())

    @property
    def chose_no_references(self) -> bool:
        """Tell whether validation closed all gates; those of a control are closed on purpose."""
        return not self.uses_references and bool(self.settings.control == "none")

    def in_words(self) -> dict[str, str]:
        """Return what a page says about own answers and lists."""
        return {
            "own path": ", ".join(self.settings.own_path),
            "neighbours kept": f"strongest {max(self.settings.k)} of each relation",
            ONLY_REFERENCES_OF: self.settings.person_rule.in_words(),
        }

    def own_logits(self, instances: Instances) -> Logits:
        """Return u [N, K]."""
        return self.own.logits(instances)

    def logits(self, instances: Instances) -> Logits:
        """Return z [N, K]."""
        return self.linked_logits(instances)[0]

    def linked_logits(self, instances: Instances) -> tuple[Logits, npt.NDArray[np.int64]]:
        """Return z [N, K], and how many different references each prediction uses."""
        own = self.own.logits(instances)
        if not self.uses_references:
            return own, np.zeros(len(instances), np.int64)
        return self.answers(own, instances.instance_ids, self.described(instances))

    def answers(
        self, own: Logits, instance_ids: list[str], described: Described
    ) -> tuple[Logits, npt.NDArray[np.int64]]:
        """Return the same for instances whose own answers u, and what is compared of them, are known."""
        if not self.uses_references:
            return own, np.zeros(len(own), np.int64)
        lists = self.lists_of(described, instance_ids)
        columns = np.concatenate([each.columns for each in lists.values()], axis=1)
        used = np.concatenate([each.similarities > 0 for each in lists.values()], axis=1)
        numbers = [len(np.unique(row[some])) for row, some in zip(columns, used, strict=True)]
        return own + self.correction(lists), np.array(numbers, np.int64)

    def correction(self, lists: Lists) -> npt.NDArray[np.float64]:
        """Return z - u [N, K] for the lists of some instances."""
        if not lists or len(next(iter(lists.values())).columns) > _FEW:
            return self.path.correction(lists, self.bank.sent()).astype(np.float64)
        # Of few instances the residuals of their references are enough: those of a large bank take long to copy.
        used = np.unique(np.concatenate([each.columns.ravel() for each in lists.values()])).astype(np.int64)
        places = {name: np.searchsorted(used, each.columns).astype(np.int32) for name, each in lists.items()}
        fewer = {name: replace(each, columns=places[name]) for name, each in lists.items()}
        return self.path.correction(fewer, self.bank.sent(used)).astype(np.float64)

    def lists(self, instances: Instances) -> Lists:
        """Return the strongest references of every instance by each similarity."""
        return self.lists_of(self.described(instances), instances.instance_ids)

    def described(self, instances: Instances, *, codes_alone: bool = False) -> Described:
        """Return what is compared of some instances; with ``codes_alone`` no embedding and nothing learned."""
        if codes_alone:
            plain = self.settings.model_copy(update={"language_model": "none"})
            return described_as(instances, self.bank.features, plain)
        return described_as(instances, self.bank.features, self.settings, self.own)

    def weighted(self, described: Described) -> Any:
        """Return the codes of described instances, weighted and scaled to length 1: their products are cosines."""
        return self.bank.compared_codes(described.codes)

    def lists_of(self, described: Described, instance_ids: list[str]) -> Lists:
        """Return the strongest references of instances that are described already."""
        return self.controlled(self.similar(described), described, instance_ids)

    def similar(self, described: Described) -> Lists:
        """Return the strongest references by each similarity, also where all gates are closed."""
        return self.bank.lists(described, max(self.settings.k))

    def controlled(
        self, lists: Lists, described: Described, instance_ids: list[str], folds: Folds | None = None
    ) -> Lists:
        """Return the lists as they are; for the control ``rewired`` with references drawn at random.

        ``folds`` as in :meth:`ReferenceBank.lists`: while gates are fitted, they are drawn from the own fold.
        """
        if self.settings.control != "rewired":
            return lists
        return drawn_at_random(lists, described, instance_ids, self.bank, self.settings.seed, folds)

    def shares(self, instance: int, lists: Lists) -> ReferenceShares:
        """Return what each reference of one instance gives to its correction."""
        return self.path.shares(instance, lists, self.bank.sent())

    def with_residuals(self, residuals: npt.NDArray[np.float32]) -> ReferenceModel:
        """Return the model with other residuals in its bank."""
        return replace(self, bank=replace(self.bank, residuals=residuals))

    def sending_from(self, places: npt.NDArray[np.int64]) -> ReferenceModel:
        """Return a model whose references send from these places: it corrects by lists that count within them."""
        network = None if self.bank.network is None else self.bank.network[places]
        return replace(self, bank=replace(self.bank, residuals=self.bank.residuals[places], network=network))

    def joining(self, instances: Instances) -> tuple[ReferenceBank, Logits, npt.NDArray[np.int64]]:
        """Return labelled instances as references, and z of them with the bank as it is; nothing is fitted.

        Their residuals are those of the own path as it is: it never saw these instances.
        """
        own = self.own.logits(instances)
        targets = instances.task.kind.targets(instances.labels, outputs_of(instances))
        more = replace(
            self.bank,
            described=self.described(instances),
            instance_ids=tuple(instances.instance_ids),
            targets=targets.astype(np.int8),
            residuals=residuals(targets, own, self.exclusive).astype(np.float32),
            fold=None,
            _indexes={},
        )
        if more.head is not None:
            more = more.with_network(more.head)
        return more, *self.answers(own, instances.instance_ids, more.described)

    def grown(self, instances: Instances) -> ReferenceModel:
        """Return the model with labelled instances added to its bank; one that the bank has already is left out."""
        known = set(self.bank.instance_ids)
        rows = np.array([row for row, name in enumerate(instances.instance_ids) if name not in known], np.int64)
        return replace(self, bank=self.bank.grown(self.joining(only(instances, rows))[0]))

    def with_additions(self, additions: Sequence[Added]) -> ReferenceModel:
        """Return the model with what was added to its bank, from what was kept of it."""
        bank = self.bank
        for added in additions:
            instances = added.instances
            subjects = ids_of(instances)["subject_id"].to_list()
            bank = bank.grown(bank.of_kept(added.arrays, subjects, sites_of(instances), instances.instance_ids))
        return replace(self, bank=bank)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything that is kept as arrays."""
        bank, codes = self.bank, self.bank.described.codes
        found = {
            **self.own.arrays(),
            "gates.values": self.path.gates.values,
            "gates.spread": self.path.gates.spread,
            "lambdas": self.path.lambdas,
            "bank.indptr": codes.indptr.astype(np.int64),
            "bank.codes": codes.indices.astype(np.int32),
            "bank.weights": bank.weights,
            "bank.targets": bank.targets,
            "bank.residuals": bank.residuals,
        }
        if bank.described.embeddings is not None and bank.centre is not None:
            found |= {"bank.embeddings": bank.described.embeddings, "bank.centre": bank.centre}
        if bank.described.people is not None:
            found["bank.people"] = bank.described.people
        if bank.fold is not None:
            found["bank.fold"] = bank.fold
        for name, values in bank.described.learned.items():
            found |= {f"bank.learned.{name}": values, f"bank.scale.{name}": bank.scales[name]}
        return found if bank.head is None else found | {"bank.head": bank.head}

    def facts(self) -> dict[str, Any]:
        """Return everything else that is kept, as plain data."""
        bank = self.bank
        return {
            "own_path": self.own.facts(),
            "relations": [[each.similarity, each.k, each.power, each.sends] for each in self.path.relations],
            "exclusive": self.exclusive,
            "bank": {
                "features": list(bank.features),
                "similarities": list(bank.similarities),
                "instance_ids": list(bank.instance_ids),
                "subject_ids": list(bank.described.subjects),
                "sites": list(bank.described.sites),
            },
        }

    @classmethod
    def of(cls, arrays: Arrays, facts: Mapping[str, Any], settings: Any) -> ReferenceModel:
        """Put together what :meth:`arrays` and :meth:`facts` returned."""
        from scipy.sparse import csr_array

        kept = facts["bank"]
        codes = csr_array(
            (np.ones(len(arrays["bank.codes"]), np.float32), arrays["bank.codes"], arrays["bank.indptr"]),
            shape=(len(kept["instance_ids"]), len(kept["features"])),
        )
        learned, scales = (
            {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
            for start in ("bank.learned.", "bank.scale.")
        )
        bank = ReferenceBank(
            Described(
                codes,
                kept["subject_ids"],
                kept["sites"],
                arrays.get("bank.embeddings"),
                learned,
                arrays.get("bank.people"),
            ),
            tuple(kept["features"]),
            arrays["bank.weights"],
            tuple(kept["similarities"]),
            tuple(kept["instance_ids"]),
            arrays["bank.targets"],
            arrays["bank.residuals"],
            settings.tau,
            arrays.get("bank.centre"),
            scales,
            rule=settings.person_rule,
            fold=arrays.get("bank.fold"),
        )
        if "bank.head" in arrays:
            bank = bank.with_network(arrays["bank.head"])
        relations = tuple(Relation(*each) for each in facts["relations"])
        path = ReferencePath(relations, arrays["lambdas"], Gates(arrays["gates.values"], arrays["gates.spread"]))
        own = OwnParts.of(arrays, facts["own_path"], settings.settings_of_part)
        return cls(settings, own, path, bank, bool(facts["exclusive"]))


def described_as(
    instances: Instances, features: tuple[str, ...], settings: Any, own: OwnParts | None = None
) -> Described:
    """Return what is compared of some instances, in the features of a bank; with an own path also what it learned."""
    from scipy.sparse import csr_array

    codes = csr_array(bag_with(instances, features, settings.bag).values != 0).astype(np.float32)
    codes.sort_indices()
    embeddings = None
    if settings.language_model != "none":
        embeddings = embeddings_of(instances, settings.embedder, settings.max_tokens)
    learned = {} if own is None else learned_of(own, instances, settings)
    people = instances.people if settings.person_rule.compares else None
    subjects = ids_of(instances)["subject_id"].to_list()
    return Described(codes, subjects, sites_of(instances), embeddings, learned, people)


def sites_of(instances: Instances) -> list[str | None]:
    """Return the site of every instance's current visit."""
    sites = instances.cohort.visits.select("visit", "site")
    return instances.frame.select("visit").join(sites, on="visit", how="left", maintain_order="left")["site"].to_list()


def drawn_at_random(
    lists: Lists,
    described: Described,
    instance_ids: list[str],
    bank: ReferenceBank,
    seed: int,
    folds: Folds | None = None,
) -> Lists:
    """Return the lists with every reference drawn at random, the same no matter who else is predicted.

    Where sex or age decides, it is drawn among those who may be references; with ``folds`` among those of the own fold.
    """
    keys = np.array([zlib.crc32(f"{seed}/{name}".encode()) for name in instance_ids], dtype=np.int64)
    people = numbered(described.subjects, bank.described.subjects)
    of_bank = numbered(bank.described.subjects, bank.described.subjects)
    drawn = {name: Neighbours(found.columns.copy(), found.similarities.copy()) for name, found in lists.items()}
    for rows, allowed in _who_may_have_whom(described, bank, folds):
        for name, found in drawn.items():
            if len(allowed):
                some = rewired(found.rows(rows), keys[rows] + zlib.crc32(name.encode()), people[rows], of_bank[allowed])
                found.columns[rows], found.similarities[rows] = allowed[some.columns], some.similarities
    return drawn


def _who_may_have_whom(described: Described, bank: ReferenceBank, folds: Folds | None) -> Iterator[tuple[Rows, Rows]]:
    """Yield groups of instances with the places of those in the bank who may be their references."""
    looking, others = bank.bounds(described, reach=True), bank.bounds(bank.described)
    own, of_bank = (np.zeros(len(each), np.int64) for each in (described, bank)) if folds is None else folds
    if looking is None or others is None:
        looking, others = np.zeros((len(described), 0), np.int64), np.zeros((len(bank), 0), np.int64)
    kinds, kind_of = np.unique(np.column_stack([own, looking]), axis=0, return_inverse=True)
    for number, (fold, *kind) in enumerate(kinds):
        rows, may = np.flatnonzero(kind_of.ravel() == number), of_bank == fold
        yield rows, np.flatnonzero(may & fitting(np.array(kind), others) if kind else may)


def subject_ids_of(instances: Instances) -> npt.NDArray[np.str_]:
    """Return the patient of every instance by the id of the source."""
    return ids_of(instances).select(pl.col("subject_id")).to_series().to_numpy().astype(str)
