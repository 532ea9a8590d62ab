"""The one way to embed prompts: every system, training, prediction of newcomers and what-if use these functions.

:func:`read_prompts` runs the backbone, which takes the time; :func:`embed_prompts` projects the result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from patients_like_me.model.backbone import Backbone
from patients_like_me.model.batching import Integers, reading_batches
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import PromptInputs
from patients_like_me.model.ranks import Ranks
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
    ranks: Ranks | None = None,
) -> Tensor:
    """Return the embeddings O of prompts, or of some rows of them: [N, embedding_width], no dropout, on the CPU."""
    pooled = pool_prompts(
        model, inputs, rows, precision=precision, tokens_per_batch=tokens_per_batch, progress=progress, ranks=ranks
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
    ranks: Ranks | None = None,
) -> Tensor:
    """Return what the backbone of a model pools from prompts, without dropout: see :func:`read_prompts`."""
    language, graph = model.backbone.training, model.graph_network.training
    parts = (model, model.backbone, model.projection, model.language_head, model.graph_network)
    # A server reads one text after another: walking through all modules twice would cost it a tenth of its time.
    switched = any(part.training for part in parts)
    if switched:
        model.set_training(language=False, graph=False)
    try:
        return read_prompts(
            model.backbone,
            inputs,
            rows,
            precision=precision,
            tokens_per_batch=tokens_per_batch,
            progress=progress,
            ranks=ranks,
        )
    finally:
        if switched:
            model.set_training(language=language, graph=graph)


@torch.no_grad()
def read_prompts(
    backbone: Backbone,
    inputs: PromptInputs,
    rows: Integers | None = None,
    *,
    precision: Precision = "auto",
    tokens_per_batch: int | None = None,
    progress: Callable[[int], None] | None = None,
    ranks: Ranks | None = None,
) -> Tensor:
    """Return what a backbone pools from prompts, or from some rows of them: [N, backbone width], on the CPU.

    The backbone, which must be in eval mode, computes on its own device and in ``precision``. Batches go by length, the
    longest first, and are larger on a graphics card; the result does not depend on them. With ``ranks``, which all must
    call this, each process reads some of the batches and receives the vectors of all.
    """
    ranks = ranks or Ranks()
    lengths = inputs.lengths if rows is None else inputs.lengths[rows]
    pooled = torch.zeros(len(lengths), backbone.width)
    batches = reading_batches(lengths, tokens_per_batch=tokens_per_batch, device=backbone.device)
    for chosen in batches[ranks.number :: ranks.size]:
        batch = inputs.batch(chosen if rows is None else rows[chosen], device=backbone.device)
        pooled[torch.from_numpy(chosen)] = backbone.pool(batch, precision).float().cpu()
        if progress is not None:
            progress(len(chosen))
    return ranks.added(pooled)
