"""Does tau fit the records: coverage, the suggestion, and what is said."""

from __future__ import annotations

import numpy as np
import pytest
from graph.plain_product import overlaps, random_sets

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.coverage import (
    WANTED_COVERAGE,
    coverage_notes,
    coverage_of,
    hub_notes,
    strongest_overlaps,
    suggested_tau,
)
from patients_like_me.graph.node_sets import rounds_of
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets


@pytest.mark.parametrize("references", ["cohort", "bank"])
def test_the_strongest_overlaps_tell_the_coverage_at_every_tau(references: str) -> None:
    sets = random_sets(3, 200, mean_size=5, splits=True)
    settings = GraphSettings(tau=8, references=references)  # type: ignore[arg-type]
    found = strongest_overlaps(sets, settings)
    product, splits = overlaps(sets), np.asarray(sets.splits)
    others = np.tile(splits == ("train" if references == "bank" else "validation"), (len(sets), 1))
    if references == "cohort":
        rounds = rounds_of(sets)
        others &= rounds[:, None] == rounds[None, :]
    np.testing.assert_array_equal(found, (product * others)[splits == "validation"].max(axis=1))
    for tau in (1, 2, 4, 8):
        graph = build_graph(sets, settings.model_copy(update={"tau": tau}))
        assert coverage_of(graph).share("validation") == pytest.approx((found >= tau).mean())


def test_the_suggested_tau_is_the_largest_that_covers_enough() -> None:
    sets = random_sets(4, 300, mean_size=4, splits=True)
    found = strongest_overlaps(sets, GraphSettings(references="bank"))
    tau = suggested_tau(found)
    assert tau is not None
    assert (found >= tau).mean() >= WANTED_COVERAGE > (found >= tau + 1).mean()


def test_a_low_coverage_is_said_with_what_would_help() -> None:
    sets = random_sets(4, 300, mean_size=4, splits=True)
    settings = GraphSettings(references="bank")
    tau = suggested_tau(strongest_overlaps(sets, settings))
    notes = coverage_notes(build_graph(sets, settings))
    assert notes[0].startswith("only ")
    assert all("predicted from their own record alone" in note for note in notes[:-1])
    assert f"graph.tau={tau} would give" in notes[-1]
    assert coverage_notes(build_graph(sets, settings.model_copy(update={"tau": tau})))[:1] == []
    assert "no tau gives" in coverage_notes(build_graph(random_sets(4, 60, codes=1200, mean_size=1, splits=True)))[-1]


def test_few_patients_who_supply_half_of_all_references_are_a_warning() -> None:
    training = [["2", "50", "9"]] + [["7"]] * 150
    evaluated = [["2", "50"], ["50", "9"], ["2", "9"]] * 4
    sets = DiagnosisSets.from_lists(
        training + evaluated,
        patients=list(range(len(training) + len(evaluated))),
        splits=["train"] * len(training) + ["test"] * len(evaluated),
    )
    graph = build_graph(sets, GraphSettings(tau=2, references="bank"))
    assert hub_notes(graph)[0].startswith("hub patients: fewer than 11 of the 151 patients")
    # Of many without any reference, a few from few patients make no hub: the graph is almost empty.
    lonely = DiagnosisSets.from_lists(
        training + evaluated + [["8"]] * 80,
        patients=list(range(len(training) + len(evaluated) + 80)),
        splits=["train"] * len(training) + ["test"] * (len(evaluated) + 80),
    )
    assert hub_notes(build_graph(lonely, GraphSettings(tau=2, references="bank"))) == []
    spread = DiagnosisSets.from_lists(
        [["2", str(number)] for number in range(100, 220)] + [["2", str(number)] for number in range(100, 220)],
        patients=list(range(240)),
        splits=["train"] * 120 + ["test"] * 120,
    )
    assert hub_notes(build_graph(spread, GraphSettings(tau=2, references="bank"))) == []
