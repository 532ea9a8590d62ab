"""New patients as a scene: the training instances of a run and the newcomers, each linked to the bank alone.

The graph is the bank's, extended by the newcomers as ``predict`` extends it, so what is explained is what is predicted.
The cohort of the run is needed for what a page shows of the references; the list of references alone needs the bank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import torch

from patients_like_me.explanation.references import MOST_REFERENCES, references_of
from patients_like_me.explanation.scene import Scene, graph_model_of
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.run import Run
from patients_like_me.tasks.instances import instances_to_predict
from patients_like_me.tasks.joining import followed_by


def scene_of_newcomers(run: Run, cohort: Cohort, *, bank_only: bool = False) -> Scene:
    """Return the scene in which the last visit of each patient of a cohort is predicted and explained.

    With ``bank_only`` the cohort of the run need not be there: enough for :func:`reference_table`.
    """
    run.require_references()
    _ = run.results
    if not bank_only:
        # What is wrong with the cohort of the run is said before anything is embedded.
        _ = run.instances
    newcomers = instances_to_predict(cohort, run.task, run.task_settings, run.label_vocabulary)
    if not run.has_patient_graph:
        from patients_like_me.explanation.reference_scene import set_reference_scene

        return set_reference_scene(run, "test", newcomers)
    model = graph_model_of(run)
    instances = newcomers if bank_only else followed_by(run.reference_instances, newcomers)
    embeddings = torch.cat([torch.from_numpy(run.graph_bank.embeddings), model.embed(newcomers)])
    graph = run.graph_bank.extended_graph(newcomers)
    return Scene(
        run,
        instances,
        "test",
        graph,
        embeddings,
        np.arange(len(graph)),
        newcomers=True,
        kinds_missing=cohort.missing_kinds if cohort.folder else None,
    )


def reference_table(scene: Scene, *, most: int = MOST_REFERENCES) -> pl.DataFrame:
    """Return the references of every newcomer, the highest cosine first: a row each, with the outcome in words.

    Columns: ``instance_id``, ``reference`` (its place), ``reference_id`` and ``reference_subject_id`` (of the bank),
    ``shared_diagnoses``, ``cosine``, ``outcome`` (a list of labels).
    """
    bank, labels, ids = scene.bank_instances, scene.instances.label_vocabulary, scene.instances.instance_ids
    rows: list[dict[str, Any]] = []
    for row in scene.own_rows.tolist():
        for place, reference in enumerate(references_of(scene, scene.node_of_row(row), most=most), start=1):
            known = bank.row(reference.row, named=True)
            rows.append(
                {
                    "instance_id": ids[row],
                    "reference": place,
                    "reference_id": known["instance_id"],
                    "reference_subject_id": known["subject_id"],
                    "shared_diagnoses": reference.weight,
                    "cosine": reference.cosine,
                    "outcome": [labels[number] for number in known["label"]],
                }
            )
    schema: dict[str, Any] = {
        "instance_id": pl.String,
        "reference": pl.Int64,
        "reference_id": pl.String,
        "reference_subject_id": pl.String,
        "shared_diagnoses": pl.Int64,
        "cosine": pl.Float64,
        "outcome": pl.List(pl.String),
    }
    return pl.DataFrame(rows, schema=schema)
