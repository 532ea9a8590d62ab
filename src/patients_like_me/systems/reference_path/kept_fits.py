"""Fits of an own path that are kept on disk, so that controls and other gates do not fit the same system again.

A fit is found again by everything that it depends on: the system and its settings, the cohort, the task and its
settings, which instances train and which validate with which labels, the installed code tables that the system needs,
and the source of the systems. Kept fits hold weights and names of codes, like the cache of hidden states next to them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from patients_like_me import __version__
from patients_like_me.files import atomic_file
from patients_like_me.parts import is_ours
from patients_like_me.systems.contract import Account, Fitted, System
from patients_like_me.systems.problem import Problem

FOLDER: Final = "own-paths"


def kept_fit(cache: Path | None, system: System, problem: Problem, settings: Any, fit: Callable[[], Fitted]) -> Fitted:
    """Return what was fitted before to the same problem with the same settings, or fit and keep it.

    Nothing is kept of a system of another package: no digest would tell that its code has changed.
    """
    if cache is None or not is_ours(system.fit):
        return fit()
    file = cache / FOLDER / f"{_key(system, problem, settings)}.safetensors"
    found = _read(file, settings)
    if found is None:
        found = fit()
        _write(file, found)
    return found


def _key(system: System, problem: Problem, settings: Any) -> str:
    instances = problem.with_validation_labels()
    told = hashlib.sha256(
        json.dumps(
            {
                "system": system.name,
                "settings": settings.model_dump(mode="json"),
                "cohort": instances.cohort.hash,
                "task": instances.task.name,
                "task_settings": instances.settings.model_dump(mode="json"),
                "outputs": list(instances.label_vocabulary),
                "sources": digest_of_sources(),
                "version": __version__,
                "tables": _tables(system.knowledge),
            },
            sort_keys=True,
        ).encode()
    )
    names = instances.instance_ids
    for rows in (problem.train, problem.validation):
        told.update("\n".join(names[row] for row in rows.tolist()).encode())
        told.update(np.ascontiguousarray(instances.labels[rows]).tobytes())
    return told.hexdigest()


def _tables(names: Sequence[str]) -> dict[str, str]:
    """Return the digests of installed code tables: with other knowledge a system fits something else."""
    if not names:
        return {}
    from patients_like_me.codes.store import CodeStore

    installed = CodeStore.default().provenance()["installed"]
    return {name: str(installed[name]["sha256"]) for name in names if name in installed}


@lru_cache(maxsize=1)
def digest_of_sources() -> str:
    """Return a digest of the systems' code: another way of fitting is another fit."""
    told = hashlib.sha256()
    for file in sorted(Path(__file__).parents[1].rglob("*.py")):
        told.update(file.read_bytes())
    return told.hexdigest()


def _read(file: Path, settings: Any) -> Fitted | None:
    """Return a kept fit; None where there is none or it is damaged, so that it is fitted again."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "numpy") as opened:
            about = json.loads(opened.metadata()["about"])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        return Fitted(settings, arrays, about["facts"], Account(**about["account"]))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


def _write(file: Path, fitted: Fitted) -> None:
    from safetensors.numpy import save_file

    file.parent.mkdir(parents=True, exist_ok=True)
    about = json.dumps({"facts": dict(fitted.facts), "account": asdict(fitted.account)})
    with atomic_file(file) as temporary:
        arrays = {name: np.ascontiguousarray(value) for name, value in fitted.arrays.items()}
        save_file(arrays, temporary, metadata={"about": about})
