"""Who has references, and who has none: coverage over all instances and by subgroup."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from patients_like_me.evaluation.strata import Dimension
from patients_like_me.plain_text import FEW, printable, shown_count
from patients_like_me.report.run_report import Section, Table, Text, absent
from patients_like_me.report.run_sections.material import Material
from patients_like_me.report.small_counts import HIDDEN, hidden_shares, shown_share

Counts = npt.NDArray[np.int64]
_KEY, _TITLE = "coverage", "Coverage of references"


def coverage_section(material: Material) -> Section:
    """Return the share of instances without a reference and the median number of references, by stratum."""
    use, scene = material.use, material.scene
    if use is None or scene is None:
        return absent(_KEY, _TITLE, material.no_graph)
    neighbors = neighbors_of_predictions(material)
    evaluation = material.evaluation
    share = shown_share(material.group(neighbors == 0), material.group(neighbors > 0))
    medians = _medians(neighbors, np.ones(len(neighbors), dtype=bool), hide=share == HIDDEN)
    rows: list[tuple[str, ...]] = [("all", shown_count(len(neighbors)), share, *medians)]
    for dimension in evaluation.dimensions:
        if dimension.name != "references" and dimension.stratum_of is not None:
            rows += _rows(material, dimension, neighbors)
    return Section(
        _KEY,
        _TITLE,
        (
            Text(
                f"References are there for test instances {scene.linked_in_words}. Without one the prediction rests on "
                "the patient's own record, and the patient page says “no comparable patients”. A group with fewer "
                "references gets less of what this method offers."
            ),
            *(Text(f"{printable(each)}.", "warning") for each in material.run.results.warnings if "hub " not in each),
            Table(
                f"References by stratum. Strata, and shares behind which there are {FEW} patients or "
                "instances, are hidden, and with them the next smallest.",
                ("stratum", "instances", "without a reference", "median references", "median of those with some"),
                tuple(rows),
                numbers=frozenset(
                    {"instances", "without a reference", "median references", "median of those with some"}
                ),
            ),
        ),
    )


def neighbors_of_predictions(material: Material) -> Counts:
    """Return the number of neighbours of every predicted instance, in the order of the evaluation."""
    assert material.scene is not None
    assert material.use is not None
    own = len(material.use.neighbors)
    ids = material.scene.graph.instance_ids[-own:]
    count_of = dict(zip(ids, material.use.neighbors.tolist(), strict=True))
    return np.array([count_of[instance] for instance in material.evaluation.predictions.instance_ids], dtype=np.int64)


def _rows(material: Material, dimension: Dimension, neighbors: Counts) -> list[tuple[str, ...]]:
    assert dimension.stratum_of is not None
    members = {stratum: dimension.stratum_of == stratum for stratum in dimension.strata}
    hidden = {
        group.stratum
        for group in material.evaluation.subgroups
        if group.dimension == dimension.name and group.is_hidden
    }
    cells = {
        stratum: (material.group(chosen & (neighbors == 0)), material.group(chosen & (neighbors > 0)))
        for stratum, chosen in members.items()
    }
    without_share = hidden_shares(cells, hidden)
    rows: list[tuple[str, ...]] = []
    for stratum, chosen in members.items():
        if stratum in hidden:
            continue
        share = HIDDEN if stratum in without_share else shown_share(*cells[stratum])
        medians = _medians(neighbors, chosen, hide=share == HIDDEN)
        rows.append((f"{dimension.title}: {printable(stratum)}", f"{int(chosen.sum()):,}", share, *medians))
    if hidden:
        rows.append((f"{dimension.title}: others", *[HIDDEN] * 4))
    return rows


def _medians(neighbors: Counts, chosen: npt.NDArray[np.bool_], *, hide: bool) -> tuple[str, str]:
    """Return the median of all and of those with some; where the share is hidden a median could tell it."""
    if hide:
        return HIDDEN, HIDDEN
    some = neighbors[chosen & (neighbors > 0)]
    return f"{np.median(neighbors[chosen]):g}", f"{np.median(some):g}" if len(some) else "–"
