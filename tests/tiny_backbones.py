"""Language models small enough for a test: three layers, width 32, random weights, a vocabulary of some words."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedTokenizerFast

from patients_like_me.model.backbone import Backbone
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.loading import make_backbone
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import BackboneSettings

WORDS = [
    "patient", "visit", "heart", "failure", "kidney", "acute", "chronic", "diabetes", "sepsis", "pneumonia", "insulin",
    "heparin", "dialysis", "ventilation", "anaemia", "stroke", "fever", "pain", "ulcer", "asthma", "readmitted",
    "within", "days", "the", "of", "with", "and", "no", "none", "unknown",
]  # fmt: skip
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = len(_SPECIAL) + len(WORDS)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 80, "initializer_range": 0.3, "pad_token_id": 0,
    "bos_token_id": 2, "eos_token_id": 3,
}  # fmt: skip
_GROUPED = {"num_key_value_heads": 2, "head_dim": 8}
SHAPES: dict[str, dict[str, Any]] = {
    "bert": {},
    # RoBERTa's padding id is not 0, which is what makes its positions special.
    "roberta": {"pad_token_id": 1},
    "modernbert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    "llama": _GROUPED,
    "mistral": _GROUPED | {"sliding_window": 6},
    "qwen2": {"num_key_value_heads": 2},
    "qwen3": _GROUPED,
    "gemma": _GROUPED,
    "gemma2": _GROUPED | {"sliding_window": 6, "query_pre_attn_scalar": 8},
    "gemma3_text": _GROUPED
    | {
        "sliding_window": 6,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}
ENCODERS = ("bert", "roberta", "modernbert")
DECODERS = tuple(name for name in SHAPES if name not in ENCODERS)


@cache
def tiny_tokenizer(*more: str) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*_SPECIAL, *WORDS, *more]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def tiny_model(model_type: str, *, seed: int = 0, **different: Any) -> Any:
    """Return a Hugging Face model with random weights."""
    config = AutoConfig.for_model(model_type, **(_COMMON | SHAPES[model_type] | different))
    with seeded(seed):
        return AutoModel.from_config(config).eval()


def tiny_language_head_model(more_words: int = 0, *, seed: int = 0) -> Any:
    """Return a tiny Llama with a language head."""
    shape = _COMMON | SHAPES["llama"] | {"max_position_embeddings": 512, "tie_word_embeddings": True}
    config = AutoConfig.for_model("llama", **(shape | {"vocab_size": VOCABULARY + more_words}))
    with seeded(seed):
        return AutoModelForCausalLM.from_config(config).eval()


def tiny_backbone(model_type: str, *, seed: int = 0, shape: dict[str, Any] | None = None, **settings: Any) -> Backbone:
    """Return a tiny backbone; half of its layers learn unless the settings say otherwise."""
    settings = {"name": f"tiny-{model_type}"} | settings
    if model_type in ENCODERS:
        settings = {"trainable_layers": 1} | settings
    return make_backbone(
        tiny_model(model_type, seed=seed, **(shape or {})), tiny_tokenizer(), BackboneSettings(**settings), seed=seed
    )


def texts_of(lengths: list[int]) -> list[str]:
    """Return texts of these numbers of words, each different."""
    return [
        " ".join(WORDS[(7 * row + 3 * place) % len(WORDS)] for place in range(length))
        for row, length in enumerate(lengths)
    ]


def hash_of(model: PatientsLikeMeModel, part: str) -> str:
    """Return the SHA-256 of the values of theta, of phi, or of everything that never learns (``frozen``)."""
    if part == "frozen":
        trained = {id(value) for value in model.backbone.trained_parameters().values()}
        chosen = {name: value for name, value in model.backbone.named_parameters() if id(value) not in trained}
    else:
        chosen = dict(model.theta_parameters() if part == "theta" else model.phi_parameters())
    digest = hashlib.sha256()
    for name, value in sorted(chosen.items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
