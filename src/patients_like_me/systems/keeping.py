"""Keeping a fitted system: arrays as safetensors, everything else as JSON; and reading it again. Nothing is pickled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, read_json, write_json
from patients_like_me.runs.run import Run
from patients_like_me.settings import checked
from patients_like_me.systems.contract import Fitted, System

ARRAYS: Final = "fitted.safetensors"
FACTS: Final = "fitted.json"


def save_fitted(system: System, fitted: Fitted, folder: Path) -> None:
    """Write what was fitted into a run folder."""
    if system.save is not None:
        system.save(fitted, folder)
    else:
        write_fitted(fitted, folder)


def write_fitted(fitted: Fitted, folder: Path) -> None:
    """Write the arrays and facts."""
    from safetensors.numpy import save_file

    with atomic_file(folder / ARRAYS) as temporary:
        save_file({name: np.ascontiguousarray(value) for name, value in fitted.arrays.items()}, temporary)
    write_json(folder / FACTS, dict(fitted.facts))


def load_fitted(system: System, run: Run) -> Fitted:
    """Read what was fitted from a finished run, once; it predicts as it did when it was written."""
    _ = run.results
    if "fitted" not in run.opened:
        run.opened["fitted"] = read_fitted(system, run) if system.load is None else system.load(run)
    found: Fitted = run.opened["fitted"]
    return replace(found, calibration=run.calibration_for(newcomers=True))


def read_fitted(system: System, run: Run) -> Fitted:
    """Read the arrays and facts of a run."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    run.verify(ARRAYS, FACTS)
    settings = checked(system.settings_class, **run.identity.settings)
    try:
        arrays = load_file(run.folder / ARRAYS)
    except (OSError, SafetensorError) as error:
        raise PlmError(
            f"what the run '{run.folder}' fitted cannot be read ({error})", remedy="train the run again"
        ) from None
    return Fitted(settings, arrays, read_json(run.folder / FACTS, what="description of the fitted system"))
