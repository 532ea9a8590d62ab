"""Encoders (BERT, RoBERTa, ModernBERT): the last layers are tuned, everything below them stays as it was."""

from __future__ import annotations

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone_settings import PAPER_TRAINABLE_LAYERS
from patients_like_me.model.layer_stack import LayerStack


def tune_last_layers(stack: LayerStack, trainable_layers: int | None, *, name: str) -> int:
    """Let only the last ``trainable_layers`` (and the norm after them) learn; return the number of frozen layers.

    The embeddings never learn: tuning them would change every layer above, and most words are rare.
    """
    depth = len(stack.layers)
    trained = min(PAPER_TRAINABLE_LAYERS, depth) if trainable_layers is None else trainable_layers
    if trained > depth:
        raise PlmError(
            f"the backbone '{name}' has {depth} layers, so {trained} cannot be trained",
            remedy=f"set trainable_layers to {depth} or less",
        )
    stack.requires_grad_(False)
    for layer in stack.layers[depth - trained :]:
        layer.requires_grad_(True)
    if stack.final_norm is not None and trained > 0:
        stack.final_norm.requires_grad_(True)
    return depth - trained
