"""Predictions of a split during and after training: embed its prompts, and run the graph where there is one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from patients_like_me.model.embedding import embed_prompts, pool_prompts
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.ranks import Ranks
from patients_like_me.tasks.instances import Rows
from patients_like_me.tasks.task import Split
from patients_like_me.training.data import TrainingData
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.state import TrainingState


def embed_rows(
    model: PatientsLikeMeModel,
    data: TrainingData,
    rows: Rows,
    settings: TrainingSettings,
    progress: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
) -> Tensor:
    """Return the embeddings of some instances [len(rows), width], without dropout, on the CPU."""
    model.set_training(language=False, graph=False)
    return embed_prompts(model, data.inputs, rows, precision=settings.precision, progress=progress, ranks=ranks)


def pool_rows(state: TrainingState, data: TrainingData, rows: Rows) -> Tensor:
    """Return what the backbone pools from some instances, without dropout, on the CPU: fresh rows of the store."""
    state.model.set_training(language=False, graph=False)
    return pool_prompts(state.model, data.inputs, rows, precision=state.settings.precision, ranks=state.ranks)


@torch.no_grad()
def stored_embeddings(state: TrainingState) -> Tensor:
    """Return the embeddings O of all training instances: the store, under the projection of the moment."""
    return state.model.project(state.store.values)


@torch.no_grad()
def store_error(state: TrainingState, data: TrainingData) -> float:
    """Return the error of what an M-step reads, relative to the spread between patients.

    With E the difference between stored and fresh embeddings: ||E - mean(E)|| / ||O - mean(O)||. A shift that is the
    same for all patients tells nobody apart and is not counted.
    """
    fresh = embed_rows(state.model, data, data.train_rows, state.settings)
    error = stored_embeddings(state) - fresh
    centred = torch.linalg.norm(error - error.mean(dim=0))
    return float(centred / torch.linalg.norm(fresh - fresh.mean(dim=0)))


@torch.no_grad()
def split_logits(
    model: PatientsLikeMeModel,
    data: TrainingData,
    split: Split,
    own: Tensor,
    *,
    through_graph: bool,
    bank: Tensor | None = None,
) -> Tensor:
    """Return the logits of a split from its embeddings ``own``, through the graph or from the language model's head.

    In ``bank`` mode the embeddings of the training instances are needed beside them.
    """
    model.set_training(language=False, graph=False)
    device = model.device
    if not through_graph:
        return model.language_logits(own.to(device)).cpu()
    graph = data.graphs[split]
    everyone = own if graph.evaluated == len(graph.nodes) else torch.cat([_given(bank), own])
    return model.graph_logits(everyone.to(device), graph.propagation)[-graph.evaluated :].cpu()


def _given(bank: Tensor | None) -> Tensor:
    assert bank is not None, "references 'bank' need the embeddings of the training instances"
    return bank
