"""What a backbone costs, before anything is loaded: operations per epoch, memory and disk, from its shape alone."""

from __future__ import annotations

import time
from dataclasses import dataclass

from patients_like_me.model.backbone_settings import PAPER_TRAINABLE_LAYERS, BackboneSettings
from patients_like_me.model.backbones import Preset


@dataclass(frozen=True)
class Cost:
    """The cost of training on some prompts, in floating-point operations and bytes."""

    trained_parameters: int
    first_epoch_operations: float
    later_epoch_operations: float
    weight_bytes: int
    cache_bytes: int


def cost_of(
    preset: Preset, settings: BackboneSettings | None = None, *, prompts: int = 1000, tokens: int = 256
) -> Cost:
    """Estimate what training on ``prompts`` prompts of ``tokens`` tokens costs per epoch.

    A forward pass takes two operations per weight and token, and four per pair of tokens and width in the attention;
    the backward pass takes twice that where weights learn and once where only adapters do. From the second epoch on
    the frozen layers come from the cache.
    """
    settings = settings or BackboneSettings(name=preset.name)
    depth, total = preset.layers, prompts * tokens
    per_layer = total * (2.0 * preset.parameters_per_layer + 4.0 * tokens * preset.width)
    if preset.kind == "encoder":
        wanted = PAPER_TRAINABLE_LAYERS if settings.trainable_layers is None else settings.trainable_layers
        trained_layers, backward = min(wanted, depth), 2.0
        trained = trained_layers * preset.parameters_per_layer
    else:
        trained_layers = depth if settings.lora_layers is None else min(settings.lora_layers, depth)
        backward = 1.0
        trained = trained_layers * adapter_parameters(preset, settings.lora_rank)
    frozen_layers = depth - trained_layers
    later = trained_layers * per_layer * (1.0 + backward)
    kept = total if 0 < frozen_layers < depth else prompts * (frozen_layers == depth)
    return Cost(
        trained_parameters=trained,
        first_epoch_operations=later + frozen_layers * per_layer,
        later_epoch_operations=later,
        weight_bytes=preset.parameters * (4 if settings.dtype == "float32" else 2),
        cache_bytes=4 * preset.width * kept,
    )


def adapter_parameters(preset: Preset, rank: int) -> int:
    """Return the number of adapter weights of one decoder layer: rank x (inputs + outputs) of q, k, v and o."""
    heads = int(preset.shape["num_attention_heads"])
    head_width = int(preset.shape.get("head_dim", preset.width // heads))
    queries = heads * head_width
    keys = int(preset.shape.get("num_key_value_heads", heads)) * head_width
    return rank * (2 * (preset.width + queries) + 2 * (preset.width + keys))


def measured_operations_per_second(*, seconds: float = 0.2) -> float:
    """Measure what this machine's processor reaches in products of large float32 matrices."""
    import numpy as np

    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((768, 768), dtype=np.float32) for _ in range(2))
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        left @ right
        best = max(best, 2 * 768**3 / (time.perf_counter() - start))
    return best
