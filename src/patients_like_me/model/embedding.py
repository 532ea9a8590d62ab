"""The one way to embed prompts: training, prediction of newcomers and what-if all use these functions.

:func:`pool_prompts` runs the backbone, which takes the time; :func:`embed_prompts` projects the result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from patients_like_me.model.backbone import Batch
from patients_like_me.model.batching import Integers, reading_batches
from patients_like_me.model.devices import autocast
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import PromptInputs
from patients_like_me.model.settings import Precision


@torch.no_grad()
def embed_prompts(
    model: PatientsLikeMeModel,
    inputs: PromptInputs,
    rows: Integers | None = None,
    *,
    precision: Precision = "auto",
    tokens_per_batch: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the embeddings O of prompts, or of some rows of them: [N, embedding_width], no dropout, on the CPU."""
    pooled = pool_prompts(
        model, inputs, rows, precision=precision, tokens_per_batch=tokens_per_batch, progress=progress
    )
    return model.project(pooled.to(model.device)).cpu()


@torch.no_grad()
def pool_prompts(
    model: PatientsLikeMeModel,
    inputs: PromptInputs,
    rows: Integers | None = None,
    *,
    precision: Precision = "auto",
    tokens_per_batch: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Return what the backbone pools from prompts, or from some rows of them: [N, backbone width], on the CPU.

    There is no dropout. The backbone computes on its own device and in ``precision``. Batches go by length, the longest
    first, and are larger on a graphics card; the result does not depend on them.
    """
    language, graph = model.backbone.training, model.graph_network.training
    lengths = inputs.lengths if rows is None else inputs.lengths[rows]
    pooled = torch.zeros(len(lengths), model.backbone.width)
    device = model.backbone.device
    parts = (model, model.backbone, model.projection, model.language_head, model.graph_network)
    # A server reads one text after another: walking through all modules twice would cost it a tenth of its time.
    switched = any(part.training for part in parts)
    if switched:
        model.set_training(language=False, graph=False)
    try:
        for chosen in reading_batches(lengths, tokens_per_batch=tokens_per_batch, device=device):
            batch = inputs.batch(chosen if rows is None else rows[chosen], device=device)
            if batch.level == "tokens" and model.backbone.level == "hidden":
                # Kept hidden states are computed outside of autocast: without a cache they must be the same.
                batch = Batch("hidden", model.backbone.lower(batch.values, batch.mask), batch.mask, batch.rows)
            with autocast(device, precision):
                pooled[torch.from_numpy(chosen)] = model.pool(batch).float().cpu()
            if progress is not None:
                progress(len(chosen))
    finally:
        if switched:
            model.set_training(language=language, graph=graph)
    return pooled
