"""The bank: the training instances with their embeddings and outcomes, kept with the run as references.

The bank holds patients' data (ids, diagnoses, outcomes): a run folder deserves the same protection as its cohort.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.node_sets import taken
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.embedding_store import EmbeddingStore
from patients_like_me.tasks.instances import Instances

if TYPE_CHECKING:
    from patients_like_me.training.preparation import Prepared


@dataclass(frozen=True)
class Bank:
    """The references of a run: ``graph`` over the training instances, their embeddings, and ``instances``.

    ``instances`` has a row per node: instance_id, subject_id, label (a list, as in the predictions).
    """

    graph: PatientGraph
    embeddings: Tensor
    instances: pl.DataFrame

    @classmethod
    def load(cls, folder: Path) -> Bank:
        """Read a bank that :func:`write_bank` wrote."""
        try:
            instances = pl.read_parquet(folder / "instances.parquet")
        except (OSError, pl.exceptions.PolarsError) as error:
            raise PlmError(f"the bank '{folder}' cannot be read ({error})", remedy="train the run anew") from None
        return cls(
            PatientGraph.load(folder / "graph"),
            EmbeddingStore.load(folder / "embeddings.safetensors").values,
            instances,
        )


def write_bank(folder: Path, instances: Instances, prepared: Prepared, embeddings: Tensor) -> None:
    """Write the training instances as a bank; without a graph in the run (lm_only) one is built for references."""
    rows = prepared.data.train_rows
    folder.mkdir(parents=True, exist_ok=True)
    settings = prepared.state.settings.graph.model_copy(update={"references": "bank"})
    sets = taken(instances.diagnosis_sets, rows)
    if prepared.graph is None:
        graph = build_graph(sets, settings)
    else:
        part = prepared.graph.sub_graph(rows)
        graph = PatientGraph(part.sets, settings, part.indptr, part.neighbors, part.weights)
    graph.save(folder / "graph", replace=True)
    EmbeddingStore(embeddings).save(folder / "embeddings.safetensors")
    frame = instances.frame[rows.tolist()].join(
        instances.cohort.patients.select("subject", "subject_id"), on="subject", how="left", maintain_order="left"
    )
    labels = prepared.data.labels[torch.from_numpy(rows)].numpy()
    listed = [np.flatnonzero(row).tolist() if labels.ndim == 2 else [int(row)] for row in labels]
    with atomic_file(folder / "instances.parquet") as temporary:
        frame.select("instance_id", "subject_id").with_columns(
            pl.Series("label", listed, dtype=pl.List(pl.Int64))
        ).write_parquet(temporary)
