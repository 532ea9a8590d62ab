"""Strata: who belongs where, and small ones hidden so that they cannot be worked out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from evaluation.test_forms import random_predictions
from hypothesis import given
from hypothesis import strategies as st

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.predictions import Predictions, read_predictions
from patients_like_me.evaluation.strata import AGES, Dimension, banded, dimensions_of, named
from patients_like_me.evaluation.subgroups import hidden_strata, metrics_by_stratum, subgroups_of
from patients_like_me.evaluation.thresholds import FIXED
from patients_like_me.plain_text import SMALLEST_SHOWN
from patients_like_me.runs.run import load_run
from patients_like_me.tasks.metrics import METRICS

MakeRun = Callable[..., Path]


def members(*sizes: int) -> dict[str, tuple[int, frozenset[int]]]:
    """Make strata with these numbers of patients with one instance each."""
    starts = np.cumsum([0, *sizes])
    return {
        f"s{at}": (size, frozenset(range(int(start), int(start) + size)))
        for at, (size, start) in enumerate(zip(sizes, starts, strict=False))
    }


@pytest.mark.parametrize(
    ("sizes", "hidden"),
    [
        ((50, 40), set()),
        ((11, 40), set()),
        ((10, 40, 60), {"s0", "s1"}),
        ((10, 40), {"s0", "s1"}),
        ((6, 7, 90), {"s0", "s1"}),
        ((3, 4, 20, 90), {"s0", "s1", "s2"}),
        ((5,), {"s0"}),
    ],
)
def test_small_strata_are_hidden_with_the_next_smallest(sizes: tuple[int, ...], hidden: set[str]) -> None:
    assert hidden_strata(members(*sizes)) == hidden


@given(st.lists(st.integers(1, 60), min_size=1, max_size=7))
def test_hidden_strata_cannot_be_worked_out_from_the_total(sizes: list[int]) -> None:
    strata = members(*sizes)
    hidden = hidden_strata(strata)
    assert {name for name, (number, _) in strata.items() if number < SMALLEST_SHOWN} <= hidden
    rest = sum(strata[name][0] for name in hidden)
    if hidden and len(hidden) < len(strata):
        assert len(hidden) >= 2
        assert rest >= SMALLEST_SHOWN


def test_few_patients_with_many_instances_are_hidden() -> None:
    strata = {
        "many": (100, frozenset(range(5))),
        "other": (100, frozenset(range(5, 90))),
        "third": (300, frozenset(range(200))),
    }
    assert hidden_strata(strata) == {"many", "other"}


def test_bands_and_names() -> None:
    assert banded(np.array([0.0, 44.9, 45.0, 64.0, 65.0, 200.0]), AGES).tolist() == [
        "under 18",
        "18 to 44",
        "45 to 64",
        "45 to 64",
        "65 to 79",
        "80 or more",
    ]
    assert named(["ASIAN - CHINESE", "ASIAN", ""]).tolist() == ["ASIAN", "ASIAN", "not recorded"]


def test_metrics_of_a_stratum_equal_those_of_its_instances() -> None:
    made = random_predictions("binary", 5, rows=300, patients=120)
    strata = np.array(["old", "young", "middle"])[np.arange(300) % 3]
    groups = subgroups_of(
        made, Dimension("age", "Age", ("old", "young", "middle"), strata), ["auroc"], [FIXED], replicates=50
    )
    for group in groups:
        rows = strata == group.stratum
        assert (group.instances, group.patients) == (int(rows.sum()), len(set(made.patients[rows])))
        assert group.measures[0].value == pytest.approx(METRICS["auroc"](made.labels[rows], made.probabilities[rows]))
        assert group.measures[0].interval is not None


def test_every_instance_of_a_run_has_its_stratum(make_run: MakeRun) -> None:
    folder = make_run()
    opened, chosen = load_run(folder), read_predictions(folder).of_split("test")
    found = {dimension.name: dimension for dimension in dimensions_of(opened, chosen, "test")}
    assert list(found) == ["visits", "age", "sex", "ethnicity", "insurance", "references"]
    for dimension in found.values():
        assert dimension.stratum_of is not None
        assert len(dimension.stratum_of) == len(chosen)
        assert set(dimension.stratum_of) == set(dimension.strata)
    # The visit's id of these tables ends in its number from 0.
    visits = [int(name.split("v")[1]) + 1 for name in chosen.instance_ids]
    expected = [str(number) if number < 4 else "4 or more" for number in visits]
    assert found["visits"].stratum_of.tolist() == expected  # type: ignore[union-attr]
    assert "WHITE - RUSSIAN" not in found["ethnicity"].strata
    graph = opened.graph_of("test")
    degree_of = dict(zip(graph.instance_ids, graph.degrees.tolist(), strict=True))
    lonely = [degree_of[name] == 0 for name in chosen.instance_ids]
    assert [name == "none" for name in found["references"].stratum_of.tolist()] == lonely  # type: ignore[union-attr]


def test_references_from_a_bank_and_without_a_graph(make_run: MakeRun) -> None:
    folder = make_run(graph={"tau": 2, "references": "bank"})
    chosen = read_predictions(folder).of_split("test")
    found = dimensions_of(load_run(folder), chosen, "test")[-1]
    assert found.stratum_of is not None
    plain = make_run("plain", strategy="lm_only")
    absent = dimensions_of(load_run(plain), chosen, "test")[-1]
    assert absent.stratum_of is None
    assert "uses no patient graph" in str(absent.unavailable)
    assert subgroups_of(chosen, absent, ["auroc"], []) == []


def test_predictions_of_strangers_are_refused(make_run: MakeRun) -> None:
    folder = make_run(change=lambda frame: frame.with_columns(frame["instance_id"] + "x"))
    chosen = read_predictions(folder).of_split("test")
    with pytest.raises(PlmError, match="are not in its cohort"):
        dimensions_of(load_run(folder), chosen, "test")


def test_prevalence_and_auroc_are_beside_the_auprc_unless_they_reveal_few() -> None:
    generator = np.random.default_rng(5)
    labels = (generator.random(400) < 0.4).astype(np.int64)
    stratum = np.repeat(np.array(["a", "b", "c", "d"]), 100)
    # Stratum a has three patients with the outcome.
    labels[:100] = 0
    labels[:3] = 1
    found = Predictions.of("binary", labels, generator.random(400))
    dimension = Dimension("group", "Group", ("a", "b", "c", "d"), stratum)
    groups = {
        each.stratum: {measure.metric: measure for measure in each.measures}
        for each in subgroups_of(
            found, dimension, metrics_by_stratum(found.kind, ("auprc", "auroc")), (), replicates=20
        )
    }
    assert all({"auprc", "auroc", "prevalence"} <= set(measures) for measures in groups.values())
    hidden = {name for name, measures in groups.items() if measures["prevalence"].value is None}
    # One hidden share could be worked out from the others: a second one is hidden too.
    assert "a" in hidden
    assert len(hidden) == 2
    assert "hidden" in str(groups["a"]["prevalence"].unavailable)
    shown = ({"b", "c", "d"} - hidden).pop()
    assert groups[shown]["prevalence"].value == labels[stratum == shown].mean()
