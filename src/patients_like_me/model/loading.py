"""Bring a backbone from this machine's disk: a known one, a folder, a GGUF file or a name in the Hugging Face cache.

Never from the network, never code from a model's repository, never pickled weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.model.backbone import Backbone, hash_of_weights
from patients_like_me.model.backbones import KNOWN_BACKBONES, locate, missing_backbone
from patients_like_me.model.families import family_of
from patients_like_me.model.layer_stack import LayerStack
from patients_like_me.model.packaged_weights import checked_minilm_folder, quiet_transformers, read_gguf
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import BackboneSettings
from patients_like_me.model.tuning import add_low_rank_adapters, make_bidirectional, tune_last_layers

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")


def load_backbone(settings: BackboneSettings, *, seed: int = 0) -> Backbone:
    """Load a backbone and decide what of it learns; ``seed`` draws the adapters of a decoder."""
    known = KNOWN_BACKBONES.get(settings.name)
    place = locate(settings.name)
    if place is None:
        raise missing_backbone(settings.name)
    if known is not None and known.source == "package":
        place = checked_minilm_folder()
    # Weights that a file lacks are drawn at random until the check below refuses them: keep the global generator.
    with seeded(seed):
        if place.suffix == ".gguf":
            model, tokenizer = read_gguf(place, dtype=settings.dtype)
        else:
            model, tokenizer = _read_folder(place, settings)
    return make_backbone(model, tokenizer, settings, seed=seed, first_layers=known.first_layers if known else None)


def make_backbone(
    model: Any, tokenizer: Any, settings: BackboneSettings, *, seed: int = 0, first_layers: int | None = None
) -> Backbone:
    """Make a backbone of a Hugging Face model in memory and its tokenizer."""
    family = family_of(str(model.config.model_type), name=settings.name)
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise PlmError(
            f"the tokenizer of the backbone '{settings.name}' has no fast form", remedy="add its tokenizer.json"
        )
    tokens = tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False)
    if tokens > model.config.vocab_size:
        raise PlmError(
            f"the tokenizer of the backbone '{settings.name}' has {tokens} tokens, the model only "
            f"{model.config.vocab_size}",
            remedy="put the tokenizer that belongs to the model into its folder",
        )
    model.set_attn_implementation(family.only_attention or settings.attention)
    stack = LayerStack(model, family, gradient_checkpointing=settings.gradient_checkpointing)
    if first_layers is not None:
        del stack.layers[first_layers:]
        model.config.num_hidden_layers = first_layers
    if settings.attention_dropout is not None:
        _set_attention_dropout(stack, settings.attention_dropout)
    if settings.dropout is not None:
        _set_dropout(stack, settings.dropout)
    weights_sha256 = hash_of_weights(stack)
    if family.kind == "encoder":
        frozen_layers = tune_last_layers(stack, settings.trainable_layers, name=settings.name)
    else:
        make_bidirectional(model.config)
        frozen_layers = add_low_rank_adapters(stack, settings, seed=seed)
    return Backbone(stack, tokenizer, settings, frozen_layers=frozen_layers, weights_sha256=weights_sha256)


def _read_folder(folder: Path, settings: BackboneSettings) -> tuple[Any, Any]:
    if not (folder / "config.json").is_file():
        raise PlmError(f"the folder '{folder}' has no config.json", remedy="give the folder of a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        raise PlmError(
            f"the folder '{folder}' has no weights in safetensors form (*.bin files are not read: they are pickles)",
            remedy="save the model again with transformers' save_pretrained, which writes model.safetensors",
        )
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        # Hugging Face would silently make an empty tokenizer.
        raise PlmError(
            f"the folder '{folder}' has no tokenizer ({', '.join(_TOKENIZER_FILES)})",
            remedy="save the tokenizer that belongs to the model into it",
        )
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    # A folder path, never a name, goes to Hugging Face: so it cannot look anything up elsewhere.
    offline = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(str(folder), **offline)
            family_of(str(config.model_type), name=settings.name)
            model, report = AutoModel.from_pretrained(
                str(folder), config=config, dtype=settings.dtype, use_safetensors=True, output_loading_info=True,
                **offline,
            )  # fmt: skip
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **offline)
    except PlmError:
        raise
    except MemoryError:
        raise PlmError(
            f"the backbone in '{folder}' does not fit into memory", remedy="load it in half precision (dtype bfloat16)"
        ) from None
    except Exception as error:  # whatever the libraries raise, the folder is at fault
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PlmError(
            f"the backbone in '{folder}' cannot be read ({reason})", remedy="check that the folder is complete"
        ) from None
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise PlmError(
            f"the weights in '{folder}' lack {len(missing)} tensors, first '{missing[0]}'",
            remedy="check that the folder is complete",
        )
    return model, tokenizer


def _set_attention_dropout(stack: LayerStack, rate: float) -> None:
    for module in stack.layers.modules():
        if type(module).__name__.endswith("SelfAttention"):
            module.dropout.p = rate  # type: ignore[union-attr]
        elif hasattr(module, "attention_dropout"):
            module.attention_dropout = rate  # type: ignore[assignment]


def _set_dropout(stack: LayerStack, rate: float) -> None:
    from torch import nn

    modules = list(stack.layers.modules())
    attention = {id(module.dropout) for module in modules if type(module).__name__.endswith("SelfAttention")}
    for module in modules:
        if isinstance(module, nn.Dropout) and id(module) not in attention:
            module.p = rate
