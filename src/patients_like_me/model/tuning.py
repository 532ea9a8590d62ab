"""What of a backbone learns: the last layers of an encoder, low-rank adapters in a decoder.

Encoders (BERT, RoBERTa, ModernBERT) keep everything below the tuned layers as it was. Decoders (Llama, Mistral, Qwen,
Gemma) become text encoders with attention in both directions; a weight matrix W of the attention (q, k, v, o) becomes
W + (alpha / r) B A with A of r rows and B of r columns (LoRA). W stays frozen and B starts at zero, so an untrained
adapter changes nothing.
"""

from __future__ import annotations

from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.model.layer_stack import LayerStack
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import PAPER_TRAINABLE_LAYERS, BackboneSettings

ADAPTED_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj")


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


def make_bidirectional(config: Any) -> None:
    """Tell a decoder's configuration that its tokens may look ahead; must come before the adapters."""
    config.is_causal = False
    config.use_cache = False


def add_low_rank_adapters(stack: LayerStack, settings: BackboneSettings, *, seed: int) -> int:
    """Freeze the decoder and give its last layers adapters; return the number of layers without one.

    The paper has adapters in every layer; then no layer's output stays the same from step to step and none can be
    cached. With ``lora_layers`` set, the layers below keep their outputs.
    """
    depth = len(stack.layers)
    adapted = depth if settings.lora_layers is None else settings.lora_layers
    if adapted > depth:
        raise PlmError(
            f"the backbone '{settings.name}' has {depth} layers, so {adapted} cannot have adapters",
            remedy=f"set lora_layers to {depth} or less",
        )
    stack.requires_grad_(False)
    if adapted == 0:
        return depth
    from peft import LoraConfig, inject_adapter_in_model

    configuration = LoraConfig(
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,  # type: ignore[arg-type]
        lora_dropout=settings.lora_dropout,
        target_modules=list(ADAPTED_MATRICES),
        layers_to_transform=list(range(depth - adapted, depth)),
        layers_pattern="layers",
        bias="none",
    )
    with seeded(seed):
        inject_adapter_in_model(configuration, stack.model)
    return depth - adapted
