"""Decoders (Llama, Mistral, Qwen, Gemma) as text encoders: attention in both directions, trained by low-rank adapters.

A weight matrix W of the attention (q, k, v, o) becomes W + (alpha / r) B A with A of r rows and B of r columns
(LoRA); W stays frozen, B starts at zero, so an untrained adapter changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone_settings import BackboneSettings
from patients_like_me.model.layer_stack import LayerStack
from patients_like_me.model.randomness import seeded

ADAPTED_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj")


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


@contextmanager
def merged_adapters(stack: LayerStack) -> Iterator[None]:
    """Fold the adapters into the weights inside the block: faster reading, no training.

    The original weights are set aside and put back, since taking the adapters out again by subtraction would leave
    rounding errors in weights that must never change.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapters = [module for module in stack.modules() if isinstance(module, BaseTunerLayer)]
    originals = [adapter.get_base_layer().weight.data for adapter in adapters]
    try:
        for adapter in adapters:
            adapter.merge(safe_merge=True)
        yield
    finally:
        for adapter, original in zip(adapters, originals, strict=True):
            adapter.merged_adapters.clear()
            adapter.get_base_layer().weight.data = original
