"""The transformer families that can serve as a backbone: where each keeps its embeddings, layers and last norm.

Knowing these places lets one short driver (``layer_stack``) run any family, and cut it at any layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from patients_like_me.errors import PlmError

BackboneKind = Literal["encoder", "decoder"]


@dataclass(frozen=True)
class Family:
    """One family of transformers, by the names its parts carry in Hugging Face's code."""

    title: str
    kind: BackboneKind
    embeddings: str
    layers: str
    final_norm: str | None
    #: How a token learns its place: a table of positions, one that starts after the padding id, or rotation.
    positions: Literal["table", "table_after_padding", "rotary", "rotary_by_layer_type"]
    #: The attention code to use whatever the settings say, where the family supports only one.
    only_attention: Literal["eager"] | None = None
    #: Whether a sliding window, where one is set, holds in every layer instead of those that ``layer_types`` names.
    window_in_every_layer: bool = False


_BERT = Family("BERT", "encoder", "embeddings", "encoder.layer", None, "table")
_ROBERTA = Family("RoBERTa", "encoder", "embeddings", "encoder.layer", None, "table_after_padding")
_MODERNBERT = Family("ModernBERT", "encoder", "embeddings", "layers", "final_norm", "rotary_by_layer_type")


def _decoder(title: str, **different: Any) -> Family:
    parts = {"embeddings": "embed_tokens", "layers": "layers", "final_norm": "norm", "positions": "rotary"}
    return Family(title, "decoder", **(parts | different))


#: By ``model_type`` of the configuration.
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "modernbert": _MODERNBERT,
    "llama": _decoder("Llama"),
    "mistral": _decoder("Mistral", window_in_every_layer=True),
    "qwen2": _decoder("Qwen 2"),
    "qwen3": _decoder("Qwen 3"),
    "gemma": _decoder("Gemma"),
    # Gemma 2 caps its attention scores, which only the plain attention code can do.
    "gemma2": _decoder("Gemma 2", only_attention="eager"),
    "gemma3_text": _decoder("Gemma 3", positions="rotary_by_layer_type"),
}


def family_of(model_type: str, *, name: str) -> Family:
    """Return the family of a ``model_type``; ``name`` is the backbone named in the error.

    >>> family_of("bert", name="minilm").kind
    'encoder'
    """
    family = FAMILIES.get(model_type)
    if family is None:
        raise PlmError(
            f"the backbone '{name}' is of type '{model_type}', which is not supported",
            remedy=f"choose one of these types: {', '.join(sorted(FAMILIES))}",
        )
    return family
