r"""The scene of a run whose references bring their outcomes: everything about a reference is an exact closed form.

.. math:: z_{ik} = u_{ik} + \sum_j \mathrm{share}_{ijk}, \qquad
          \mathrm{Imp}(i, j) = \sum_r (\gamma_r + \delta_{rk}) (R_{jk} - m^r_{ik}) / (d^r_i + \lambda_r)

The graph of the scene links an evaluated instance to the union of its references over all relations, and
:class:`ReferencePass` answers for it what a graph network answers elsewhere: logits, importances, logits without some
references. A removed reference leaves its place empty; the sums over the others are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from patients_like_me.errors import PlmError
from patients_like_me.explanation.network_pass import check_removals
from patients_like_me.explanation.scene import EvaluatedSplit, Scene
from patients_like_me.explanation.target_edges import Floats, Integers, TargetEdges
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.people import ANYBODY, PersonRule
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.additive_references import AdditiveReferences, Lists
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.systems.problem import only
from patients_like_me.systems.reference_path.relations import Neighbours
from patients_like_me.systems.reference_path.shares import ReferenceShares
from patients_like_me.systems.registry import find_system
from patients_like_me.tasks.audit_findings import Finding
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.joining import followed_by
from patients_like_me.workers import Progress


def shows_shares(run: Run) -> bool:
    """Tell whether the references of a run bring their outcomes, so that each has a share in the predictions."""
    if not run.capabilities.references or run.has_patient_graph:
        return False
    return find_system(run.identity.system).additive_references is not None


def opened_model_of(run: Run) -> AdditiveReferences:
    """Return the fitted model of a run whose references bring their outcomes; another run is refused."""
    run.require_references()
    system = find_system(run.identity.system)
    if run.has_patient_graph or system.additive_references is None:
        raise PlmError(
            f"the references of the run '{run.folder}' ({run.identity.system}) have no shares in its predictions",
            remedy="give a run of the system references",
        )
    return system.additive_references(load_fitted(system, run))


def reference_model_of(run: Run) -> AdditiveReferences:
    """Return the same; a bank whose instances are not all in its records is refused too."""
    model = opened_model_of(run)
    if list(model.bank.instance_ids) != run.reference_instances.instance_ids:
        raise PlmError(
            f"the bank of the run '{run.folder}' has references whose records are not with it",
            remedy="add them again with plm bank add, which keeps their records",
        )
    return model


def audit_of_references(folder: Path, cohort: Path | None = None) -> tuple[list[Finding], list[str]]:
    """Return what the leakage audit says about the references of a run, and what else to know about them."""
    from patients_like_me.graph.own_paths import audit_own_paths
    from patients_like_me.systems.reference_path.bank_audit import audit_references

    run = load_run(folder, cohort)
    if run.uses_graph and run.has_patient_graph:
        check, notes = audit_own_paths(run.graph)
        return [check], notes
    return audit_references(reference_model_of(run), run.instances), []


@dataclass(frozen=True, eq=False)
class ReferencePass:
    """The correction on the graph of a scene: the bank's nodes first, then the evaluated instances.

    ``own`` [instances, outputs] are their own answers u, ``lists`` their references by similarity.
    """

    model: AdditiveReferences
    graph: PatientGraph
    own: Floats
    lists: dict[str, Any]

    @property
    def first(self) -> int:
        """The node of the first evaluated instance."""
        return len(self.graph) - len(self.own)

    @cached_property
    def logits(self) -> Floats:
        """The logits of all nodes; those of the bank are references only and have none."""
        found = np.full((len(self.graph), self.own.shape[1]), np.nan)
        jobs = np.arange(self.first, len(self.graph))
        empty = np.zeros(0, np.int64)
        found[self.first :] = self.logits_without(jobs, np.zeros(len(jobs) + 1, np.int64), empty)
        return found

    def shares_of(self, node: int) -> ReferenceShares:
        """Return what each reference gives to the correction of a node; only edges of the graph count."""
        kept = self._lists_of(np.array([node]), np.zeros(2, np.int64), np.zeros(0, np.int64))
        return self.model.shares(0, kept)

    def importances(
        self, edges: TargetEdges, choice: Floats, *, threads: int | None = None, progress: Progress | None = None
    ) -> Floats:
        """Return Imp(i, j): how the target logit changes if the two are slightly more alike in all their relations."""
        del threads
        found = np.zeros(edges.edges)
        for number, node in enumerate(edges.targets):
            row = edges.row(number)
            if not len(edges.neighbors[row]):
                continue
            shares = self.shares_of(int(node))
            found[row] = at_neighbors(
                edges.neighbors[row], shares, (shares.importance.sum(axis=0) * choice[number]).sum(axis=1)
            )
            if progress is not None:
                progress(number + 1, len(edges))
        return found

    def logits_without(
        self,
        targets: Integers,
        removed_indptr: Integers,
        removed_entries: Integers,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """Return the logits [jobs, outputs] of each job's target without the job's references, exactly."""
        del threads, progress
        targets = np.asarray(targets, np.int64)
        check_removals(self.graph.indptr, targets, removed_indptr, removed_entries)
        own: Floats = self.own[targets - self.first]
        if not self.model.uses_references or not len(targets):
            return own
        lists = self._lists_of(targets, np.asarray(removed_indptr), np.asarray(removed_entries, np.int64))
        return own + self.model.correction(lists)

    def _lists_of(self, targets: Integers, removed_indptr: Integers, removed_entries: Integers) -> dict[str, Any]:
        """Return the lists of the jobs' targets; what is not an edge, or is removed, has no weight."""
        # One key per pair of job and reference.
        size = self.first
        edges = TargetEdges.of(self.graph.indptr, self.graph.neighbors, targets)
        linked = edges.target_of_edge * size + edges.neighbors
        jobs = np.repeat(np.arange(len(targets)), np.diff(removed_indptr))
        linked = np.setdiff1d(linked, jobs * size + self.graph.neighbors[removed_entries], assume_unique=True)
        found = {}
        for name, each in self.lists.items():
            rows = each.rows(targets - self.first)
            keys = np.arange(len(targets))[:, None] * size + rows.columns.astype(np.int64)
            found[name] = replace(rows, similarities=np.where(np.isin(keys, linked), rows.similarities, 0))
        return found


def at_neighbors(neighbors: Integers, shares: ReferenceShares, values: Floats) -> Floats:
    """Return the values of references in the order of a node's neighbours."""
    place = {int(reference): number for number, reference in enumerate(shares.references)}
    return np.array([values[place[int(node)]] if int(node) in place else 0.0 for node in neighbors])


@dataclass(frozen=True, eq=False)
class ReferenceScene(Scene):
    """The scene of such a run; there are no embeddings: the likeness of two instances is the IDF cosine of their codes.

    Diagnoses, procedures and drugs are codes; age, sex, insurance and hospital are not, though relations may read them.
    """

    fitted: Any = None
    own: Any = None
    lists: Any = None

    @property
    def uses_graph(self) -> bool:
        """Tell whether any gate is open."""
        return bool(self.fitted.uses_references)

    @property
    def linked_in_words(self) -> str:
        """Which instances have a reference."""
        compared = ", ".join(self.fitted.bank.similarities)
        return f"that resemble a patient of the bank in what is compared ({compared})"

    def nobody_in_words(self, node: int) -> str:
        """Say why a node without references has none."""
        if not self.graph.own_codes[node] and not self.has_codes(int(self.rows[node])):
            return "the patient has no recorded diagnosis, procedure or drug to compare with those of others"
        return (
            f"no patient of the bank{self.person_rule.within_in_words()} has a diagnosis, procedure or drug in common "
            "with this patient"
        )

    @property
    def person_rule(self) -> PersonRule:
        """Who may be a reference of whom by sex and age."""
        found: PersonRule = getattr(self.fitted.bank, "rule", ANYBODY)
        return found

    @cached_property
    def bank_instances(self) -> pl.DataFrame:
        """The references of the bank: instance_id, subject_id, label (a list)."""
        bank = self.fitted.bank
        labels = self.task.kind.as_lists(bank.targets)
        return pl.DataFrame(
            {"instance_id": bank.instance_ids, "subject_id": bank.described.subjects, "label": labels},
            schema={"instance_id": pl.String, "subject_id": pl.String, "label": pl.List(pl.Int64)},
        )

    @cached_property
    def known(self) -> ReferencePass:
        """The correction, from which shares, importances and removals are computed."""
        return ReferencePass(self.fitted, self.graph, self.own, self.lists)

    @cached_property
    def logits(self) -> torch.Tensor:
        """The logits [N, outputs] of all nodes."""
        return torch.from_numpy(self.known.logits)

    @property
    def compared(self) -> Any:
        """The weighted codes of every node, rows of length 1."""
        return self._codes

    def cosines_to(self, node: int) -> npt.NDArray[np.float64]:
        """Return the IDF cosine of the codes of one node with those of every node."""
        found: npt.NDArray[np.float64] = (self._codes @ self._codes[[node]].T).toarray().ravel().astype(np.float64)
        return found

    def cosines_to_training(self, node: int) -> npt.NDArray[np.float64]:
        """Return the IDF cosine of one node with every training instance."""
        return self.cosines_to(node)[: self.known.first]

    def shares_in(self, node: int, choice: Floats) -> dict[int, float]:
        """Return the share of every reference in the target logit of a node, by its node; they add up exactly."""
        if not self.fitted.uses_references:
            return {}
        found = self.known.shares_of(node)
        return dict(zip(found.references.tolist(), (found.shares @ choice).tolist(), strict=True))

    @cached_property
    def _codes(self) -> Any:
        from scipy.sparse import csr_array, vstack

        model = self.fitted
        own = model.described(only(self.instances, self.rows[self.known.first :]), codes_alone=True)
        return csr_array(vstack([model.weighted(model.bank.described), model.weighted(own)]))


def set_reference_scene(run: Run, split: EvaluatedSplit = "test", newcomers: Instances | None = None) -> ReferenceScene:
    """Return the scene of a split, or of newcomers: each instance linked to its references in the bank."""
    model, everyone = reference_model_of(run), run.everyone
    if newcomers is not None:
        everyone = followed_by(run.reference_instances, newcomers)
    train, own_rows = everyone.rows_of("train"), everyone.rows_of(split)
    rows = np.concatenate([train, own_rows])
    instances = only(everyone, own_rows)
    lists = shown_lists(model, model.described(instances), instances.instance_ids)
    sets = taken(everyone.diagnosis_sets, rows)
    counts, neighbors, weights = [np.zeros(len(train), np.int64)], [], []
    diagnoses = _presence(sets)
    number = np.zeros(len(own_rows), np.int64)
    for place in range(len(own_rows)):
        columns = [each.columns[place][each.similarities[place] > 0] for each in lists.values()]
        found = np.unique(np.concatenate(columns)) if columns else np.zeros(0, np.int32)
        neighbors.append(found.astype(np.int32))
        shared = diagnoses[found.astype(np.int64)] @ diagnoses[[len(train) + place]].T
        weights.append(shared.toarray().ravel().astype(np.int64))
        number[place] = len(found)
    counts.append(number)
    graph = PatientGraph(
        sets,
        GraphSettings(tau=1, references="bank"),
        np.concatenate([[0], np.cumsum(np.concatenate(counts))]).astype(np.int64),
        np.concatenate(neighbors) if neighbors else np.zeros(0, np.int32),
        np.concatenate(weights) if weights else np.zeros(0, np.int64),
    )
    empty = torch.zeros(len(rows), 0)
    return ReferenceScene(
        run,
        everyone,
        split,
        graph,
        empty,
        rows,
        newcomers is not None,
        kinds_missing=newcomers.cohort.missing_kinds if newcomers is not None and newcomers.cohort.folder else None,
        fitted=model,
        own=model.own_logits(instances),
        lists=lists,
    )


def shown_lists(model: AdditiveReferences, described: Any, instance_ids: list[str], codes: Any = None) -> Lists:
    """Return the references that predictions use; where they use none, similar patients.

    Whom no prediction uses is shown for likeness alone, so a patient without a code in common is not. ``codes`` are the
    weighted codes of the bank, where they are known.
    """
    if model.uses_references:
        return model.lists_of(described, instance_ids)
    bank = model.weighted(model.bank.described) if codes is None else codes
    own = model.weighted(described)
    return {name: with_codes_in_common(each, own, bank) for name, each in model.similar(described).items()}


def with_codes_in_common(lists: Neighbours, own: Any, bank: Any) -> Neighbours:
    """Return lists without those who share no code: their places are unused."""
    kept = lists.similarities > 0
    for place, columns in enumerate(lists.columns):
        kept[place] &= (bank[columns] @ own[[place]].T).toarray().ravel() > 0
    return Neighbours(np.where(kept, lists.columns, 0), np.where(kept, lists.similarities, np.float32(0)))


def _presence(sets: Any) -> Any:
    from scipy.sparse import csr_array

    return csr_array(
        (np.ones(len(sets.codes), np.float32), sets.codes, sets.indptr), shape=(len(sets), len(sets.vocabulary))
    )
