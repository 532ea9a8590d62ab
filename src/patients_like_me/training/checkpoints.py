"""The file of a checkpoint: tensors as safetensors, counters as plain JSON in its metadata; nothing is pickled.

Every training of the package is kept in this form: that of the graph network's strategies and that of any system with
epochs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
    """Write the whole state of a training, atomically."""
    from safetensors.torch import save_file

    with atomic_file(path) as temporary:
        kept = {name: value.contiguous() for name, value in tensors.items()}
        save_file(kept, temporary, metadata={"counters": json.dumps(dict(counters))})


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what :func:`write_checkpoint` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(json.loads(file.metadata()["counters"]))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise PlmError(
            f"the checkpoint '{path}' cannot be read ({error})", remedy="remove it to start the training again"
        ) from None
