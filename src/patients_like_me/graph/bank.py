"""The bank: the training instances with their embeddings and outcomes, kept with a run as references.

The bank holds patients' data (ids, diagnoses, outcomes): a run folder needs the same protection as its cohort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import aligned, joined
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import References
from patients_like_me.records.ids import KnownPeople
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.task import Split

Embeddings = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Bank:
    """The references of a run: ``graph`` over the training instances, their embeddings, and ``instances``.

    ``instances`` has a row per node: instance_id, subject_id, label (a list, as in the predictions).
    """

    graph: PatientGraph
    embeddings: Embeddings
    instances: pl.DataFrame

    @classmethod
    def load(cls, folder: Path) -> Bank:
        """Read a bank that :meth:`save` wrote."""
        try:
            instances = pl.read_parquet(folder / "instances.parquet", glob=False)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise PlmError(f"the bank '{folder}' cannot be read ({error})", remedy="train the run again") from None
        embeddings = read_embeddings(folder / "embeddings.safetensors")
        if "embeddings" not in embeddings:
            raise PlmError(f"the bank '{folder}' has no embeddings", remedy="train the run again")
        return cls(PatientGraph.load(folder / "graph"), embeddings["embeddings"], instances)

    def save(self, folder: Path) -> None:
        """Write the bank as a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.graph.save(folder / "graph", replace=True)
        write_embeddings(folder / "embeddings.safetensors", {"embeddings": self.embeddings})
        with atomic_file(folder / "instances.parquet") as temporary:
            self.instances.select("instance_id", "subject_id", "label").write_parquet(temporary)

    def grown(
        self, more: Sequence[Instances], embeddings: Sequence[Embeddings], graph: PatientGraph | None = None
    ) -> Bank:
        """Return the bank with further labelled instances; its graph is the one that is built of all at once.

        ``graph`` is that graph where it is known. References of one patient are never linked, whenever they came.
        """
        frames = [self.instances, *(_listed(each) for each in more)]
        everyone = pl.concat([frame.select("instance_id", "subject_id", "label") for frame in frames])
        if graph is None:
            sets = self.graph.sets
            for each in more:
                sets = joined(sets, aligned(replace(each.diagnosis_sets, splits=_train(each)), sets.vocabulary))
            numbers = {name: number for number, name in enumerate(dict.fromkeys(everyone["subject_id"].to_list()))}
            patients = np.array([numbers[name] for name in everyone["subject_id"]], dtype=np.int32)
            graph = build_graph(replace(sets, patients=patients), self.graph.settings)
        return Bank(graph, np.concatenate([self.embeddings, *embeddings]), everyone)

    def extended_graph(self, instances: Instances) -> PatientGraph:
        """Return the bank's graph with the instances as further nodes, which receive messages but send none.

        An instance of the same patient is never a neighbour, also where a patient of the bank comes again.
        """
        own, newcomers = with_shared_patients(self.instances["subject_id"].to_list(), self.graph.sets, instances)
        return replace(self.graph, sets=own).extend(newcomers, patients="shared")


def _train(instances: Instances) -> npt.NDArray[np.str_]:
    return np.full(len(instances), "train")


def _listed(instances: Instances) -> pl.DataFrame:
    """Return instances as the bank lists them; labels are lists, as in the predictions."""
    subjects = instances.cohort.patients["subject_id"].gather(instances.frame["subject"])
    labels = [np.flatnonzero(row).tolist() if instances.labels.ndim == 2 else [int(row)] for row in instances.labels]
    return pl.DataFrame(
        {"instance_id": instances.frame["instance_id"], "subject_id": subjects, "label": labels},
        schema_overrides={"label": pl.List(pl.Int64)},
    )


def with_shared_patients(
    bank_subjects: Sequence[str], bank_sets: DiagnosisSets, instances: Instances
) -> tuple[DiagnosisSets, DiagnosisSets]:
    """Number the patients of a bank and of newcomers together, so that nobody becomes a reference of their own."""
    known: dict[str, int] = {}
    for subject in bank_subjects:
        known.setdefault(subject, len(known))
    in_bank = np.array([known[subject] for subject in bank_subjects], dtype=np.int32)
    of_bank = KnownPeople(dict(known))
    subjects = instances.cohort.patients["subject_id"].to_list()
    for subject in subjects:
        same = of_bank.number_of(subject)
        known.setdefault(subject, len(known) if same is None else same)
    sets = instances.diagnosis_sets
    newcomers = replace(
        sets,
        patients=np.array([known[subjects[number]] for number in sets.patients], dtype=np.int32),
        # A patient of the bank may come with the same visit: its id must be another.
        instance_ids=tuple(f"new/{instance}" for instance in sets.instance_ids),
        splits=np.full(len(sets), "test"),
    )
    return replace(bank_sets, patients=in_bank), newcomers


def nodes_of_split(references: References, splits: Mapping[Split, Rows], split: Split) -> Rows:
    """Return the instance rows of the nodes on which a split is evaluated, its own last.

    >>> splits = {"train": np.array([0, 2]), "test": np.array([1])}
    >>> nodes_of_split("bank", splits, "test").tolist(), nodes_of_split("cohort", splits, "test").tolist()
    ([0, 2, 1], [1])
    """
    if references == "cohort" or split == "train":
        return splits[split]
    return np.concatenate([splits["train"], splits[split]])


def read_embeddings(path: Path) -> dict[str, Embeddings]:
    """Read embeddings by name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (OSError, SafetensorError) as error:
        raise PlmError(f"the embeddings '{path}' cannot be read ({error})", remedy="train the run again") from None


def write_embeddings(path: Path, embeddings: Mapping[str, Embeddings]) -> None:
    """Write embeddings by name as safetensors, atomically."""
    from safetensors.numpy import save_file

    with atomic_file(path) as temporary:
        save_file({name: np.ascontiguousarray(values) for name, values in embeddings.items()}, temporary)
