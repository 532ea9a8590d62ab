"""Before the first step: prompts, hidden states, graph and first weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patients_like_me.errors import PlmError
from patients_like_me.graph.build import build_graph
from patients_like_me.graph.coverage import coverage_notes, coverage_of, hub_notes, tau_advice
from patients_like_me.graph.large import build_on_disk, entries_on_disk
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.model.devices import graph_device, wanted_device
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.ranks import Ranks
from patients_like_me.model.settings import ModelSettings
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.tasks.task import SPLITS, Split
from patients_like_me.training.data import TrainingData, graphs_of_splits
from patients_like_me.training.evaluation import embed_rows
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.state import TrainingState, empty_store
from patients_like_me.workers import keep_few_compiled_layers

#: Enough training instances to estimate means and variances.
_MOST_INSTANCES = 512


@dataclass
class PreparedTraining:
    """Everything that a training starts from, with notes on how it was prepared."""

    state: TrainingState
    data: TrainingData
    graph: PatientGraph | None
    prompt_summary: dict[str, float]
    graph_summary: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def prepare_training(
    instances: Instances,
    settings: TrainingSettings,
    *,
    cache: Path | None,
    report: Callable[[str], None] = lambda _: None,
    ranks: Ranks | None = None,
) -> PreparedTraining:
    """Build the graph, write the prompts, compute the frozen layers once and draw the first weights.

    ``ranks`` are the processes that will train together, each of which prepares everything.
    """
    keep_few_compiled_layers()
    ranks = ranks or Ranks()
    splits: dict[Split, Rows] = {split: instances.rows_of(split) for split in SPLITS}
    graph, notes, warnings = None, list[str](), list[str]()
    if settings.uses_graph:
        report("building the patient graph")
        graph = patient_graph_of(instances, settings, cache, report=report, ranks=ranks)
        warnings += [*coverage_notes(graph), *hub_notes(graph)]
    report(f"loading the backbone '{settings.backbone.name}'")
    model = PatientsLikeMeModel.build(model_settings(instances, settings), seed=settings.seed)
    place_backbone(model, settings)
    backbone = model.backbone
    report("writing the prompts")
    budget = min(settings.max_tokens, backbone.max_tokens)
    prompts = write_prompts(instances, backbone.count_tokens, budget=budget)
    done = 0

    def progress(more: int) -> None:
        nonlocal done
        done += more
        report(f"frozen layers: {done:,} of {len(prompts.texts):,} prompts")

    kept = None if cache is None else HiddenStateCache(cache, dtype=settings.cache_format)
    with nullcontext() if kept is None else ranks.first_before_others():
        inputs = prepare_inputs(backbone, prompts.texts, max_tokens=budget, cache=kept, progress=progress)
    graphs, summary = {}, None
    if graph is not None:
        graphs, coverage = graphs_of_splits(graph, splits), coverage_of(graph)
        statistics = {
            split: {"nodes": len(part.nodes), "edges": part.edges, "linked": coverage.linked[split]}
            for split, part in graphs.items()
        }
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
    place_graph_network(model, settings, max((len(part.nodes) for part in graphs.values()), default=0), ranks)
    state = TrainingState(model, settings, empty_store(len(splits["train"]), backbone.width), ranks=ranks)
    notes += [inputs.note] if inputs.note else []
    if data.kind.lacks_an_outcome(instances.labels[splits["validation"]]):
        notes.append("validation has one class only, so no score can decide when to stop: the last epoch is used")
    return PreparedTraining(state, data, graph, prompts.summary(), summary, notes, warnings)


def patient_graph_of(
    instances: Instances,
    settings: TrainingSettings,
    cache: Path | None = None,
    *,
    report: Callable[[str], None] = lambda _: None,
    ranks: Ranks | None = None,
) -> PatientGraph:
    """Build the graph over the instances of all splits; one without an edge in training is refused unless asked for.

    A graph of all pairs that would take much of the memory is built below ``cache`` and mapped. Of several ``ranks``
    the first one's memory decides for all.
    """
    sets = instances.diagnosis_sets
    answer = (ranks or Ranks()).once(lambda: {"entries": entries_on_disk(sets, settings.graph, cache)})
    if cache is None or answer["entries"] is None:
        graph = build_graph(sets, settings.graph)
    else:
        graph = build_on_disk(sets, settings.graph, cache, int(answer["entries"]), report=report)
    if not coverage_of(graph).linked.get("train") and not settings.allow_empty_graph:
        if not len(instances.diagnosis_sets.codes):
            raise PlmError(
                f"no instance has a diagnosis that the task may see (inputs '{instances.settings.inputs}'), so nobody "
                "can be compared: with 'known' those of the current visit are left out and only earlier visits count",
                remedy="choose task.inputs=retrospective, a cohort with earlier visits, strategy lm_only, or train "
                "without references with allow_empty_graph=true",
            )
        raise PlmError(
            f"no two training instances share {settings.graph.tau} diagnoses or more, so the graph is empty; "
            f"{tau_advice(graph.sets, settings.graph)}",
            remedy="lower graph.tau, use strategy lm_only, or train without references with allow_empty_graph=true",
        )
    return graph


def model_settings(instances: Instances, settings: TrainingSettings) -> ModelSettings:
    """Return the shape of the model for a task and the settings of a training."""
    return ModelSettings(
        backbone=settings.backbone,
        graph_network=settings.graph_network,
        embedding_width=settings.embedding_width,
        projection=settings.projection,
        outputs=instances.task.kind.outputs(len(instances.label_vocabulary)),
    )


def place_backbone(model: PatientsLikeMeModel, settings: TrainingSettings) -> None:
    """Move the backbone to the device of the settings; projection and head are small and stay on the CPU."""
    model.backbone.to(wanted_device(settings.device))


def place_graph_network(
    model: PatientsLikeMeModel, settings: TrainingSettings, nodes: int, ranks: Ranks | None = None
) -> torch.device:
    """Move the graph network to the device of the settings, or where the states of so many nodes fit; return it.

    Of several ``ranks`` the first one's memory decides for all: they send each other its weights and its answers.
    """
    network = settings.graph_network
    # What goes in, and of every layer: mixed, spread, active and dropped values, and their gradients.
    state_bytes = 4 * nodes * (2 * settings.embedding_width + 6 * network.layers * network.width)
    backbone = model.backbone.device
    answer = (ranks or Ranks()).once(
        lambda: {"device": graph_device(settings.graph_device, backbone, state_bytes).type}
    )
    # Each rank has a card of its own: the one of its backbone.
    device = backbone if answer["device"] == backbone.type else torch.device(answer["device"])
    model.graph_network.to(device)
    return device


@torch.no_grad()
def inform_first_weights(model: PatientsLikeMeModel, data: TrainingData, settings: TrainingSettings) -> None:
    """Let the first weights know the label rates and the spread of the training embeddings.

    Prompts of one template have nearly the same mean vector: before training, the embeddings of any two patients have a
    cosine close to 1, and what tells them apart is a small remainder. The projection therefore starts so that each
    value of the training embeddings has mean 0 and variance 1. Both classifiers start with the label rates as biases.
    The weights of the head start at zero, so at first all patients get the same prediction. Those of the graph's
    classifier stay random: an M-step keeps the weights that validate best, and where signals are weak those would be
    the zeros. Validation and test are not used.
    """
    rates = data.kind.base_rate_logits(data.train_labels, model.settings.outputs)
    for classifier in (model.language_head, model.graph_network.classifier):
        classifier.bias.copy_(rates)
    model.language_head.weight.zero_()
    places = np.linspace(0, len(data.train_rows) - 1, min(_MOST_INSTANCES, len(data.train_rows))).astype(np.int64)
    embeddings = embed_rows(model, data, data.train_rows[places], settings)
    last = model.projection if isinstance(model.projection, nn.Linear) else list(model.projection.children())[-1]
    assert isinstance(last, nn.Linear), "a projection ends in a linear layer"
    mean, spread = embeddings.mean(dim=0), embeddings.std(dim=0, correction=0).clamp_min(1e-6)
    last.weight.div_(spread[:, None])
    last.bias.sub_(mean).div_(spread)
