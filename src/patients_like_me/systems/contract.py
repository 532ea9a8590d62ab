"""The contract of a system: what one file declares, and what the room gives it.

A file of this room, or of another installed package, has a constant ``SYSTEM = System(...)``. Seeds, checkpoints,
resume, progress, predictions, the run folder, its model card, ``plm plan`` and ``plm predict`` come from the room.
A file named like its system is imported alone when it is asked for by name, so a neural system may import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from patients_like_me.errors import PlmError
from patients_like_me.files import write_json
from patients_like_me.model.ranks import Ranks
from patients_like_me.parts import failing_in_words, in_few_words, is_ours, say_left_out
from patients_like_me.runs.calibration import Calibration
from patients_like_me.runs.record import Capabilities, GraphSummary
from patients_like_me.runs.run import CHECKPOINT, EPOCHS, Run
from patients_like_me.runs.watching import Nobody, Watcher
from patients_like_me.settings import checked, merged, preset_values
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.tasks.instances import Instances
from patients_like_me.tasks.kinds import KINDS_OF_LABEL, LabelKind, Probabilities
from patients_like_me.tasks.task import Task

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore
    from patients_like_me.systems.additive_references import AdditiveReferences

Arrays = Mapping[str, npt.NDArray[Any]]


def below(arrays: Arrays, prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays whose names begin with a prefix, without it.

    >>> below({"a.x": np.ones(1), "b.y": np.ones(1)}, "a.")
    {'x': array([1.])}
    """
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


class SystemSettings(BaseModel):
    """What the settings of every system have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(0, ge=0, description="decides everything random; kept with the run where nothing is")


@dataclass(frozen=True)
class Account:
    """What there is to tell about a fit; the room writes it into the run's record and card."""

    chosen: dict[str, Any] = field(default_factory=dict)
    tried: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: What users of the run must not overlook.
    warnings: list[str] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    best_epoch: int | None = None
    seconds: float | None = None
    #: How many trained weights the predictions use; None where the system does not say.
    trained_weights: int | None = None
    prompts: dict[str, float] | None = None
    graph: GraphSummary | None = None


@dataclass(frozen=True)
class Fitted:
    """A fitted system. ``arrays`` and ``facts`` (plain JSON) are all that is kept of it, and enough to predict.

    ``state`` may hold objects made from them, such as a network; it is never written. ``evaluated`` are logits of
    ``problem.evaluated`` where the system predicts them in another way than newcomers; else the room predicts them.
    ``as_newcomers`` are logits of the same instances as newcomers get them, where those differ from ``evaluated``.
    """

    settings: Any
    arrays: Arrays = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    account: Account = Account()
    state: Any = None
    evaluated: Logits | None = None
    as_newcomers: Logits | None = None
    #: How the probabilities of new patients are recalibrated, where the run of a loaded system is.
    calibration: Calibration | None = None


@dataclass(frozen=True)
class RunContext:
    """What ``fit`` may use of the run it belongs to. Without a folder nothing is written: for tests and measuring."""

    settings: Any
    report: Callable[[str], None] = lambda _: None
    watcher: Watcher = field(default_factory=Nobody)
    folder: Path | None = None
    cache: Path | None = None
    #: Seconds between two checkpoints within an epoch.
    save_every: float = 600.0
    #: Writes ``run.json``; from then on the folder is known as a run. Call it when nothing can be refused any more.
    begin: Callable[[], None] = lambda: None
    #: The processes that fit together; only for a system that can (``several_processes``).
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def seed(self) -> int:
        """Decides everything random."""
        return int(getattr(self.settings, "seed", 0))

    @property
    def checkpoint(self) -> Path | None:
        """The file of the checkpoint; None where nothing is written."""
        return None if self.folder is None else self.folder / CHECKPOINT

    def save_checkpoint(self, arrays: Arrays, counters: Mapping[str, Any]) -> None:
        """Write the whole state of a training, atomically: arrays, and counters as plain JSON."""
        import torch

        from patients_like_me.training.checkpoints import write_checkpoint

        if self.checkpoint is None:
            return
        self.begin()
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in arrays.items()}
        write_checkpoint(self.checkpoint, tensors, counters)

    def load_checkpoint(self) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]] | None:
        """Return what :meth:`save_checkpoint` wrote; None where there is no checkpoint."""
        from patients_like_me.training.checkpoints import read_checkpoint

        if self.checkpoint is None or not self.checkpoint.is_file():
            return None
        tensors, counters = read_checkpoint(self.checkpoint)
        return {name: value.numpy() for name, value in tensors.items()}, counters

    def write_epochs(self, records: list[dict[str, Any]]) -> None:
        """Write losses and scores of the epochs so far."""
        if self.folder is not None:
            write_json(self.folder / EPOCHS, records)


@dataclass(frozen=True)
class ExplanationTable:
    """One table of an explanation; a cell is text or a number."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | float, ...], ...]
    sentence: str = ""


@dataclass(frozen=True)
class SelfExplanation:
    """How a system explains one prediction in its own way, as plain data."""

    title: str
    sentence: str
    tables: tuple[ExplanationTable, ...]


@dataclass(frozen=True)
class CostPlan:
    """What a training would cost: in words, and in seconds per epoch where it has epochs."""

    words: Mapping[str, str]
    seconds_per_epoch: float | None = None


@dataclass(frozen=True)
class Joining:
    """What a system finds about labelled instances that are to join its bank.

    ``arrays`` is all that it needs of them as references, besides their records; it is kept with them. ``logits`` is
    what it predicts for them with the bank as it is, without them, ``linked`` how many references each has there, and
    ``nearest`` how alike the nearest instance of another patient is (a cosine). Only ``arrays`` may use their labels.
    """

    arrays: Arrays
    logits: Logits
    linked: npt.NDArray[np.int64]
    nearest: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Growth:
    """How labelled instances join the bank of a fitted system without training.

    ``join`` describes them. ``load`` of the system reads ``run.additions`` and takes them into the bank. ``evaluated``
    gives the logits of ``problem.evaluated`` of a run with its bank, where they need not be predicted from the records
    again. ``save`` writes what belongs to a whole bank, such as its graph. ``unfit`` says why the bank of a run cannot
    grow, and nothing where it can.
    """

    join: Callable[[Fitted, Instances], Joining]
    evaluated: Callable[[Fitted, Run, Problem], Logits] | None = None
    save: Callable[[Fitted, Path], None] | None = None
    unfit: Callable[[Run], str] | None = None


@dataclass(frozen=True)
class System:
    """One system: what it is called, what it needs, what it can do, and its two functions.

    ``settings`` is a class of settings, or ``"module:Class"`` where importing it takes long. ``knowledge`` names tables
    of ``plm codes``. Every task of the ``kinds`` is served, unless ``tasks`` names some or ``suits`` tells which.
    ``preset_part`` names the part of a preset that holds settings of this system. ``save`` and ``load`` are for a
    system that keeps more than arrays and facts. ``optional_knowledge`` says for which of the tables the setting
    ``without`` may name a word that does without it; the title then says so. ``explain`` is for a system that explains
    itself: what a prediction of one instance (a row of the run's instances) comes from, for one output or for the
    whole prediction.
    """

    name: str
    description: str
    settings: type[BaseModel] | str
    fit: Callable[[Problem, RunContext], Fitted]
    predict: Callable[[Fitted, Instances], Logits]
    capabilities: Capabilities
    knowledge: tuple[str, ...] = ()
    optional_knowledge: Mapping[str, str] = field(default_factory=dict)
    #: Which of its tables some settings need, where those that name files of their own need fewer.
    knowledge_under: Callable[[Any], tuple[str, ...]] | None = None
    tasks: tuple[str, ...] = ()
    kinds: tuple[LabelKind, ...] = KINDS_OF_LABEL
    suits: Callable[[Task], bool] | None = None
    preset_part: str | None = None
    #: Settings of an experiment or a user that name no system are for this one.
    takes_unnamed_settings: bool = False
    #: For a system with a patient graph: the changes of its settings that train it without the graph; tau can be chosen
    #: on the embeddings of such a run.
    without_graph: Mapping[str, Any] | None = None
    #: ``fit`` shares its work with the processes of ``run.ranks``.
    several_processes: bool = False
    title: Callable[[Any], str] | None = None
    plan: Callable[[Problem, Any], CostPlan] | None = None
    #: For a training in stages: how many epochs each has at most, by its name, in their order.
    stages: Callable[[Any], Mapping[str, int]] | None = None
    #: For a system that asks the language model of its setting ``llm``: how often a run does, at most, by purpose.
    llm_calls: Callable[[Problem, Any], Mapping[str, int]] | None = None
    save: Callable[[Fitted, Path], None] | None = None
    load: Callable[[Run], Fitted] | None = None
    #: (settings, what validation chose) -> settings that leave nothing to choose: for fits on parts of the training.
    settled: Callable[[Any, Mapping[str, Any]], Any] | None = None
    #: The same for a later fit to all of the training, where one to a part leaves something out; else as ``settled``.
    settled_for_all: Callable[[Any, Mapping[str, Any]], Any] | None = None
    #: For a system with a bank that grows without training.
    growth: Growth | None = None
    #: For a system with references: the logits, and the number of references that each instance has in the bank.
    predict_linked: Callable[[Fitted, Instances], tuple[Logits, npt.NDArray[np.int64]]] | None = None
    #: For a system without a patient graph whose references have exact shares in its predictions.
    additive_references: Callable[[Fitted], AdditiveReferences] | None = None
    explain: Callable[[Fitted, Instances, int, int | None], SelfExplanation] | None = None
    #: What ``plm tune`` may try: names of settings, with dots for nested ones, and their values.
    choices: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if wrong := _wrong_declaration(self):
            raise PlmError(f"the system '{self.name}' declares {wrong}", remedy="correct it; see docs/extend.md")

    @cached_property
    def settings_class(self) -> type[BaseModel]:
        """The class of its settings."""
        if not isinstance(self.settings, str):
            return self.settings
        module, _, name = self.settings.partition(":")
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise PlmError(
                f"the settings '{self.settings}' of the system '{self.name}' cannot be found ({in_few_words(error)})",
                remedy="correct or uninstall it",
            ) from error
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            raise PlmError(
                f"the settings '{self.settings}' of the system '{self.name}' are not a pydantic model",
                remedy="let the class extend SystemSettings",
            )
        return found

    def settings_of(self, preset: str | None = None, /, **changes: Any) -> BaseModel:
        """Return its settings under a preset, with changes; nested settings are changed key by key."""
        values = preset_values(preset).get(self.preset_part, {}) if preset and self.preset_part else {}
        return checked(self.settings_class, **merged(values, changes))

    def epochs_of_stages(self, settings: Any) -> dict[str, int]:
        """Return how many epochs every stage of a training has at most; the only stage of most systems has no name."""
        if self.stages is None:
            return {"": int(getattr(settings, "epochs", 1))}
        with failing_in_words(self, self.stages, "naming its stages"):
            found: Any = self.stages(settings)
        given = found.values() if isinstance(found, Mapping) else ()
        if not given or not all(isinstance(number, int | np.integer) and number >= 0 for number in given):
            raise PlmError(
                f"the stages of the system '{self.name}' are not numbers of epochs by name", remedy="correct its stages"
            )
        return {str(name): int(number) for name, number in found.items()}

    def has_setting(self, name: str) -> bool:
        """Tell whether there is a setting of this name."""
        return name in self.settings_class.model_fields

    def title_of(self, settings: Any) -> str:
        """Return what a table calls a run with these settings."""
        if self.title is None:
            return self.name
        with failing_in_words(self, self.title, "naming a run"):
            found: Any = self.title(settings)
        if not isinstance(found, str) or not found.strip() or not found.isprintable():
            raise PlmError(
                f"the system '{self.name}' names a run with something else than one line of text",
                remedy="correct its title",
            )
        return found

    def serves(self, task: Task) -> bool:
        """Tell whether it can be fitted to a task."""
        return task.kind in self.kinds and (not self.tasks or task.name in self.tasks) and self._suits(task)

    def _suits(self, task: Task) -> bool:
        """Ask whether a task suits it; a function of another package that fails means no."""
        try:
            return self.suits is None or bool(self.suits(task))
        except Exception as error:
            if is_ours(self.suits):
                raise
            say_left_out(
                f"the system '{self.name}' cannot tell whether the task '{task.name}' suits it "
                f"({in_few_words(error)}); it is not offered for it"
            )
            return False

    def missing_knowledge(self, settings: Any = None, store: CodeStore | None = None) -> dict[str, str]:
        """Return the tables it needs that are not here, with the way to get each or to do without it."""
        needed = self.knowledge
        if self.knowledge_under is not None and settings is not None:
            needed = self.knowledge_under(settings)
        if not needed:
            return {}
        from patients_like_me.codes.status import status
        from patients_like_me.codes.store import CodeStore

        rows = {row.table: row for row in status(store or CodeStore.default())}
        left_out, missing = getattr(settings, "without", ()), {}
        for name in needed:
            row, word = rows.get(name), self.optional_knowledge.get(name)
            if word not in left_out and (row is None or not row.installed):
                missing[name] = "no such table in plm codes" if row is None else row.how_to_get
                if word is not None:
                    missing[name] += f" Or do without: --set 'without=[\"{word}\"]', and the run's name says so."
        return missing


def _wrong_declaration(system: System) -> str:
    """Say which field of a system is not what it must be; nothing where all are."""
    for name in ("knowledge", "tasks"):
        value: Any = getattr(system, name)
        if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
            return f"'{name}' that is not a tuple of names"
    kinds: Any = system.kinds
    if not isinstance(kinds, tuple) or not all(isinstance(each, LabelKind) for each in kinds):
        return "'kinds' that are not a tuple of kinds of label"
    capabilities: Any = system.capabilities
    if not isinstance(capabilities, Capabilities):
        return "'capabilities' that are not Capabilities"
    settings: Any = system.settings
    is_named = isinstance(settings, str) and all(settings.partition(":"))
    if not is_named and not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        return "'settings' that are neither a pydantic model nor 'module:Class'"
    description: Any = system.description
    if not isinstance(description, str) or not description.strip():
        return "no description"
    missing = [name for name in ("fit", "predict") if not callable(getattr(system, name))]
    return f"no function '{missing[0]}'" if missing else ""


@dataclass(frozen=True)
class Candidate:
    """Probabilities of validation under one choice of settings, and what was fitted with it."""

    choice: dict[str, Any]
    validation: Probabilities
    arrays: Arrays = field(default_factory=dict)


def choose(problem: Problem, candidates: Iterable[Candidate]) -> tuple[Candidate, Account]:
    """Return the candidate with the best validation score; of equal ones the first, which should be the simplest."""
    best, best_score, tried = None, -np.inf, []
    for candidate in candidates:
        value = problem.judge(candidate.validation)
        tried.append({**candidate.choice, "validation_score": value})
        if best is None or (value is not None and value > best_score):
            best, best_score = candidate, -np.inf if value is None else value
    assert best is not None, "a grid has at least one choice"
    notes = []
    if len(tried) > 1 and best_score == -np.inf:
        notes.append("validation has one class only, so no score can choose: the first of the settings is used")
    return best, Account(chosen=best.choice, tried=tried, notes=notes)
