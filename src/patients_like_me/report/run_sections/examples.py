"""Ten example patients, spread over what is predicted, under the numbers that ``plm explain --example`` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.explanation.explain import explainer_of
from patients_like_me.explanation.pseudonyms import about_history
from patients_like_me.plain_text import percent_of, printable
from patients_like_me.report.patient_page import direction_in_words, signed
from patients_like_me.report.run_report import Block, Cell, Link, Section, Table, Text
from patients_like_me.report.run_sections.material import Material
from patients_like_me.report.self_page import explains_itself
from patients_like_me.runs.run import load_run

EXAMPLES: Final = 10
SHOWN_REFERENCES: Final = 3
#: Where ``plm explain`` writes its pages, seen from the run folder.
PAGES: Final = "explanations"


def spread_examples(
    ordered_by: npt.NDArray[np.float64], patients: npt.NDArray[Any], number: int = EXAMPLES
) -> list[int]:
    """Return places of instances of different patients, from the lowest to the highest risk.

    Instances are ordered by risk and cut into equal parts; of every part the instance nearest to its middle is taken
    whose patient was not taken yet.

    >>> spread_examples(np.array([0.1, 0.2, 0.3, 0.9]), np.array(["a", "b", "b", "c"]), number=2)
    [1, 3]
    """
    order = np.argsort(ordered_by, kind="stable")
    taken: list[int] = []
    for part in range(min(number, len(np.unique(patients)))):
        middle = (part + 0.5) * len(order) / number - 0.5
        seen = {patients[place] for place in taken}
        free = [place for place in range(len(order)) if patients[order[place]] not in seen]
        if free:
            taken.append(int(order[min(free, key=lambda place: (abs(place - middle), -place))]))
    return sorted(taken, key=lambda place: (ordered_by[place], place))


def examples_of_run(run: Path, number: int = EXAMPLES) -> list[int]:
    """Return the numbers (from 1) of a run's examples within its test split."""
    opened = load_run(run)
    frame = opened.predictions().filter(pl.col("split") == "test")
    probabilities = np.array(frame["probabilities"].to_list(), dtype=np.float64)
    found = spread_examples(opened.task.kind.risks(probabilities), frame["subject_id"].to_numpy(), number)
    return [place + 1 for place in found]


def examples_section(material: Material) -> Section:
    """Return ten patients: prediction, support, references and what really happened."""
    numbers = examples_of_run(material.run.folder)
    uses_graph = material.scene is not None and not material.too_large
    rows: list[tuple[Cell, ...]] = []
    folded: list[Block] = []
    for number in numbers:
        row, details = (_with_references if uses_graph else _alone)(material, number)
        rows.append(row)
        folded += details
    extra = ("support", "references", "outcomes of the references") if uses_graph else ()
    columns = ("example", "who", "prediction", *extra, "what happened")
    task = material.run.task
    risk = task.kind.risk_in_words(task.words.items, task.name.replace("_", " "))
    blocks: list[Block] = [
        Text(
            f"Test instances are ordered by the {risk} and cut into {EXAMPLES} equal parts; the instance nearest to "
            "the middle of each part is shown, never two of the same patient. They were not chosen by how well they "
            "are predicted."
        ),
        Table(f"From the lowest to the highest {risk}.", columns, tuple(rows), numbers=frozenset({"references"})),
        *folded,
    ]
    if not material.run.capabilities.references and not explains_itself(material.run):
        blocks.append(Text("A system without references has no patient pages.", "note"))
    elif not material.too_large and not any(isinstance(row[0], Link) for row in rows):
        blocks.append(Text("A page about one of them: plm explain RUN --example NUMBER.", "note"))
    return Section("examples", "Example patients", tuple(blocks))


def _with_references(material: Material, number: int) -> tuple[tuple[Cell, ...], list[Block]]:
    scene, decision = material.scene, material.decision
    assert scene is not None
    row = int(scene.own_rows[number - 1])
    explainer = explainer_of(scene, row, decision)
    label: Any = material.run.instances.labels[row]
    support = explainer.support
    alone = ", from the patient's own record alone" if support.is_missing else ""
    cells: tuple[Cell, ...] = (
        _name(material, number),
        about_history(material.run.instances, row),
        _answer(material, explainer.probabilities) + alone,
        support.word,
        str(support.references),
        support.outcomes or ("–" if support.is_missing else "not known to the model"),
        decision.outcome_in_words(label, explainer.decided),
    )
    if support.is_missing:
        return cells, []
    rows = []
    for name, reference in list(explainer.named.items())[:SHOWN_REFERENCES]:
        item = explainer.explained(name, reference)
        known = item.outcome or "not known"
        rows.append((name, direction_in_words(item), known, str(item.weight), signed(item.importance)))
    return cells, [
        Table(
            f"The {len(rows)} references with the most influence, of {len(explainer.named)} shown on the patient page.",
            ("reference", "what it does to the prediction", "what became of it", "shared diagnoses", "importance"),
            tuple(rows),
            numbers=frozenset({"importance", "shared diagnoses"}),
            fold=f"References of example {number}",
        )
    ]


def _alone(material: Material, number: int) -> tuple[tuple[Cell, ...], list[Block]]:
    """Return an example of a run without a graph, from its predictions alone."""
    row = int(material.run.rows_of("test")[number - 1])
    predictions = material.evaluation.predictions
    place = predictions.instance_ids.index(material.run.instances.instance_ids[row])
    probabilities = np.atleast_1d(predictions.probabilities[place])
    label: Any = material.run.instances.labels[row]
    decided = material.decision.key(probabilities)
    cells = (
        _name(material, number),
        about_history(material.run.instances, row),
        _answer(material, probabilities),
        material.decision.outcome_in_words(label, decided),
    )
    return cells, []


def _name(material: Material, number: int) -> Cell:
    """Return the example's number, as a link where its page is next to the report."""
    page = f"{PAGES}/test-{number}.html"
    if material.pages is not None and (material.pages / page).is_file():
        return Link(f"{number} (page)", page)
    return str(number)


def _answer(material: Material, probabilities: npt.NDArray[np.float64]) -> str:
    decision = material.decision
    probability = decision.probability(probabilities)
    answer = printable(decision.in_words(probabilities))
    if probability is None:
        return answer
    event = printable(decision.event(decision.key(probabilities)))
    return (
        f"{percent_of(probability)} {event}: {answer}"
        if decision.kind.is_event
        else f"{answer} ({percent_of(probability)})"
    )
