"""A network's pass as a folder of plain arrays, which every worker maps into its memory.

The arrays hold states of the network and numbers of nodes, no ids and no text.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from patients_like_me.explanation.known_pass import KnownPass, LayerStates, NormalisedGraph
from patients_like_me.files import atomic_folder


def write_pass(folder: Path, known: KnownPass) -> None:
    """Write a pass into a new folder, whole or not at all; one that is there stays as it is."""
    if folder.is_dir():
        return
    arrays: dict[str, Any] = {
        **{f"graph.{name}": value for name, value in known.graph._asdict().items()},
        **{f"states.{name}": value for name, value in known.states._asdict().items()},
        "classifier": known.classifier,
        "constant_logits": known.constant_logits,
        "logits": known.logits,
    }
    write_arrays(folder, arrays)


def write_arrays(folder: Path, arrays: dict[str, Any]) -> None:
    """Write arrays by name as a folder, whole or not at all; another coordinator may have written the same."""
    with atomic_folder(folder, replace=True) as temporary:
        for name, value in arrays.items():
            np.save(temporary / f"{name}.npy", value, allow_pickle=False)


@lru_cache(maxsize=1)
def opened_pass(folder: str) -> KnownPass:
    """Open a pass: its arrays are mapped, pages of them are read when they are needed."""
    place = Path(folder)
    return KnownPass(
        NormalisedGraph(**{name: mapped(place, f"graph.{name}") for name in NormalisedGraph._fields}),
        LayerStates(**{name: mapped(place, f"states.{name}") for name in LayerStates._fields}),
        mapped(place, "classifier"),
        mapped(place, "constant_logits"),
        mapped(place, "logits"),
    )


def mapped(folder: Path, name: str) -> Any:
    """Map one array of a folder."""
    # Copy on write: kernels are compiled for arrays that may be written, and nothing reaches the file.
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))
