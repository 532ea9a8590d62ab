"""What ``plm backbones`` shows: every known backbone, whether it can be used here, and what it would cost.

Costs are counted from the shape alone, before anything is loaded: operations per epoch, memory and disk.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from patients_like_me.errors import PlmError
from patients_like_me.files import read_json
from patients_like_me.model.backbones import KNOWN_BACKBONES, KnownBackbone, backbones_folder, how_to_get, locate
from patients_like_me.model.families import FAMILIES
from patients_like_me.model.packaged_weights import checked_minilm_folder
from patients_like_me.model.settings import PAPER_TRAINABLE_LAYERS, BackboneSettings


@dataclass(frozen=True)
class ListedBackbone:
    """One line of the list; costs are for 1,000 prompts of 256 tokens, None where the shape is not known."""

    name: str
    title: str
    family: str
    kind: str
    parameters: int
    layers: int
    width: int
    licence: str
    #: None where it can be used, else what is missing and how to get it.
    missing: str | None
    trained_parameters: int | None = None
    first_epoch_operations: float | None = None
    later_epoch_operations: float | None = None


def list_backbones() -> list[ListedBackbone]:
    """Return the known backbones, then those that the user added."""
    listed = []
    for known in KNOWN_BACKBONES.values():
        cost = cost_of(known)
        listed.append(
            ListedBackbone(
                known.name, known.title, known.family, known.kind, known.parameters, known.layers, known.width,
                known.licence, _what_is_missing(known.name), cost.trained_parameters, cost.first_epoch_operations,
                cost.later_epoch_operations,
            )
        )  # fmt: skip
    folder = backbones_folder()
    added = sorted(path.parent for path in folder.glob("*/backbone.json")) if folder.is_dir() else []
    return listed + [_added(path) for path in added if path.name not in KNOWN_BACKBONES]


def _what_is_missing(name: str) -> str | None:
    known = KNOWN_BACKBONES[name]
    if locate(name) is None:
        return how_to_get(known)
    if known.source == "package":
        try:
            checked_minilm_folder()
        except PlmError as error:
            return str(error)
    return None


def _added(folder: Path) -> ListedBackbone:
    about = read_json(folder / "backbone.json", what="note of an added backbone")
    config = read_json(folder / "config.json", what="configuration of an added backbone")
    family = FAMILIES[about["model_type"]]
    return ListedBackbone(
        folder.name, f"added from {about['source']}", family.title, family.kind, int(about["parameters"]),
        int(config["num_hidden_layers"]), int(config["hidden_size"]), str(about["licence"]), missing=None,
    )  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """The cost of training on some prompts, in floating-point operations and bytes."""

    trained_parameters: int
    first_epoch_operations: float
    later_epoch_operations: float
    cache_bytes: int


def cost_of(
    backbone: KnownBackbone, settings: BackboneSettings | None = None, *, prompts: int = 1000, tokens: int = 256
) -> Cost:
    """Estimate what training on ``prompts`` prompts of ``tokens`` tokens costs per epoch.

    A forward pass takes two operations per weight and token, and four per pair of tokens and width in the attention;
    the backward pass takes twice that where weights learn and once where only adapters do. From the second epoch on
    the frozen layers come from the cache.
    """
    settings = settings or BackboneSettings(name=backbone.name)
    depth, total = backbone.layers, prompts * tokens
    per_layer = total * (2.0 * backbone.parameters_per_layer + 4.0 * tokens * backbone.width)
    if backbone.kind == "encoder":
        wanted = PAPER_TRAINABLE_LAYERS if settings.trainable_layers is None else settings.trainable_layers
        trained_layers, backward = min(wanted, depth), 2.0
        trained = trained_layers * backbone.parameters_per_layer
    else:
        trained_layers = depth if settings.lora_layers is None else min(settings.lora_layers, depth)
        backward = 1.0
        trained = trained_layers * adapter_parameters(backbone, settings.lora_rank)
    frozen_layers = depth - trained_layers
    later = trained_layers * per_layer * (1.0 + backward)
    kept = total if 0 < frozen_layers < depth else prompts * (frozen_layers == depth)
    return Cost(
        trained_parameters=trained,
        first_epoch_operations=later + frozen_layers * per_layer,
        later_epoch_operations=later,
        cache_bytes=4 * backbone.width * kept,
    )


def adapter_parameters(backbone: KnownBackbone, rank: int) -> int:
    """Return the number of adapter weights of one decoder layer: rank x (inputs + outputs) of q, k, v and o."""
    heads = int(backbone.shape["num_attention_heads"])
    head_width = int(backbone.shape.get("head_dim", backbone.width // heads))
    queries = heads * head_width
    keys = int(backbone.shape.get("num_key_value_heads", heads)) * head_width
    return rank * (2 * (backbone.width + queries) + 2 * (backbone.width + keys))


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
