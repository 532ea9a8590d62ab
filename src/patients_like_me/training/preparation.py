"""Before the first step: prompts, hidden states, graph and first weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from patients_like_me.errors import PlmError
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.devices import best_device
from patients_like_me.model.heads import number_of_outputs
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.settings import ModelSettings
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.tasks.task import SPLITS, Split
from patients_like_me.training.data import Rows, TrainingData
from patients_like_me.training.first_weights import inform_first_weights
from patients_like_me.training.graphs import graphs_of_splits
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.state import TrainingState, empty_store


@dataclass
class Prepared:
    """Everything a training starts from, with what there is to say about it."""

    state: TrainingState
    data: TrainingData
    graph: PatientGraph | None
    prompt_summary: dict[str, float]
    graph_summary: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)


def prepare_training(
    instances: Instances,
    settings: TrainingSettings,
    *,
    cache: Path | None,
    report: Callable[[str], None] = lambda _: None,
) -> Prepared:
    """Write the prompts, compute the frozen layers once, build the graph and draw the first weights."""
    refuse_few_patients(instances)
    report(f"loading the backbone '{settings.backbone.name}'")
    model = PatientsLikeMeModel.build(model_settings(instances, settings), seed=settings.seed)
    model.backbone.to(best_device() if settings.device == "auto" else torch.device(settings.device))
    backbone = model.backbone
    report("writing the prompts")
    budget = min(settings.max_tokens, backbone.max_tokens)
    prompts = write_prompts(instances, backbone.count_tokens, budget=budget)
    done = 0

    def progress(more: int) -> None:
        nonlocal done
        done += more
        report(f"frozen layers: {done:,} prompts")

    kept = None if cache is None else HiddenStateCache(cache, dtype=settings.cache_format)
    inputs = prepare_inputs(backbone, prompts.texts, max_tokens=budget, cache=kept, progress=progress)
    splits: dict[Split, Rows] = {split: instances.rows_of(split) for split in SPLITS}
    graph, graphs, summary = None, {}, None
    if settings.uses_graph:
        report("building the patient graph")
        graph = build_graph(instances.diagnosis_sets, settings.graph)
        graphs = graphs_of_splits(graph, splits)
        statistics = {split: {"nodes": len(part.nodes), "edges": part.edges} for split, part in graphs.items()}
        summary = {"edges": graph.edges, "splits": statistics}
    data = TrainingData(
        kind=instances.task.kind,
        metrics=instances.task.metrics,
        labels=torch.from_numpy(instances.labels),
        splits=splits,
        inputs=inputs,
        graphs=graphs,
    )
    if settings.start == "informed":
        report("fitting the first weights to the training split")
        inform_first_weights(model, data, settings)
    state = TrainingState(model, settings, empty_store(len(splits["train"]), settings.embedding_width))
    notes = [inputs.note] if inputs.note else []
    if data.kind == "binary" and len(np.unique(instances.labels[splits["validation"]])) < 2:
        notes.append("validation has one class only, so no score can tell when to stop: the last epoch is taken")
    return Prepared(state, data, graph, prompts.summary(), summary, notes)


def model_settings(instances: Instances, settings: TrainingSettings) -> ModelSettings:
    """Return the shape of the model that a task and its settings ask for."""
    return ModelSettings(
        backbone=settings.backbone,
        graph_network=settings.graph_network,
        embedding_width=settings.embedding_width,
        projection=settings.projection,
        outputs=number_of_outputs(instances.task.kind, len(instances.label_vocabulary)),
    )


def refuse_few_patients(instances: Instances) -> None:
    """Refuse a cohort that cannot be split."""
    patients = instances.frame["subject"].n_unique()
    if patients < 3:
        raise PlmError(
            f"the task has {patients} {'patient' if patients == 1 else 'patients'}, too few for training, validation "
            "and test",
            remedy="use a larger cohort",
        )
    if instances.task.kind == "multilabel" and not instances.label_vocabulary:
        raise PlmError("no training patient has any label", remedy="use a larger cohort or another split seed")
