"""The page of a system that explains itself: its sentence and its tables, in the look of the other pages."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.explanation.pseudonyms import about_history
from patients_like_me.explanation.scene import chosen_instance, evaluated_split
from patients_like_me.explanation.targets import output_of_label
from patients_like_me.parts import failing_in_words
from patients_like_me.plain_text import percent_of
from patients_like_me.report.page_templates import page_environment
from patients_like_me.report.palette import DARK, LIGHT, css_variables
from patients_like_me.runs.run import Run
from patients_like_me.systems.contract import SelfExplanation
from patients_like_me.systems.registry import find_system


@dataclass(frozen=True)
class SelfPage:
    """One prediction of one run, explained by the system itself."""

    system: str
    task: str
    split: str
    example: int
    who: str
    found: SelfExplanation

    def written(self, suffix: str) -> str:
        """Return the page in the form of a file's ending: .html, .md or .json."""
        if suffix == ".json":
            return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        environment = page_environment(markdown=suffix == ".md")
        environment.filters["cell"] = written_cell
        environment.tests["figure"] = lambda value: not isinstance(value, str)
        template = environment.get_template(f"self_page{'.md' if suffix == '.md' else '.html'}.jinja")
        return template.render(p=self, light=css_variables(LIGHT), dark=css_variables(DARK))


def self_page_of(
    run: Run, split: str = "test", *, instance: str | None = None, example: int | None = None, drug: str | None = None
) -> SelfPage:
    """Let the system of a run explain one of its predictions: for one drug, or the whole prediction."""
    from patients_like_me.systems.keeping import load_fitted
    from patients_like_me.systems.problem import problem_of

    system = find_system(run.identity.system)
    assert system.explain is not None, "the caller asks for a system that explains itself"
    evaluated = evaluated_split(split)
    row = chosen_instance(run.instances, evaluated, instance=instance, example=example)
    output = None if drug is None else output_of_label(drug, run.output_labels)
    # As in a training, no label of validation and test can be read.
    instances, fitted = problem_of(run.instances).instances, load_fitted(system, run)
    with failing_in_words(system, system.explain, "explaining"):
        found: Any = system.explain(fitted, instances, row, output)
    if not isinstance(found, SelfExplanation):
        raise PlmError(
            f"explain of the system '{system.name}' returned a {type(found).__name__}, not a SelfExplanation",
            remedy="correct or uninstall it",
        )
    return SelfPage(
        system=run.record.system.title,
        task=run.task.name,
        split=evaluated,
        example=1 + int(np.searchsorted(run.instances.rows_of(evaluated), row)),
        who=about_history(run.instances, row),
        found=found,
    )


def explains_itself(run: Run) -> bool:
    """Tell whether the predictions of a run are explained by its system, not by references."""
    return not run.capabilities.references and find_system(run.identity.system).explain is not None


def written_cell(value: str | float, column: str = "") -> str:
    """Write a cell: text as it is, a probability as on all pages, another number with three significant digits.

    >>> written_cell("A02B"), written_cell(-0.12345), written_cell(12.0), written_cell(0)
    ('A02B', '−0.123', '12', '0')
    >>> written_cell(0.0971, "probability")
    '9.7 %'
    """
    if column == "probability" and not isinstance(value, str):
        return percent_of(value)
    return value if isinstance(value, str) else f"{value:.3g}".replace("-", "−")
