"""Trainings in several stages: each has a folder of its own below the run, and a finished one is not computed again.

A stage is any computation that leaves arrays behind and, where it was trained, an account of its epochs. While the run
is under way its stages are in ``stages/`` of the run folder, each with its own checkpoint; the room removes them with
:func:`clear_stages` when the run is whole, since predicting may take long as well.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, read_json, write_json
from patients_like_me.systems.contract import Account, Arrays, RunContext

STAGES: Final = "stages"
_DONE, _ARRAYS = "done.json", "done.safetensors"


@dataclass(frozen=True)
class Stage:
    """What a finished stage left behind; of its account epochs, the best one, seconds and weights are kept."""

    arrays: Arrays
    account: Account = field(default_factory=Account)


def kept_stage(run: RunContext, name: str, compute: Callable[[RunContext], Stage], *, settings: Any = None) -> Stage:
    """Return what a stage computed before the run was stopped, or compute it under the settings of the stage."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save_file

    context = replace(run, settings=run.settings if settings is None else settings)
    if run.folder is None:
        return _timed(compute, context)
    folder = run.folder / STAGES / name
    if (folder / _DONE).is_file():
        kept = read_json(folder / _DONE, what="account of a stage")
        try:
            arrays = load_file(folder / _ARRAYS)
        except (OSError, SafetensorError) as error:
            raise PlmError(
                f"the stage '{folder}' cannot be read ({error})", remedy="remove that folder and train again"
            ) from None
        run.report(f"stage '{name}' is finished already")
        return Stage(arrays, Account(**kept))
    run.begin()
    folder.mkdir(parents=True, exist_ok=True)
    found = _timed(compute, replace(context, folder=folder))
    with atomic_file(folder / _ARRAYS) as temporary:
        save_file({key: value.copy() for key, value in found.arrays.items()}, temporary)
    account = found.account
    # Last: it says that the stage is whole.
    write_json(
        folder / _DONE,
        {name: getattr(account, name) for name in ("epochs", "best_epoch", "seconds", "trained_weights")},
    )
    return found


def _timed(compute: Callable[[RunContext], Stage], context: RunContext) -> Stage:
    """Compute a stage; where its account has no seconds of its own, they are those of the whole."""
    started = time.perf_counter()
    found = compute(context)
    if found.account.seconds is not None:
        return found
    return replace(found, account=replace(found.account, seconds=time.perf_counter() - started))


def clear_stages(folder: Path) -> None:
    """Remove what the stages of a run kept."""
    shutil.rmtree(folder / STAGES, ignore_errors=True)


def joined_account(stages: Sequence[tuple[str, Account]], **more: Any) -> Account:
    """Return the account of all stages: epochs are numbered on, each with its stage; the best is that of the last one.

    The trained weights are those of the last stage, unless ``more`` says otherwise.

    >>> parts = [("teacher", Account(epochs=[{"epoch": 1}], best_epoch=1, seconds=2.0)),
    ...          ("student", Account(epochs=[{"epoch": 1}, {"epoch": 2}], best_epoch=2, seconds=3.0))]
    >>> joined = joined_account(parts)
    >>> [record["epoch"] for record in joined.epochs], joined.best_epoch, joined.seconds
    ([1, 2, 3], 3, 5.0)
    """
    records: list[dict[str, Any]] = []
    best = None
    for name, account in stages:
        if account.epochs:
            best = None if account.best_epoch is None else len(records) + account.best_epoch
        records += [
            {**record, "epoch": len(records) + number, "stage": name}
            for number, record in enumerate(account.epochs, start=1)
        ]
    seconds = sum(account.seconds or 0.0 for _, account in stages)
    last = {"trained_weights": stages[-1][1].trained_weights} if stages else {}
    return Account(epochs=records, best_epoch=best, seconds=seconds, **{**last, **more})
