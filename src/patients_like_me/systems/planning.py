"""``plm plan``: what a training would cost, for every system."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.model.llm.settings import LLMSettings
from patients_like_me.parts import failing_in_words
from patients_like_me.plain_text import duration_in_words
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.watching import Watched
from patients_like_me.systems.contract import CostPlan, RunContext
from patients_like_me.systems.problem import problem_of
from patients_like_me.systems.registry import find_system, require_service
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.tasks.task import SPLITS, TaskSettings

_MEASURED_BATCHES = 5
#: A prompt of usual length that holds nobody's record.
_EXAMPLE = "Summarise these statements.\n" + "\n".join(f"- statement number {number}" for number in range(60))


def plan_training(
    cohort_folder: Path, task_name: str, system: str, settings: BaseModel, task_settings: TaskSettings
) -> CostPlan:
    """Estimate the cost of a training; what only the system itself can say comes from its own ``plan``."""
    chosen = find_system(system)
    cohort = Cohort.load(cohort_folder)
    task = find_task(task_name, cohort)
    require_service(chosen, task, settings)
    problem = problem_of(build_instances(cohort, task, task_settings))
    if chosen.plan is not None:
        with failing_in_words(chosen, chosen.plan, "planning"):
            found: Any = chosen.plan(problem, settings)
        if not isinstance(found, CostPlan):
            raise PlmError(
                f"plan of the system '{system}' returned a {type(found).__name__}, not a CostPlan",
                remedy="correct or uninstall it",
            )
        return found
    words = {
        "instances": ", ".join(f"{len(problem.instances.rows_of(split)):,} {split}" for split in SPLITS),
        "outputs": f"{problem.outputs:,} per instance",
    }
    if chosen.llm_calls is not None and (calls := chosen.llm_calls(problem, settings)):
        words |= _calls_in_words(calls, settings)
        # Measuring must ask nobody: what is read is about as long with templates in place of answers.
        settings = settings.model_copy(update={"llm": LLMSettings()})
    if not chosen.capabilities.epochs:
        words["time"] = "not known before: the system has no epochs to measure"
        return CostPlan(words)
    meter = _Meter()
    with failing_in_words(chosen, chosen.fit, "being measured"), suppress(_MeasuredEnoughError):
        chosen.fit(problem, RunContext(settings, watcher=meter))
    (first, epochs), *later = chosen.epochs_of_stages(settings).items()
    of = f" of the stage '{first}'" if first else ""
    words[f"batches per epoch{of}"] = f"{meter.batches:,}"
    words[f"per epoch{of}"] = duration_in_words(meter.seconds_per_epoch)
    words[f"at most {epochs} epochs{of}"] = duration_in_words(epochs * meter.seconds_per_epoch)
    if later:
        # A later stage needs what the first one ends with.
        words["not measured"] = ", ".join(f"at most {number} epochs of the stage '{name}'" for name, number in later)
    return CostPlan(words, meter.seconds_per_epoch)


def _calls_in_words(calls: Mapping[str, int], settings: Any) -> dict[str, str]:
    """Say how often the language model is asked at most, and how long that takes, from one measured answer."""
    llm: LLMSettings = settings.llm
    total = sum(calls.values())
    words = {f"calls: {purpose}": f"at most {number:,}" for purpose, number in calls.items()}
    client = LLMClient.of(llm)
    seconds = client.measured_seconds(_EXAMPLE)
    words["calls in all"] = f"at most {total:,} of {llm.name}; answers that are kept already need none"
    words["time of calls"] = f"at most {duration_in_words(total * seconds)} ({seconds:.2g} s for one measured answer)"
    return words


class _MeasuredEnoughError(Exception):
    """Ends a fit that only served to measure a few batches."""


class _Meter:
    """Measures the first batches of a training; the first one warms up and does not count."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.batches = 0

    @property
    def seconds_per_epoch(self) -> float:
        """The seconds of one epoch, from the batches that were measured."""
        measured = len(self.times) - 1
        return self.batches * (self.times[-1] - self.times[0]) / measured if measured > 0 else 0.0

    def batch_done(self, state: Watched, batches: int) -> None:
        """Note the time of a batch."""
        del state
        self.times.append(time.perf_counter())
        self.batches = batches
        if len(self.times) > _MEASURED_BATCHES:
            raise _MeasuredEnoughError

    def epoch_done(self, record: dict[str, Any]) -> None:
        """Stop after one epoch of few batches."""
        raise _MeasuredEnoughError
