"""What a system is given: inputs of all instances, labels of the training split, and a judge for its choices.

Labels of validation and test are not in it. Validation is reached through the judge alone, which answers with the
task's first metric; the test labels are not handed out. What a system is given is its own copy: the room writes and
scores by rows and ids that the system cannot change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.joining import only as only
from patients_like_me.tasks.kinds import LabelKind, Probabilities
from patients_like_me.tasks.metrics import score

#: Logits [instances, outputs]: log-odds (a binary task has one output), or for classes anything whose softmax are the
#: probabilities.
Logits = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """One task over one cohort, as a system sees it.

    ``targets`` are the training labels as 0/1 [training instances, outputs], for classes one column each, in the order
    of ``train``. ``judge`` scores probabilities of validation, in the order of ``validation``.
    """

    instances: Instances
    train: Rows
    validation: Rows
    test: Rows
    targets: npt.NDArray[np.float64]
    judge: Callable[[Probabilities], float | None]
    #: The same instances with the labels of validation: for a loss that decides when to stop. Test stays hidden.
    with_validation_labels: Callable[[], Instances]
    #: Logits [training instances, outputs] added to the answer while it is fitted: what references said before.
    offset: npt.NDArray[np.float32] | None = None

    @property
    def evaluated(self) -> Rows:
        """The rows whose predictions are written: validation first, then test."""
        return np.concatenate([self.validation, self.test])

    @property
    def kind(self) -> LabelKind:
        """What the labels are."""
        return self.instances.task.kind

    @property
    def outputs(self) -> int:
        """The number of logits per instance."""
        return int(self.targets.shape[1])

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """The label rates of the training split."""
        rates: npt.NDArray[np.float64] = self.targets.mean(axis=0)
        return rates


def problem_of(instances: Instances) -> Problem:
    """Make the problem of some instances: the labels of validation and test are taken away."""
    refuse_few_patients(instances)
    train, validation, test = (instances.rows_of(split) for split in ("train", "validation", "test"))
    for split, rows in (("training", train), ("validation", validation)):
        if not len(rows):
            raise PlmError(f"no instance is in the {split} split", remedy="use a larger cohort or other shares")
    kind, metric = instances.task.kind, instances.task.metrics[0]
    hidden = instances.labels[validation]

    def judge(probabilities: Probabilities) -> float | None:
        return score((metric,), hidden, kind.in_shape(probabilities))[metric]

    shown = _without_given_labels(instances)

    def blanked(*kept: Rows) -> Instances:
        labels = np.zeros_like(instances.labels)
        for rows in kept:
            labels[rows] = instances.labels[rows]
        return copied(replace(shown, labels=labels))

    return Problem(
        instances=blanked(train),
        train=train,
        validation=validation,
        test=test,
        targets=kind.targets(instances.labels[train], outputs_of(instances)),
        judge=judge,
        with_validation_labels=lambda: blanked(train, validation),
    )


def copy_for_system(problem: Problem) -> Problem:
    """Return the problem with rows and tables of its own, which a system may overwrite without changing the room's."""
    rows = {name: getattr(problem, name).copy() for name in ("train", "validation", "test")}
    return replace(problem, instances=copied(problem.instances), **rows)


def copied(instances: Instances) -> Instances:
    """Return instances whose tables can be changed without changing these; their columns are shared."""
    cohort = instances.cohort
    own = replace(
        cohort,
        patients=cohort.patients.clone(),
        visits=cohort.visits.clone(),
        codes={kind: table.clone() for kind, table in cohort.codes.items()},
        vocabulary=cohort.vocabulary.clone(),
        labels=cohort.labels.clone(),
    )
    if "hash" in vars(cohort):
        own = replace(own, known_hash=cohort.hash)
    return replace(instances, cohort=own, frame=instances.frame.clone(), labels=instances.labels.copy())


def _without_given_labels(instances: Instances) -> Instances:
    """Take the labels that the source gives for the task out of the cohort, unless earlier ones are known by then."""
    cohort, task = instances.cohort, instances.task
    own = pl.col("task").str.to_lowercase() == task.name.lower()
    if task.known_by_next_visit or not cohort.labels.select(own.any()).item():
        return instances
    # The hash stays that of the records: it says of which cohort the run is.
    return replace(instances, cohort=replace(cohort, labels=cohort.labels.filter(~own), known_hash=cohort.hash))


def refuse_few_patients(instances: Instances) -> None:
    """Refuse a cohort that cannot be split."""
    patients = instances.frame["subject"].n_unique()
    if patients < 3:
        raise PlmError(
            f"the task has {patients} {'patient' if patients == 1 else 'patients'}, too few for training, validation "
            "and test",
            remedy="use a larger cohort",
        )
    if instances.task.kind.is_set and not instances.label_vocabulary:
        raise PlmError("no training patient has any label", remedy="use a larger cohort or another split seed")


def outputs_of(instances: Instances) -> int:
    """Return the number of logits per instance."""
    return instances.task.kind.outputs(len(instances.label_vocabulary))
