"""The file of a checkpoint: tensors as safetensors, counters as plain JSON in its metadata; nothing is pickled.

Every training of the package is kept in this form: that of the graph network's strategies and that of any system with
epochs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, digest_of_parts


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
    """Write the whole state of a training, atomically."""
    from safetensors.torch import save_file

    with atomic_file(path) as temporary:
        kept = {name: value.contiguous() for name, value in tensors.items()}
        text = json.dumps(dict(counters))
        save_file(kept, temporary, metadata={"counters": text, "digest": _digest_of(kept, text)})


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what :func:`write_checkpoint` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            about = file.metadata()
        if _digest_of(tensors, about["counters"]) != about["digest"]:
            raise ValueError("its content is not what was written")
        return tensors, dict(json.loads(about["counters"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise PlmError(
            f"the checkpoint '{path}' cannot be read ({error})", remedy="remove it to start the training again"
        ) from None


def _digest_of(tensors: Mapping[str, Tensor], counters: str) -> str:
    parts = [(f"tensor {name}", _bytes_of(value)) for name, value in tensors.items()]
    return digest_of_parts([("counters", counters.encode()), *parts])


def _bytes_of(value: Tensor) -> bytes:
    if not value.numel():
        return b""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
