"""``run.json``: the typed record of a run, from the moment it starts to its results."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from patients_like_me import __version__
from patients_like_me.errors import PlmError
from patients_like_me.files import is_sealed, read_json, sealed, write_json
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.calibration import Calibration
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.workers import number_of_threads

FORMAT: Final = 3
RECORD: Final = "run.json"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Capabilities(_Part):
    """What a system can do; rooms ask for these and never for a system's name.

    >>> Capabilities(newcomers=True).epochs
    False
    """

    random: bool = Field(False, description="its result depends on the seed")
    epochs: bool = Field(False, description="it is trained in epochs, with checkpoints, progress and early stopping")
    references: bool = Field(False, description="it has a bank of references that can be shown for a prediction")
    newcomers: bool = Field(False, description="it predicts patients who were in no cohort")


class Identity(_Part):
    """Everything that decides a run's result."""

    cohort: str
    task: str
    task_settings: dict[str, Any]
    system: str
    settings: dict[str, Any]
    version: str = __version__

    @property
    def seed(self) -> int:
        """The seed of the run; 0 for a system without one."""
        return int(self.settings.get("seed", 0))

    def without(self, *names: str) -> dict[str, Any]:
        """Return the identity as plain data without some of its parts."""
        return self.model_dump(exclude=set(names))


class SystemRecord(_Part):
    """What was trained, in words, and what it can do."""

    title: str = Field(description="what a table calls the run")
    description: str
    capabilities: Capabilities


class SplitCounts(_Part):
    """The size of one split's graph."""

    nodes: int
    edges: int
    linked: int | None = Field(None, description="instances of the split that have at least one reference")


class GraphSummary(_Part):
    """The patient graph that the predictions use."""

    edges: int
    splits: dict[str, SplitCounts]


class Results(_Part):
    """What a finished run knows about itself."""

    scores: dict[str, dict[str, float | None]] = Field(description="the task's metrics by split")
    scores_as_newcomers: dict[str, dict[str, float | None]] | None = Field(
        None,
        description=(
            "the same of predictions through the bank, as plm predict makes them; None where those are the scores"
        ),
    )
    seconds: float
    peak_gib: float
    label_vocabulary: tuple[str, ...]
    task: dict[str, Any] = Field(description="the task as data: enough to predict with it")
    instances: dict[str, int] = Field(description="number of instances by split")
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = Field((), description="what users of the run must not overlook")
    chosen: dict[str, Any] = Field(default_factory=dict, description="what validation chose, by setting")
    tried: tuple[dict[str, Any], ...] = Field((), description="every choice with its validation score")
    epochs: int | None = None
    best_epoch: int | None = None
    trained_weights: int | None = Field(None, description="trained weights that predictions use, where it is known")
    prompts: dict[str, float] | None = None
    graph: GraphSummary | None = Field(None, description="None where predictions use no patient graph")


class RunRecord(_Part):
    """The content of ``run.json``."""

    format: Literal[3] = FORMAT
    status: Literal["running", "finished"] = "running"
    identity: Identity
    system: SystemRecord
    cohort_folder: str
    environment: dict[str, str | int | None]
    results: Results | None = None
    calibration: Calibration | None = Field(None, description="the map of the predictions; None: as the system says")
    calibration_as_newcomers: Calibration | None = Field(
        None, description="the map for new patients, where they are predicted in another way than the evaluated ones"
    )
    digests: dict[str, str] = Field(default_factory=dict, description="a digest of every file of a finished run")

    @model_validator(mode="after")
    def _results_belong_to_a_finished_run(self) -> RunRecord:
        if (self.status == "finished") != (self.results is not None):
            raise ValueError("a run has results if and only if it is finished")
        return self

    def finished(self, results: Results, digests: Mapping[str, str] = MappingProxyType({})) -> RunRecord:
        """Return the record of the same run with its results and the digests of its files."""
        return self.model_copy(update={"status": "finished", "results": results, "digests": dict(digests)})

    def write(self, folder: Path) -> None:
        """Write ``run.json``, atomically, with a digest of itself."""
        write_json(folder / RECORD, sealed(self.model_dump(mode="json")))


def read_record(folder: Path) -> RunRecord:
    """Read ``run.json``; another format and damaged content are refused with a sentence."""
    if not (folder / RECORD).is_file():
        raise PlmError(f"'{folder}' is not a run folder (no {RECORD} in it)", remedy="make one with: plm train")
    content = read_json(folder / RECORD, what="run record")
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT and isinstance(found, int):
        raise PlmError(
            f"the run '{folder}' has format {found}, this version reads {FORMAT}", remedy="train the run again"
        )
    if not is_sealed(content):
        # A record without its digest may have lost it together with anything else.
        raise PlmError(
            f"the run record '{folder / RECORD}' is damaged: its content is not what was written",
            remedy="restore the file, or train the run again in another folder",
        )
    content = {name: value for name, value in content.items() if name != "seal"}
    try:
        return RunRecord.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "content"
        raise PlmError(
            f"the run record '{folder / RECORD}' is damaged ({place}: {first['msg'][0].lower()}{first['msg'][1:]})",
            remedy="restore the file, or train the run again in another folder",
        ) from None


def identity_of(
    cohort: Cohort, task_name: str, task_settings: TaskSettings, system: str, settings: BaseModel
) -> Identity:
    """Return everything that decides the result of a run."""
    return Identity(
        cohort=cohort.hash,
        task=task_name,
        task_settings=task_settings.model_dump(mode="json"),
        system=system,
        settings=settings.model_dump(mode="json"),
    )


def environment() -> dict[str, str | int | None]:
    """Describe the machine and the versions, for the record."""
    torch = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": number_of_threads() if torch is None else int(torch.get_num_threads()),
        **{name: version(name) for name in ("torch", "transformers", "peft", "scikit-learn", "polars", "numpy")},
    }
