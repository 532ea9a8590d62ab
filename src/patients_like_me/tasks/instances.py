"""Instances: the visit prefixes that are predicted, what each may see, and its label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort, Kind
from patients_like_me.records.file_errors import shown_value
from patients_like_me.tasks.diagnosis_sets import UNKNOWN, DiagnosisSets
from patients_like_me.tasks.own_tasks import with_classes
from patients_like_me.tasks.splits import split_of_patients
from patients_like_me.tasks.task import Split, Task, TaskSettings

#: Numbers of instances.
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Instances:
    """The instances of one task over one cohort.

    ``frame`` has a row per instance: ``instance`` (row number), ``instance_id`` (the visit's id), ``visit`` (the
    current one), ``first_visit`` (where the patient's history starts), ``subject`` and ``split``.
    ``labels`` is an integer per instance, or for multi-label tasks a 0/1 matrix over ``label_vocabulary``, which
    holds the codes of the training split only; ``labels_outside_vocabulary`` counts what it cannot express.

    Everything a model may see of the codes comes from :meth:`inputs`; :attr:`diagnosis_sets`, for graphs, are the same
    diagnoses as numbers.
    """

    cohort: Cohort
    task: Task
    settings: TaskSettings
    frame: pl.DataFrame
    labels: npt.NDArray[np.int64]
    label_vocabulary: tuple[str, ...] = ()
    labels_outside_vocabulary: int = 0

    def __len__(self) -> int:
        return self.frame.height

    @property
    def instance_ids(self) -> list[str]:
        """The visit id of every instance."""
        return self.frame["instance_id"].to_list()

    @property
    def splits(self) -> npt.NDArray[np.str_]:
        """The split of every instance."""
        return self.frame["split"].to_numpy().astype(str)

    def rows_of(self, split: Split) -> npt.NDArray[np.int64]:
        """Return the row numbers of one split."""
        return np.flatnonzero(self.splits == split)

    @cached_property
    def prediction_times(self) -> pl.DataFrame:
        """The time at which each instance is predicted (null where the visit has no dates)."""
        column = "admission_time" if self.task.predicted_at == "admission" else "discharge_time"
        times = self.cohort.visits.select("visit", pl.col(column).alias("prediction_time"))
        return self.frame.select("instance", "visit").join(times, on="visit", how="left", maintain_order="left")

    @cached_property
    def history(self) -> pl.DataFrame:
        """The earlier visits that each instance may see: ``instance, visit``, oldest first.

        With inputs ``known``, a visit that had not ended by the prediction is left out; one whose end is not recorded
        counts as ended only where there are no dates at all.
        """
        first = self.frame["first_visit"].to_numpy().astype(np.int64)
        counts = self.frame["visit"].to_numpy().astype(np.int64) - first
        instances = np.repeat(np.arange(len(self)), counts)
        offsets = np.arange(len(instances)) - np.repeat(np.cumsum(counts) - counts, counts)
        pairs = pl.DataFrame(
            {"instance": instances, "visit": np.repeat(first, counts) + offsets},
            schema={"instance": pl.UInt32, "visit": pl.UInt32},
        )
        if self.cohort.unordered:
            pairs = self._known_to_be_earlier(pairs)
        if self.settings.inputs == "retrospective":
            return pairs
        ended = self.cohort.visits.select("visit", "discharge_time")
        return (
            pairs.join(ended, on="visit", how="left", maintain_order="left")
            .join(self.prediction_times.drop("visit"), on="instance", how="left", maintain_order="left")
            .filter(_is_known(pl.col("discharge_time")))
            .select("instance", "visit")
        )

    def _known_to_be_earlier(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """Keep the visits that came before the current one, not those whose order the source does not tell."""
        sequence = self.cohort.visits.select("visit", "sequence")
        now = self.frame.select("instance", "visit").join(sequence, on="visit", how="left", maintain_order="left")
        return (
            pairs.join(sequence, on="visit", how="left", maintain_order="left")
            .join(now.select("instance", pl.col("sequence").alias("now")), on="instance", maintain_order="left")
            .filter(pl.col("sequence") < pl.col("now"))
            .select("instance", "visit")
        )

    def current_codes(self, kind: Kind) -> pl.DataFrame:
        """Return the codes of the current visits that may be seen: ``instance, visit, code``."""
        return self._current(kind, self.cohort.codes[kind])

    def inputs(self, kind: Kind) -> pl.DataFrame:
        """Return every code of a kind that an instance may see: ``instance, visit, code``."""
        earlier = self._earlier(self.cohort.codes[kind])
        return pl.concat([earlier, self.current_codes(kind)]).sort("instance", "visit", "code")

    def _current(self, kind: Kind, codes: pl.DataFrame) -> pl.DataFrame:
        """Keep of a kind's codes those of current visits that may be seen."""
        if kind not in self.task.inputs_of_current_visit(self.settings):
            codes = codes.clear()
        if self.settings.inputs != "known":
            now = self.frame.select("instance", "visit")
            return now.join(codes.drop("time"), on="visit", how="inner", maintain_order="left")
        # A diagnosis has no time of its own: the end of the stay, when it is known, is used instead. At admission
        # no undated code of the stay is known.
        found = self.prediction_times.join(codes, on="visit", how="inner", maintain_order="left")
        at_the_end = self.task.predicted_at != "admission"
        undated = pl.col("time").is_null() & pl.col("prediction_time").is_not_null() & pl.lit(at_the_end)
        return found.filter(undated | _is_known(pl.col("time"))).select("instance", "visit", "code")

    def _earlier(self, codes: pl.DataFrame) -> pl.DataFrame:
        """Keep of a kind's codes those of earlier visits that may be seen."""
        if self.settings.inputs != "known":
            return self.history.join(codes.drop("time"), on="visit", how="inner", maintain_order="left")
        found = self.history.join(codes, on="visit", how="inner", maintain_order="left")
        times = self.prediction_times.select("instance", "prediction_time")
        dated = found.join(times, on="instance", how="left", maintain_order="left")
        known = dated.filter(pl.col("time").is_null() | _is_known(pl.col("time")))
        return known.select("instance", "visit", "code")

    @cached_property
    def diagnosis_sets(self) -> DiagnosisSets:
        """The distinct diagnoses of each instance's allowed input, for the patient graph."""
        codes = self.cohort.codes["diagnosis"]
        words = tuple(sorted(codes["code"].unique().to_list()))
        # Millions of instances have tens of millions of codes: as numbers they take a third of the memory.
        number = {code: place for place, code in enumerate(words)}
        as_numbers = (
            pl.col("code").replace_strict(number, return_dtype=pl.Int64) if words else pl.col("code").cast(pl.Int64)
        )
        numbered = codes.with_columns(as_numbers)
        seen = [self._earlier(numbered), self._current("diagnosis", numbered)]
        del numbered
        places = np.concatenate(
            [(part["instance"].cast(pl.Int64) * len(words) + part["code"]).to_numpy() for part in seen]
        )
        del seen
        places = _distinct_sorted(places)
        instances, found = np.divmod(places, max(1, len(words)))
        del places
        present = np.bincount(found, minlength=len(words)) > 0
        counts = np.bincount(instances, minlength=len(self))
        return DiagnosisSets(
            indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            codes=(np.cumsum(present) - 1).astype(np.int32)[found],
            patients=self.frame["subject"].to_numpy().astype(np.int32),
            instance_ids=tuple(self.instance_ids),
            vocabulary=tuple(word for word, there in zip(words, present, strict=True) if there),
            splits=self.splits,
            cohort_hash=self.cohort.hash,
            sexes=self.people[:, 0].copy(),
            ages=self.people[:, 1].copy(),
        )

    @cached_property
    def people(self) -> npt.NDArray[np.int16]:
        """The sex (0 female, 1 male) and the age at the current visit of every instance, -1 where not recorded."""
        sexes = _sexes(self.cohort.patients["sex"].gather(self.frame["subject"]))
        ages = self.cohort.visits["age"].gather(self.frame["visit"]).fill_null(UNKNOWN).to_numpy().astype(np.int16)
        return np.stack([sexes, ages], axis=1)


def _distinct_sorted(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sort numbers in place and return each of them once.

    >>> _distinct_sorted(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    numbers.sort()
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if len(numbers) else numbers


def _sexes(recorded: pl.Series) -> npt.NDArray[np.int16]:
    """Return recorded sexes as numbers: 0 female, 1 male, -1 anything else.

    >>> _sexes(pl.Series(["F", "male", None, "unknown"])).tolist()
    [0, 1, -1, -1]
    """
    first = recorded.str.strip_chars().str.to_lowercase().str.slice(0, 1).fill_null("")
    known = recorded.str.strip_chars().str.to_lowercase().is_in(["f", "m", "female", "male"]).fill_null(False)
    numbers = first.replace_strict({"f": 0, "m": 1}, default=UNKNOWN, return_dtype=pl.Int16).to_numpy()
    return np.where(known.to_numpy(), numbers, UNKNOWN).astype(np.int16)


def _is_known(time: pl.Expr) -> pl.Expr:
    """Tell whether a time is before the prediction; without any dates, the order of the visits alone decides."""
    no_dates = time.is_null() & pl.col("prediction_time").is_null()
    return (time <= pl.col("prediction_time")).fill_null(False) | no_dates


def instances_to_predict(
    cohort: Cohort,
    task: Task,
    settings: TaskSettings,
    label_vocabulary: tuple[str, ...] = (),
    *,
    every_visit: bool = False,
) -> Instances:
    """Make instances without labels, for prediction: each patient's last visit, or every visit.

    All labels are zero and mean nothing; all instances are of the split ``test``.
    """
    settings = task.settings(settings)
    task = task.under(settings)
    last = pl.col("visit") == pl.col("visit").max().over("subject")
    frame = (
        cohort.visits.select("visit", pl.col("visit_id").alias("instance_id"), "subject", "position")
        .filter(pl.lit(True) if every_visit else last)
        .sort("visit")
        .with_row_index("instance")
        .with_columns((pl.col("visit") - pl.col("position")).alias("first_visit"), pl.lit("test").alias("split"))
    )
    return Instances(
        cohort=cohort,
        task=task,
        settings=settings,
        frame=frame.select("instance", "instance_id", "visit", "first_visit", "subject", "split"),
        labels=task.kind.no_labels(frame.height, len(label_vocabulary)),
        label_vocabulary=label_vocabulary,
    )


def build_instances(
    cohort: Cohort,
    task: Task,
    settings: TaskSettings | None = None,
    *,
    label_vocabulary: tuple[str, ...] | None = None,
) -> Instances:
    """Make the instances of a task: one per labelled visit, its input the visits of the patient up to it.

    ``label_vocabulary`` is given for a cohort whose labels are to be read as those of an earlier training; else it is
    that of the training patients.
    """
    settings = task.settings(settings)
    task = task.under(settings)
    labelled = task.labeller(cohort, settings)
    _refuse_wrong_labels(labelled, task, cohort, declared=label_vocabulary is None)
    labelled = labelled.select("visit", "label")
    if labelled.is_empty():
        raise PlmError(
            f"no visit of this cohort has a label for the task '{task.name}'",
            remedy="the task needs visit times (or medications), or a labels table",
        )
    visits = cohort.visits.select("visit", pl.col("visit_id").alias("instance_id"), "subject", "position")
    splits = pl.DataFrame(
        {
            "subject": cohort.patients["subject"],
            "split": split_of_patients(cohort.patients["subject_id"].to_list(), settings),
        },
        schema_overrides={"subject": pl.UInt32},
    )
    frame = (
        labelled.join(visits, on="visit", how="left", maintain_order="left")
        .join(splits, on="subject", how="left", maintain_order="left")
        .sort("visit")
        .with_row_index("instance")
        .with_columns((pl.col("visit") - pl.col("position")).alias("first_visit"))
    )
    outside = 0
    if frame.schema["label"] == pl.String:
        task, frame, outside = _with_classes(task, frame, label_vocabulary)
    labels, vocabulary = frame["label"].to_numpy(), task.classes
    if task.kind.is_set:
        labels, vocabulary, outside = _label_matrix(frame, label_vocabulary)
    return Instances(
        cohort=cohort,
        task=task,
        settings=settings,
        frame=frame.select("instance", "instance_id", "visit", "first_visit", "subject", "split"),
        labels=labels.astype(np.int64),
        label_vocabulary=vocabulary,
        labels_outside_vocabulary=outside,
    )


def _refuse_wrong_labels(labelled: Any, task: Task, cohort: Cohort, *, declared: bool) -> None:
    """Refuse what a labeller must not return: a visit twice or unknown, a missing label, one outside of its kind.

    With ``declared`` the classes that a task declares are all there are; else those of an earlier training are used.
    """
    problem = ""
    if not isinstance(labelled, pl.DataFrame):
        problem = f"is a {type(labelled).__name__}, not a DataFrame"
    elif not {"visit", "label"} <= set(labelled.columns):
        problem = "has no columns 'visit' and 'label'"
    elif not labelled.schema["visit"].is_integer():
        problem = "has visits that are not whole numbers: the column 'visit' of the cohort is meant"
    elif labelled["visit"].is_duplicated().any():
        problem = "has a visit twice"
    elif not labelled["visit"].is_in(cohort.visits["visit"].implode()).all():
        problem = "has a visit that the cohort does not have"
    elif labelled["label"].null_count():
        problem = "has visits without a label"
    elif task.kind.is_set:
        if labelled.schema["label"] != pl.List(pl.String):
            problem = "has labels that are not lists of codes"
        elif labelled["label"].list.explode().null_count() > labelled["label"].list.len().eq(0).sum():
            problem = "has lists with a missing code"
    elif labelled.schema["label"] == pl.String and task.classes and declared:
        others = labelled.filter(~pl.col("label").is_in(task.classes))["label"]
        if len(others):
            problem = f"has {len(others):,} labels outside its classes, such as {shown_value(others[0])}"
    elif labelled.schema["label"] != pl.String:
        classes = task.kind.largest_label(len(task.classes)) + 1
        if not labelled.schema["label"].is_integer():
            problem = "has labels that are neither whole numbers nor words"
        elif not labelled["label"].cast(pl.Int64).is_between(0, classes - 1).all():
            problem = f"has labels beyond its {classes} classes"
    if problem:
        raise PlmError(f"what the task '{task.name}' labels {problem}", remedy="correct its labeller")


def _with_classes(task: Task, frame: pl.DataFrame, classes: tuple[str, ...] | None) -> tuple[Task, pl.DataFrame, int]:
    """Number the classes: those declared, or those of training patients; visits with a value beyond are left out."""
    if classes is not None:
        task = with_classes(task, list(classes))
    elif not task.classes:
        task = with_classes(task, frame.filter(pl.col("split") == "train")["label"].unique().to_list())
    number = {value: place for place, value in enumerate(task.classes)}
    kept = frame.filter(pl.col("label").is_in(list(number)))
    numbered = kept.with_columns(pl.col("label").replace_strict(number, return_dtype=pl.Int64))
    return task, numbered.drop("instance").with_row_index("instance"), frame.height - kept.height


def _label_matrix(
    frame: pl.DataFrame, given: tuple[str, ...] | None = None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...], int]:
    """Return sets of codes as a 0/1 matrix, the vocabulary of training patients, and how many codes are outside it."""
    pairs = frame.select("instance", "split", pl.col("label").alias("code")).explode("code")
    # A code that only validation or test patients have must not shape the model: training alone decides.
    seen = tuple(sorted(pairs.filter(pl.col("split") == "train")["code"].unique().to_list()))
    vocabulary = seen if given is None else given
    index = {code: number for number, code in enumerate(vocabulary)}
    known = pairs.filter(pl.col("code").is_in(list(vocabulary)))
    labels = np.zeros((frame.height, len(vocabulary)), dtype=np.int64)
    columns = (
        known["code"].replace_strict(index, return_dtype=pl.Int64) if known.height else pl.Series([], dtype=pl.Int64)
    )
    labels[known["instance"].to_numpy(), columns.to_numpy()] = 1
    return labels, vocabulary, pairs.height - known.height
