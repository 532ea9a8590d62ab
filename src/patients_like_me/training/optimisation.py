"""AdamW with the paper's two rates, and the linear schedule with its warm-up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.training.settings import TrainingSettings


def language_optimizer(model: PatientsLikeMeModel, settings: TrainingSettings) -> torch.optim.AdamW:
    """Return the optimiser of theta: the backbone at its small rate, projection and head at the other."""
    groups = [
        {"params": list(model.backbone_parameters().values()), "rate": settings.backbone_rate},
        {"params": list(model.language_head_parameters().values()), "rate": settings.rate},
    ]
    return _adamw([group for group in groups if group["params"]], settings)


def graph_optimizer(model: PatientsLikeMeModel, settings: TrainingSettings) -> torch.optim.AdamW:
    """Return the optimiser of phi."""
    return _adamw([{"params": list(model.phi_parameters().values()), "rate": settings.rate}], settings)


def _adamw(groups: Iterable[dict[str, object]], settings: TrainingSettings) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [{**group, "lr": group["rate"]} for group in groups], weight_decay=settings.weight_decay, fused=True
    )


def set_rates(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Set every group to a share of its own full rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["rate"] * share


def linear_share(step: int, total: int, warmup: float) -> float:
    """Return the share of the full rate at a step: a linear rise over the warm-up, then a linear fall to zero.

    >>> [round(linear_share(step, 10, 0.2), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.12]
    """
    rising = round(total * warmup)
    if step < rising:
        return (step + 1) / rising
    return max(0.0, (total - step) / max(1, total - rising))


def as_array(value: Tensor) -> npt.NDArray[Any]:
    """Return a copy of a tensor as an array; numpy has no bfloat16, whose numbers float32 holds exactly."""
    value = value.detach().cpu()
    kept = value.float() if value.dtype == torch.bfloat16 else value.clone()
    return kept.numpy()


def optimizer_tensors(optimizer: torch.optim.Optimizer, prefix: str) -> dict[str, Tensor]:
    """Return an optimiser's state as named tensors, for a checkpoint without pickle."""
    state = optimizer.state_dict()["state"]
    return {
        f"{prefix}.{number}.{key}": value.detach().clone() if isinstance(value, Tensor) else torch.tensor(value)
        for number, entries in state.items()
        for key, value in entries.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Put back what :func:`optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith(f"{prefix}."):
            number, key = name.removeprefix(f"{prefix}.").split(".", 1)
            state.setdefault(int(number), {})[key] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def parameter_tensors(parameters: Mapping[str, nn.Parameter], prefix: str) -> dict[str, Tensor]:
    """Return copies of parameters by name."""
    return {f"{prefix}.{name}": value.detach().cpu().clone() for name, value in parameters.items()}


def restore_parameters(parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], prefix: str) -> None:
    """Put back what :func:`parameter_tensors` returned."""
    with torch.no_grad():
        for name, value in parameters.items():
            value.copy_(tensors[f"{prefix}.{name}"])
