"""BERT in plain PyTorch: Hugging Face's weights and numbers, without the seconds that its import takes.

Loading transformers' modelling code costs several times what a single prediction does. The default backbone is a BERT,
whose layers are few lines; parts carry Hugging Face's names, so weights, hashes and saved runs are the same. Whatever
this file does not know (another activation, another attention, several weight files) is left to transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

#: What a configuration means where it does not say; the names are those of Hugging Face.
_DEFAULTS: Final = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0,
}  # fmt: skip
#: Configurations that ask for something else than plain BERT.
_ORDINARY: Final = {
    "model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False,
    "add_cross_attention": False,
}  # fmt: skip


class PlainEmbeddings(nn.Module):
    """The sum of token, position and segment vectors, normalised."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Return the vectors [B, L, W] that enter the first layer."""
        found = self.word_embeddings(input_ids) + self.token_type_embeddings(torch.zeros_like(input_ids))
        summed: Tensor = self.dropout(self.LayerNorm(found + self.position_embeddings(position_ids)))
        return summed


class PlainSelfAttention(nn.Module):
    """Softmax(Q K' / sqrt(d) + mask) V, with several heads."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return what each token gathers from those it sees, [B, L, W]."""
        batch, length, width = hidden.shape

        def heads(values: Tensor) -> Tensor:
            return values.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        gathered = functional.scaled_dot_product_attention(
            heads(self.query(hidden)),
            heads(self.key(hidden)),
            heads(self.value(hidden)),
            attn_mask=mask,
            dropout_p=self.dropout.p if self.training else 0.0,
        )
        return gathered.transpose(1, 2).reshape(batch, length, width)


class PlainOutput(nn.Module):
    """A linear layer, and the norm of its sum with what went around it."""

    def __init__(self, config: Any, inputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, values: Tensor, around: Tensor) -> Tensor:
        """Return [B, L, W]."""
        found: Tensor = self.LayerNorm(self.dropout(self.dense(values)) + around)
        return found


class PlainLayer(nn.Module):
    """One transformer layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.attention = nn.ModuleDict(
            {"self": PlainSelfAttention(config), "output": PlainOutput(config, config.hidden_size)}
        )
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.output = PlainOutput(config, config.intermediate_size)

    def forward(self, hidden: Tensor, *, attention_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Return the states after the layer, [B, L, W]."""
        del is_causal
        attended = self.attention["output"](self.attention["self"](hidden, attention_mask), hidden)
        found: Tensor = self.output(functional.gelu(self.intermediate["dense"](attended)), attended)
        return found


class PlainBert(nn.Module):
    """Embeddings and layers under Hugging Face's names; there is no pooler."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = PlainEmbeddings(config)
        layers = nn.ModuleList(PlainLayer(config) for _ in range(config.num_hidden_layers))
        self.encoder = nn.ModuleDict({"layer": layers})

    def set_attn_implementation(self, name: str) -> None:
        """Accept the one kind of attention that there is."""
        assert name == "sdpa", "another attention is left to transformers"


class PlainTokenizer:
    """A fast tokenizer, called as the backbone calls Hugging Face's."""

    def __init__(self, file: Path) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_file(str(file))
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.no_truncation()

    def __call__(
        self, texts: list[str], *, truncation: bool, max_length: int | None = None, **others: Any
    ) -> dict[str, list[list[int]]]:
        """Return the token ids of each text, special tokens included."""
        del others
        if truncation and max_length is not None:
            self.backend_tokenizer.enable_truncation(max_length)
        else:
            self.backend_tokenizer.no_truncation()
        return {"input_ids": [encoded.ids for encoded in self.backend_tokenizer.encode_batch(texts)]}


def plain_bert(folder: Path, *, attention: str, dtype: str) -> tuple[PlainBert, PlainTokenizer, list[str]] | None:
    """Read a BERT from its folder, with the names of missing weights; None where it is not a plain one."""
    from safetensors.torch import load_file

    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    if attention != "sdpa" or not weights.is_file() or not tokenizer.is_file():
        return None
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if any(said.get(name, value) != value for name, value in _ORDINARY.items()) or "model_type" not in said:
        return None
    config = SimpleNamespace(**{**_DEFAULTS, **{name: said[name] for name in _DEFAULTS if name in said}})
    model = PlainBert(config).to(getattr(torch, dtype))
    tensors = {name.removeprefix("bert."): tensor for name, tensor in load_file(weights).items()}
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    return model, PlainTokenizer(tokenizer), list(missing)
