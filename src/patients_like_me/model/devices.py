"""Which device computes, and in which number format: half precision only where it is faster.

A CPU without instructions for bfloat16 is many times slower with it than with float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from patients_like_me.errors import PlmError
from patients_like_me.model.settings import GraphDevice, Precision

#: The share of a card's free memory that the states of all nodes may take; batches of the backbone need the rest.
_STATES_SHARE = 0.3


def best_device() -> torch.device:
    """Return the graphics card where there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def wanted_device(name: str) -> torch.device:
    """Return the device of a setting; one that this machine lacks is refused."""
    if name == "auto":
        return best_device()
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(name, False):
        found = ", ".join(device for device, is_there in there.items() if is_there)
        raise PlmError(f"this machine has no device '{name}' that torch can use", remedy=f"use device auto or {found}")
    return torch.device(name)


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    # A device of the other kinds shares the memory of the machine.
    return int(psutil.virtual_memory().available)


def graph_device(name: GraphDevice, backbone: torch.device, state_bytes: int) -> torch.device:
    """Return where the graph network computes: ``auto`` is the card of the backbone where all states fit next to it.

    ``state_bytes`` are those of all nodes in one forward and backward pass. The rows of the graph itself need not fit:
    they are sent in blocks where they do not (see ``device_product``).

    >>> graph_device("auto", torch.device("cpu"), 0)
    device(type='cpu')
    """
    if name != "auto":
        return wanted_device(name)
    # Torch has no sparse products on other cards.
    if backbone.type != "cuda" or state_bytes > _STATES_SHARE * free_bytes(backbone):
        return torch.device("cpu")
    return backbone


def autocast_format(device: torch.device, precision: Precision = "auto") -> torch.dtype | None:
    """Return the half-precision format to compute in on a device, or None for plain float32.

    >>> autocast_format(torch.device("cpu"), "float32") is None
    True
    """
    if precision == "float32":
        return None
    if precision != "auto":
        return torch.bfloat16 if precision == "bfloat16" else torch.float16
    if device.type == "cuda":
        # float16 would need its gradients scaled; a card without bfloat16 computes in float32.
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None
    if device.type == "cpu" and cpu_has_bfloat16():
        return torch.bfloat16
    return None


def cpu_has_bfloat16() -> bool:
    """Tell whether this CPU multiplies bfloat16 numbers natively (AVX-512 BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def autocast(device: torch.device, precision: Precision = "auto") -> AbstractContextManager[object]:
    """Return the context in which to run the forward pass."""
    chosen = autocast_format(device, precision)
    return nullcontext() if chosen is None else torch.autocast(device.type, dtype=chosen)
