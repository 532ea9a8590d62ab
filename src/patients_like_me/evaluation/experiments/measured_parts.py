"""What experiments with the system ``references`` share: own paths by name, parts kept in files, paired differences.

Such an experiment fits the system itself instead of training run folders: one fit gives the own path and the answer
with references. A part (cohort, task, own path, seed) is written when it is done; the same command
continues after a stop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.definitions import definition_of
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.evaluation.intervals import paired_difference, resampled_values
from patients_like_me.files import read_json, write_json
from patients_like_me.settings import merged
from patients_like_me.systems.reference_path.kept_fits import digest_of_sources
from patients_like_me.systems.reference_path.model import subject_ids_of
from patients_like_me.systems.registry import find_system
from patients_like_me.tasks.forms import Scored
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.metrics import score

#: Own paths by name, as settings of the system ``references``; in ``language model`` one is trained through ``linear``.
OWN_PATHS: Final[Mapping[str, Mapping[str, Any]]] = {
    "linear": {"own_path": ("linear",)},
    "boosting": {"own_path": ("boosting",)},
    "stack": {"own_path": ("linear", "boosting")},
    "language model": {"own_path": ("linear",), "language_model": "trained"},
}
Scores = dict[str, float | None]


def own_paths_named(names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the settings of every own path that was asked for."""
    for name in names:
        if name not in OWN_PATHS:
            raise PlmError(f"there is no own path '{name}'", remedy=f"choose from {', '.join(OWN_PATHS)}")
    return {name: OWN_PATHS[name] for name in names}


def settings_of_references(request: Request) -> Any:
    """Return the settings of the system ``references`` under the preset, with the user's changes."""
    return find_system("references").settings_of(
        request.preset, **merged({}, dict(request.changes.get("references", {})))
    )


def identity_of(instances: Instances, settings: Any, experiment: str, **more: Any) -> dict[str, Any]:
    """Return all that the numbers of a part depend on: settings, records, task, and the code that computes them.

    ``experiment`` is the file of the experiment's code, ``more`` whatever else it uses.
    """
    told = hashlib.sha256(digest_of_sources().encode())
    for file in (Path(__file__), Path(experiment)):
        told.update(file.read_bytes())
    return {
        "settings": settings.model_dump(mode="json"),
        "cohort": instances.cohort.hash,
        "task": instances.settings.model_dump(mode="json"),
        "sources": told.hexdigest(),
        **more,
    }


def kept_part(file: Path, identity: Mapping[str, Any], compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the numbers of a part from its file, or compute and keep them; another identity is computed again."""
    if file.is_file():
        found: dict[str, Any] = read_json(file, what="part of an experiment")
        if found["identity"] == identity:
            return found
    found = {"identity": dict(identity), **compute()}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, found)
    return found


def scores_of(logits: npt.NDArray[Any], test: Instances) -> Scores:
    """Return all metrics of the task."""
    kind = test.task.kind
    return score(test.task.metrics, test.labels, kind.in_shape(kind.probabilities(logits)))


def differences_from(
    base: str, logits: Mapping[str, npt.NDArray[Any]], test: Instances
) -> dict[str, list[float] | None]:
    """Return the difference of the first metric from a row, with its interval over patients, for every row."""
    kind, metric = test.task.kind, test.task.metrics[0]
    _, patients = np.unique(subject_ids_of(test), return_inverse=True)
    form = definition_of(kind, metric).form
    if form is None:
        return {}
    forms = {
        name: form(Scored(kind, test.labels, kind.in_shape(kind.probabilities(each)), patients))
        for name, each in logits.items()
    }
    values = resampled_values(forms, int(patients.max()) + 1)
    scores = {name: scores_of(each, test)[metric] for name, each in logits.items()}
    found: dict[str, list[float] | None] = {}
    for name, value in scores.items():
        difference = paired_difference(value, scores[base], values[name], values[base])
        interval = None if difference is None else difference.interval
        found[name] = None
        if difference is not None and interval is not None:
            found[name] = [difference.value, interval.low, interval.high]
    return found


def mean_difference(parts: Sequence[Mapping[str, Any]], name: str) -> list[float] | None:
    """Return the mean over parts of a difference and of the ends of its interval; None where one is unknown."""
    found = [part["differences"].get(name) for part in parts]
    return None if any(each is None for each in found) else np.mean(found, axis=0).tolist()
