"""A run folder as one object: its record, its predictions, and the cohort, instances, graph and bank behind them.

==========================  =========================================================================
``run.json``                the record: identity (cohort, task, system, settings), environment, results
``predictions.parquet``     instance_id, subject_id, split, prediction_time, label, probabilities (as the system said)
``predictions_as_...``      the same as new patients are predicted, where references are within the split
``README.md``               the model card
``fitted.safetensors``      what was fitted, as arrays, and ``fitted.json``, its names and choices
``epochs.json``             losses, scores, seconds and memory of every epoch (systems with epochs)
``checkpoint.safetensors``  the state of a training under way; removed when it ends
``model/``                  patients_like_me: the best weights (safetensors) and the model's settings
``bank/``                   patients_like_me: the training instances as references; and what was added to the bank
                            of any system since (:mod:`.bank_versions`)
``embeddings.safetensors``  patients_like_me: embeddings of validation and test, in the order of the predictions
==========================  =========================================================================
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.files import LOCK, only_writer, read_json, verify_files
from patients_like_me.folders import user_folder
from patients_like_me.graph.bank import Bank, Embeddings, nodes_of_split, read_embeddings
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.added_records import Added, read_added
from patients_like_me.runs.bank_versions import BankVersion, read_version
from patients_like_me.runs.calibration import Calibration
from patients_like_me.runs.predictions import AS_NEWCOMERS, PREDICTIONS
from patients_like_me.runs.record import RECORD, Capabilities, Identity, Results, RunRecord, read_record
from patients_like_me.settings import checked, differences_between
from patients_like_me.tasks.instances import Instances, Rows, build_instances
from patients_like_me.tasks.joining import followed_by, only
from patients_like_me.tasks.registry import all_tasks, find_task, stored_task
from patients_like_me.tasks.task import Split, Task, TaskSettings

CHECKPOINT: Final = "checkpoint.safetensors"
EMBEDDINGS: Final = "embeddings.safetensors"
EPOCHS: Final = "epochs.json"
#: The patient graph of a version of the bank.
GRAPH: Final = "graph/"


@dataclass(frozen=True)
class Run:
    """A run folder. Whatever is not in the record is read when it is first asked for.

    ``moved_cohort`` is where the cohort is now, if it is no longer where the run was trained. ``opened`` keeps what
    later rooms have read of the run, such as its model, so that all of them use one and the same.
    """

    folder: Path
    record: RunRecord
    moved_cohort: Path | None = None
    opened: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def is_finished(self) -> bool:
        """Tell whether the training has ended."""
        return self.record.results is not None

    @property
    def results(self) -> Results:
        """What a finished run knows about itself; an unfinished run is refused."""
        if self.record.results is None:
            raise PlmError(f"the run '{self.folder}' is not finished", remedy="run its plm train command again")
        version = self.bank_version
        if version is None or not version.record.additions:
            return self.record.results
        grown = version.record
        note = f"the bank has grown by {grown.added_instances:,} instances since the training, without training"
        return self.record.results.model_copy(
            update={"scores": grown.scores, "notes": (*self.record.results.notes, note)}
        )

    @property
    def identity(self) -> Identity:
        """Everything that decides the run's result."""
        return self.record.identity

    @property
    def capabilities(self) -> Capabilities:
        """What the system of the run can do."""
        return self.record.system.capabilities

    @property
    def name(self) -> str:
        """What a table calls this run."""
        added = 0 if self.bank_version is None else self.bank_version.record.added_instances
        return self.record.system.title + (f", bank + {added:,}" if added else "")

    @property
    def bank_version(self) -> BankVersion | None:
        """The version of the bank that was in use when it was first asked for; None: as it was trained.

        An open run keeps it: replacing the bank does not disturb a reader.
        """
        if "bank version" not in self.opened:
            self.opened["bank version"] = read_version(self.folder)
        found: BankVersion | None = self.opened["bank version"]
        return found

    @cached_property
    def additions(self) -> tuple[Added, ...]:
        """The instances that were added to the bank since the training, one part per addition."""
        version = self.bank_version
        if version is None:
            return ()
        return tuple(
            read_added(
                version.addition_folder(record.number), record, self.task, self.task_settings, self.label_vocabulary
            )
            for record in version.record.additions
        )

    @property
    def uses_graph(self) -> bool:
        """Tell whether the predictions use the patient graph."""
        return self.results.graph is not None

    @property
    def has_patient_graph(self) -> bool:
        """Tell whether its references are neighbours in a patient graph, whose settings it has."""
        return self.capabilities.references and "graph" in self.identity.settings

    @property
    def label_vocabulary(self) -> tuple[str, ...]:
        """What the labels mean."""
        return self.results.label_vocabulary

    @cached_property
    def task(self) -> Task:
        """The task that was learned; a task of the cohort's own labels is known from the record alone."""
        task = all_tasks().get(self.identity.task) or stored_task(self.results.task)
        return task.under(task.settings(self.identity.task_settings))

    @cached_property
    def task_settings(self) -> TaskSettings:
        """The settings of the task."""
        return self.task.settings(self.identity.task_settings)

    @property
    def output_labels(self) -> tuple[str, ...]:
        """What each probability is the probability of."""
        return self.label_vocabulary[-self.task.kind.outputs(len(self.label_vocabulary)) :]

    def verify(self, *names: str) -> None:
        """Refuse files, or folders that end in a slash, whose content is not what the training wrote."""
        wanted = {
            name: digest
            for name, digest in self.record.digests.items()
            if name in names or any(folder.endswith("/") and name.startswith(folder) for folder in names)
        }
        verify_files(self.folder, wanted, what="run", remedy="restore it, or train the run again")

    @property
    def predicts_newcomers_otherwise(self) -> bool:
        """Tell whether new patients are predicted in another way than the evaluated instances."""
        return self.results.scores_as_newcomers is not None

    def calibration_for(self, *, newcomers: bool = False) -> Calibration | None:
        """Return the map of the probabilities of evaluated instances, or of new patients; None where there is none."""
        if newcomers and self.predicts_newcomers_otherwise:
            return self.record.calibration_as_newcomers
        return self.record.calibration

    def calibrated(self, probabilities: npt.NDArray[Any], *, newcomers: bool = False) -> npt.NDArray[Any]:
        """Return probabilities [N, outputs] under the calibration of the run."""
        calibration = self.calibration_for(newcomers=newcomers)
        return probabilities if calibration is None else calibration.apply(self.task.kind, probabilities)

    def predictions(self, *, calibrated: bool = True, newcomers: bool = False) -> pl.DataFrame:
        """Return the predictions of validation and test, under the calibration of the run unless asked otherwise.

        ``newcomers`` asks for those of the same instances as new patients are predicted.
        """
        name = AS_NEWCOMERS if newcomers and self.predicts_newcomers_otherwise else PREDICTIONS
        path, version = self.folder / name, self.bank_version
        if version is not None and version.has(name):
            path = version.verify(name)
        elif path.is_file():
            self.verify(name)
        else:
            raise PlmError(f"the run '{self.folder}' has no {name}", remedy="train the run again")
        frame = pl.read_parquet(path, glob=False)
        calibration = self.calibration_for(newcomers=newcomers)
        if not calibrated or calibration is None or not frame.height:
            return frame
        flat = frame["probabilities"].explode(empty_as_null=False, keep_nulls=False).cast(pl.Float64).to_numpy()
        found = calibration.apply(self.task.kind, flat.reshape(frame.height, -1))
        return frame.with_columns(pl.Series("probabilities", found.tolist(), dtype=pl.List(pl.Float64)))

    def epoch_records(self) -> list[dict[str, Any]]:
        """Return the record of every epoch; none for a system without epochs."""
        path = self.folder / EPOCHS
        self.verify(EPOCHS)
        return list(read_json(path, what="list of epochs")) if path.is_file() else []

    def require_references(self) -> None:
        """Refuse a system without references where a patient graph or its trained model is needed."""
        if not self.capabilities.references:
            raise PlmError(
                f"the run '{self.folder}' trained the system '{self.identity.system}', which has no references",
                remedy="give a run of a system with references; see plm systems",
            )

    @property
    def cohort_folder(self) -> Path:
        """Where the cohort is."""
        return self.moved_cohort or Path(self.record.cohort_folder)

    @cached_property
    def cohort(self) -> Cohort:
        """The cohort that the run was trained on."""
        place = self.cohort_folder
        if not (place / "cohort.json").is_file():
            raise PlmError(
                f"the cohort of the run '{self.folder}' is not in '{place}'", remedy="say where it is now with --cohort"
            )
        cohort = Cohort.load(place)
        if cohort.hash != self.identity.cohort:
            raise PlmError(
                f"the cohort '{place}' is not the one that the run '{self.folder}' was trained on",
                remedy="give the right one with --cohort",
            )
        return cohort

    @cached_property
    def instances(self) -> Instances:
        """The instances of the task, as the run had them."""
        found = build_instances(self.cohort, find_task(self.identity.task, self.cohort), self.task_settings)
        expected = sum(self.results.instances.values())
        if len(found) != expected or found.label_vocabulary != self.label_vocabulary:
            raise PlmError(
                f"the cohort gives {len(found):,} instances where the run '{self.folder}' had {expected:,}",
                remedy="train the run again with this version",
            )
        return found

    @cached_property
    def everyone(self) -> Instances:
        """The instances of the run, followed by those that were added to its bank, as instances of ``train``."""
        found = self.instances
        for added in self.additions:
            found = followed_by(found, added.instances, same_people=True)
        return found

    @cached_property
    def reference_instances(self) -> Instances:
        """The instances of the bank, in its order: those of the training, then those that were added."""
        return only(self.everyone, self.everyone.rows_of("train"))

    @cached_property
    def graph_settings(self) -> GraphSettings:
        """The settings of the patient graph."""
        self.require_references()
        return checked(GraphSettings, **self.identity.settings.get("graph", {}))

    @cached_property
    def graph(self) -> PatientGraph:
        """The graph over the instances of all splits, and of those that were added to the bank."""
        return build_graph(self.everyone.diagnosis_sets, self.graph_settings)

    @cached_property
    def graph_bank(self) -> Bank:
        """The references of a system with a patient graph, with their outcomes; added ones after those of training."""
        self.require_references()
        self.verify("bank/")
        found, version = Bank.load(self.folder / "bank"), self.bank_version
        if version is None or not self.additions:
            return found
        graph = PatientGraph.load(version.verify(GRAPH)) if version.has(GRAPH) else None
        embeddings = [added.arrays["embeddings"] for added in self.additions]
        return found.grown([added.instances for added in self.additions], embeddings, graph)

    def rows_of(self, split: Split) -> Rows:
        """Return the instance rows of a split, in the order of the predictions."""
        return self.instances.rows_of(split)

    def evaluated(self, split: Split) -> int:
        """Return how many of the last nodes of a split's graph are its own."""
        return len(self.rows_of(split))

    def node_rows(self, split: Split) -> Rows:
        """Return the instance row of every node of a split's graph."""
        splits: dict[Split, Rows] = {name: self.everyone.rows_of(name) for name in ("train", split)}
        return nodes_of_split(self.graph_settings.references, splits, split)

    def graph_of(self, split: Split) -> PatientGraph:
        """Return the graph on which a split is evaluated; in ``bank`` mode the training instances come first."""
        return self.graph.sub_graph(self.node_rows(split))

    @cached_property
    def evaluated_embeddings(self) -> dict[str, Embeddings]:
        """The embeddings of validation and test, in the order of the predictions."""
        self.verify(EMBEDDINGS)
        return read_embeddings(self.folder / EMBEDDINGS)

    def embeddings_of(self, split: Split) -> Embeddings:
        """Return the embeddings of the nodes of a split's graph."""
        own = self.graph_bank.embeddings if split == "train" else self.evaluated_embeddings[split]
        if split == "train" or self.graph_settings.references == "cohort":
            return own
        return np.concatenate([self.graph_bank.embeddings, own])


def load_run(folder: Path | str, cohort: Path | str | None = None) -> Run:
    """Open a run folder; ``cohort`` is where its cohort is now, if it has moved."""
    folder = Path(folder)
    return Run(folder, read_record(folder), None if cohort is None else Path(cohort))


def finished_run(out: Path, identity: Identity) -> Run | None:
    """Return the run in the folder if it is finished; refuse one with other settings."""
    run = same_run(out, identity)
    return run if run is not None and run.is_finished else None


def same_run(out: Path, identity: Identity) -> Run | None:
    """Return the run that is already in the folder, None where there is none; refuse one with other settings."""
    if out.is_file():
        raise PlmError(f"'{out}' is a file", remedy="choose another --out")
    # A lock, or what a process left that was killed while it wrote the record, is not a run yet.
    if not out.exists() or all(file.name == LOCK or file.name.endswith(".partial") for file in out.iterdir()):
        return None
    if not (out / RECORD).is_file():
        raise PlmError(f"'{out}' exists and is not a run folder", remedy="choose another --out")
    run = load_run(out)
    if run.identity.cohort != identity.cohort:
        raise PlmError(f"the run '{out}' belongs to another cohort", remedy="choose another --out")
    if differences := differences_between(run.identity.model_dump(mode="json"), identity.model_dump(mode="json")):
        raise PlmError(f"the run '{out}' has other settings: {'; '.join(differences)}", remedy="choose another --out")
    return run


@contextmanager
def writing_run(out: Path) -> Iterator[None]:
    """Hold the lock of a run folder; a full disk ends in a sentence, and what was written before stays."""
    try:
        with only_writer(out):
            yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise PlmError(
            f"no space is left on the disk of '{out}' or of the cache",
            remedy="free some space and run the same command again: it continues from the last checkpoint",
        ) from error


def default_cache() -> Path:
    """Return the folder for hidden states, readable by its owner only: they are made from patients' records.

    It is ``PLM_CACHE`` where that is set, else in the user's cache folder.
    """
    folder = user_folder("hidden-states", "PLM_CACHE", "cache")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
