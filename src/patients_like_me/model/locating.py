"""Find the files of a backbone on this machine, without loading anything heavy."""

from __future__ import annotations

from pathlib import Path

from patients_like_me.errors import PlmError
from patients_like_me.model.backbones import PRESETS, backbones_folder, how_to_get
from patients_like_me.model.packaged_weights import minilm_folder


def locate(name: str) -> Path | None:
    """Return the folder or GGUF file that a backbone's name stands for here, or None where there is none."""
    if not name.strip():
        return None
    preset = PRESETS.get(name)
    if preset is not None and preset.source == "package":
        return minilm_folder()
    added = backbones_folder() / name
    if (added / "config.json").is_file():
        return added
    if preset is None:
        path = Path(name).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            return path
        if path.is_dir():
            return path
    return _in_hugging_face_cache(preset.origin if preset is not None and preset.source == "hub" else name)


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
    preset = PRESETS.get(name)
    if preset is not None:
        return PlmError(f"the backbone '{name}' ({preset.title}) is not on this machine", remedy=how_to_get(preset))
    return PlmError(
        f"there is no backbone '{name}': it is neither a preset, nor a folder, nor a GGUF file, nor in the Hugging "
        "Face cache",
        remedy=f"choose one of {', '.join(PRESETS)}, or give the folder of a Hugging Face model (safetensors)",
    )
