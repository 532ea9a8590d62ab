"""The frozen layers of many prompts, computed by workers and kept in the cache that every training reads.

A worker is given a folder and a range of instances. The folder names the cohort, the task, the settings and the cache;
the worker writes the prompts of its range itself, so no text passes through a scheduler. Hidden states are made from
patients' records: the cache needs the same protection as the cohort.
"""

from __future__ import annotations

import hashlib
import json
import threading
from functools import lru_cache
from pathlib import Path

from patients_like_me.errors import PlmError
from patients_like_me.files import read_json, write_json
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.hidden_state_cache import HiddenStateCache
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.records.cohort import Cohort
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.prompts import write_prompts
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.preparation import model_settings, place_backbone
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.workers import Progress, Workers, in_workers

_QUESTION = "question.json"
_opening = threading.Lock()


def fill_cache_in_workers(
    cohort_folder: Path,
    task: str,
    task_settings: TaskSettings,
    settings: TrainingSettings,
    cache: Path,
    *,
    workers: Workers,
    rows_per_block: int = 1024,
    progress: Progress | None = None,
) -> int:
    """Let workers compute the frozen layers of all instances of a task; return the number of ranges they did.

    A training with the same cache then finds all of them. Ranges that were done before are not given out again.
    """
    cohort = Cohort.load(cohort_folder)
    instances = build_instances(cohort, find_task(task, cohort), task_settings)
    question = {
        "cohort": str(cohort_folder.absolute()),
        "cohort_hash": cohort.hash,
        "task": task,
        "task_settings": task_settings.model_dump(mode="json"),
        "settings": settings.model_dump(mode="json"),
        "cache": str(cache.absolute()),
    }
    name = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache.absolute() / "ranges" / name
    write_json(folder / _QUESTION, question)
    ranges = [
        (str(folder), first, min(first + rows_per_block, len(instances)))
        for first in range(0, len(instances), rows_per_block)
    ]
    return in_workers(
        fill_rows,
        ranges,
        workers=workers,
        is_done=lambda part: _mark_of(folder, part[1], part[2]).is_file(),
        progress=progress,
    )


def fill_rows(folder: str, first: int, last: int) -> None:
    """Compute the frozen layers of a range of instances and keep them. What a worker runs."""
    with _opening:
        instances, settings, backbone, cache = _opened(folder)
        budget = min(settings.max_tokens, backbone.max_tokens)
        texts = write_prompts(instances, backbone.count_tokens, budget=budget, rows=range(first, last)).texts
        kept = HiddenStateCache(cache, dtype=settings.cache_format)
        inputs = prepare_inputs(backbone, texts, max_tokens=budget, cache=kept)
    write_json(_mark_of(Path(folder), first, last), {"prompts": len(inputs), "level": inputs.level})


@lru_cache(maxsize=1)
def _opened(folder: str) -> tuple[Instances, TrainingSettings, Backbone, Path]:
    question = read_json(Path(folder) / _QUESTION, what="description of frozen layers to compute")
    cohort = Cohort.load(Path(question["cohort"]))
    if cohort.hash != question["cohort_hash"]:
        raise PlmError(
            f"the worker sees another cohort at '{question['cohort']}'",
            remedy="give the workers a folder that all machines share",
        )
    task = find_task(question["task"], cohort)
    instances = build_instances(cohort, task, task.settings(question["task_settings"]))
    settings = TrainingSettings.model_validate(question["settings"])
    model = PatientsLikeMeModel.build(model_settings(instances, settings), seed=settings.seed)
    place_backbone(model, settings)
    if model.backbone.level == "tokens":
        raise PlmError(
            f"every layer of '{settings.backbone.name}' is trained, so there are no frozen layers to compute",
            remedy="train without --workers, or freeze layers with backbone.trainable_layers",
        )
    return instances, settings, model.backbone, Path(question["cache"])


def _mark_of(folder: Path, first: int, last: int) -> Path:
    return folder / f"rows-{first:09d}-{last:09d}.json"
