"""``neighbors``: the vote of the bank, that is, of the training instances that share diagnoses with the predicted one.

With w the number of shared diagnoses, y a neighbour's label and r the label's rate in the training split,

    p_i = (sum_j w_ij y_j + prior * r) / (sum_j w_ij + prior)

so that an instance without neighbours gets the rate. Neighbours are training instances, never one of the same patient.
Links are found by the graph's kernels for a block of instances at a time and added up at once: no array over all pairs
is ever in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from patients_like_me.graph.bank import with_shared_patients
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.runs.predictions import ids_of
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.contract import Arrays, Candidate, Fitted, RunContext, System, SystemSettings, choose
from patients_like_me.systems.problem import Logits, Problem, only
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import Probabilities

Whole = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: The links of one block are in memory at once: at most this many times the size of the bank.
_ROWS_PER_BLOCK = 256
#: With more links than this share of all pairs, a block is multiplied as a full matrix.
_DENSE_SHARE = 0.05


class NeighborsSettings(SystemSettings):
    """The vote of the training instances that share diagnoses; all combinations are tried on validation."""

    tau: tuple[Whole, ...] = Field(
        (1, 2, 4, 8), min_length=1, description="a neighbour shares at least this many diagnoses"
    )
    max_neighbors: tuple[Whole | None, ...] = Field(
        (32, 128, None), min_length=1, description="only this many of the strongest neighbours vote; null: all"
    )
    prior: tuple[Positive, ...] = Field(
        (300.0, 100.0, 30.0, 10.0),
        min_length=1,
        description="weight of the label's rate in the vote, in shared diagnoses",
    )


@dataclass(frozen=True)
class VotingBank:
    """The training instances as voters: their diagnoses, patients and labels [voters, outputs]."""

    sets: DiagnosisSets
    subject_ids: list[str]
    targets: npt.NDArray[np.float64]

    def votes(
        self, instances: Instances, tau: int, max_neighbors: int | None
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return for every instance the weighted votes [N, outputs] and their total weight [N, 1]."""
        from scipy.sparse import csr_array

        own, newcomers = with_shared_patients(self.subject_ids, self.sets, instances)
        settings = GraphSettings(tau=tau, max_neighbors=max_neighbors, references="bank")
        empty = np.zeros(len(own) + 1, dtype=np.int64)
        bank = PatientGraph(own, settings, empty, np.zeros(0, np.int32), np.zeros(0, np.uint8))
        votes, total = np.zeros((len(instances), self.targets.shape[1])), np.zeros((len(instances), 1))
        for first in range(0, len(instances), _ROWS_PER_BLOCK):
            rows = np.arange(first, min(first + _ROWS_PER_BLOCK, len(instances)))
            links = bank.link(taken(newcomers, rows), patients="shared")
            weights = csr_array(
                (links.weights.astype(np.float64), links.neighbors, links.indptr), shape=(len(rows), len(own))
            )
            # Whole numbers add up exactly in any order, so the faster product may be taken.
            many = weights.nnz > _DENSE_SHARE * len(rows) * len(own)
            votes[rows] = (weights.toarray() if many else weights) @ self.targets
            total[rows] = np.asarray(weights.sum(axis=1)).reshape(-1, 1)
        return votes, total

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the bank as arrays."""
        return {
            "set_indptr": self.sets.indptr,
            "set_codes": self.sets.codes,
            "targets": self.targets.astype(np.uint8),
        }

    def facts(self) -> dict[str, Any]:
        """Return what else is kept: the patients' ids and the names of the diagnoses."""
        return {"subject_ids": self.subject_ids, "vocabulary": list(self.sets.vocabulary)}

    @classmethod
    def kept(cls, arrays: Arrays, facts: Any) -> VotingBank:
        """Return the bank from its arrays and facts."""
        number = len(facts["subject_ids"])
        sets = DiagnosisSets(
            indptr=arrays["set_indptr"],
            codes=arrays["set_codes"],
            patients=np.zeros(number, dtype=np.int32),
            instance_ids=tuple(f"bank/{place}" for place in range(number)),
            vocabulary=tuple(facts["vocabulary"]),
            splits=np.full(number, "train"),
        )
        return cls(sets, facts["subject_ids"], arrays["targets"].astype(np.float64))


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Let the neighbours vote under every setting of the grid and keep the best on validation."""
    settings: NeighborsSettings = run.settings
    # Of equally strong neighbours the first is kept: the order must not depend on that of the training rows.
    order = np.argsort(problem.train, kind="stable")
    training = only(problem.instances, problem.train[order])
    bank = VotingBank(training.diagnosis_sets, ids_of(training)["subject_id"].to_list(), problem.targets[order])
    best, account = choose(problem, _candidates(problem, bank, settings, run))
    alone = best.choice["instances_without_neighbors"]
    note = (
        f"{alone:,} of {len(problem.validation):,} validation instances have no neighbour in the bank and get the rates"
    )
    facts = {**bank.facts(), **{name: best.choice[name] for name in ("tau", "max_neighbors", "prior")}}
    arrays = {**bank.arrays(), "rates": problem.rates}
    return Fitted(settings, arrays, facts, replace(account, notes=[*account.notes, note]), state=bank)


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Return the vote of the bank."""
    facts = fitted.facts
    bank = fitted.state or VotingBank.kept(fitted.arrays, facts)
    votes, total = bank.votes(instances, facts["tau"], facts["max_neighbors"])
    return instances.task.kind.logits(_shrunk(votes, total, facts["prior"], fitted.arrays["rates"]))


def _shrunk(
    votes: npt.NDArray[np.float64], total: npt.NDArray[np.float64], prior: float, rates: npt.NDArray[np.float64]
) -> Probabilities:
    return (votes + prior * rates) / (total + prior)


def _candidates(
    problem: Problem, bank: VotingBank, settings: NeighborsSettings, run: RunContext
) -> Iterator[Candidate]:
    """Yield the votes of all settings, the strictest graph and the strongest prior first."""
    validation = only(problem.instances, problem.validation)
    for tau in sorted(settings.tau, reverse=True):
        for most in settings.max_neighbors:
            run.report(f"votes of {'all' if most is None else most} neighbours that share at least {tau} diagnoses")
            votes, total = bank.votes(validation, tau, most)
            alone = int((total == 0).sum())
            for prior in settings.prior:
                choice = {"tau": tau, "max_neighbors": most, "prior": prior, "instances_without_neighbors": alone}
                yield Candidate(choice, _shrunk(votes, total, prior, problem.rates))


SYSTEM = System(
    name="neighbors",
    description="the vote of the training instances that share diagnoses, shrunk towards the label rates",
    settings=NeighborsSettings,
    capabilities=Capabilities(newcomers=True),
    fit=fit,
    predict=predict,
)
