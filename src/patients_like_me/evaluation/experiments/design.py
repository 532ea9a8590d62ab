"""What an experiment is: a question, a grid of settings, and how its runs become tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from patients_like_me.settings import preset_values
from patients_like_me.systems.registry import DEFAULT

if TYPE_CHECKING:
    from patients_like_me.evaluation.experiments.result_table import ResultTable
    from patients_like_me.evaluation.experiments.results import ExperimentResults

READMISSION: Final = "readmission"
DRUGS: Final = "drug_recommendation"
#: The tasks of the paper's tables, in its order; ``--task`` takes any registered one instead.
PAPER_TASKS: Final = (READMISSION, "length_of_stay", DRUGS)
#: The preset and the number of seeds of the paper.
PAPER: Final = "paper"
PAPER_SEEDS: Final = 10

#: The quick form of every experiment: short prompts and few epochs, all of them without a warm-up.
QUICK_SETTINGS: Final[Mapping[str, Any]] = {"max_tokens": 96, "epochs": 2, "warm_epochs": 0}
#: The paper's template alone has up to 207 tokens.
QUICK_TOKENS_OF_PAPER: Final = 256


def quick_settings(preset: str) -> dict[str, Any]:
    """Return the settings of an experiment's quick form, with prompts as short as the preset's template allows.

    >>> [quick_settings(preset)["max_tokens"] for preset in ("quick", "paper")]
    [96, 256]
    """
    if preset_values(preset)["task"].get("prompt", "paper") == "paper":
        return {**QUICK_SETTINGS, "max_tokens": QUICK_TOKENS_OF_PAPER}
    return dict(QUICK_SETTINGS)


@dataclass(frozen=True)
class Variant:
    """One row of a grid: its name in tables, the settings it changes, and the system it trains.

    ``seeds`` is the number of seeds of this row where the user gives none; None: the experiment's. ``preset`` names the
    preset of its settings where that is another than the experiment's; the task's settings are those of all rows.

    >>> Variant("VEM", {"strategy": "vem"}).system
    'patients_like_me'
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    system: str = DEFAULT
    seeds: int | None = None
    preset: str | None = None


@dataclass(frozen=True)
class FigureFile:
    """A figure: the ending of its file's name, and the function that draws it into a folder under a name."""

    ending: str
    draw: Callable[[Path, str], object]


@dataclass(frozen=True)
class Findings:
    """What an experiment found."""

    tables: tuple[ResultTable, ...]
    figures: tuple[FigureFile, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment. What it does not name comes from the preset."""

    name: str
    question: str
    #: Which table or figure of the paper it corresponds to, and on what the paper made it; empty: none.
    paper: str
    summarize: Callable[[ExperimentResults], Findings]
    tasks: tuple[str, ...]
    grid: tuple[Variant, ...] = ()
    #: The rows of the quick form, where it has fewer.
    quick_grid: tuple[Variant, ...] = ()
    seeds: int = 3
    quick_seeds: int = 2
    #: Settings of all its runs; a user's own changes win over them, the grid's over both.
    base: Mapping[str, Any] = field(default_factory=dict)
    #: The paper's backbones, taken with the preset ``paper``, and those of the other presets (none: the preset's own).
    paper_backbones: tuple[str, ...] = ("bioclinical-modernbert",)
    backbones: tuple[str, ...] = ()
    #: Make the rows of a word of ``--values``.
    variants_of: Callable[[str], tuple[Variant, ...]] | None = None
    #: Measure time and memory: one run at a time, and never a run that was trained next to others.
    alone: bool = False
    #: Train all epochs, so that every row takes the same amount of work.
    all_epochs: bool = False
    #: Given several cohorts, run on each; otherwise ``plm experiment all`` takes the last one only.
    every_cohort: bool = False
    #: The other systems can be rows as well (``--systems``).
    takes_systems: bool = False
    #: The system that it fits itself, where its rows are not runs.
    fits: str | None = None
    #: Among the experiments of ``plm experiment all``.
    in_all: bool = True
