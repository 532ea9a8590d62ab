"""The experiment of the growing bank: who is where in time and place, and what its rows are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments import growing_bank
from patients_like_me.evaluation.experiments.growing_bank import (
    ROWS,
    Design,
    _table,
    design_of,
    measure,
    updated_intercepts,
    years_of,
)
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.problem import problem_of
from patients_like_me.systems.reference_path.first_banks import bank_of_rows
from patients_like_me.systems.reference_path.model import sites_of, subject_ids_of
from patients_like_me.systems.reference_path.rehearsal import fit_own_parts
from patients_like_me.systems.registry import find_system
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.kinds import MULTILABEL
from patients_like_me.tasks.registry import find_task

SMALL: dict[str, Any] = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [10.0], "block_factors": []}},
    "k": [10],
    "powers": [1.0],
    "gate_penalties": [0.3],
    "output_penalties": [None],
    "may_stay_out": False,
}


@pytest.fixture(scope="module")
def instances(make_cohort: Callable[..., Path]) -> Instances:
    return build_instances(Cohort.load(make_cohort(patients=200, seed=3)), find_task("drug_recommendation"))


def in_years(instances: Instances, years: int) -> Instances:
    """Return the instances with visit ids that end in a year, later for later visits of a patient."""
    names = [f"{name}-{2001 + row % years}" for row, name in enumerate(instances.instance_ids)]
    return replace(instances, frame=instances.frame.with_columns(pl.Series("instance_id", names)))


def at_sites(instances: Instances, sites: int) -> Instances:
    """Return the instances with every patient at one of some sites."""
    visits = instances.cohort.visits
    named = visits.with_columns((pl.lit("site ") + (pl.col("subject") % sites).cast(pl.String)).alias("site"))
    return replace(instances, cohort=replace(instances.cohort, visits=named.select(visits.columns)))


def disjoint(*groups: Any) -> bool:
    return sum(len(set(group)) for group in groups) == len(set().union(*map(set, groups)))


def test_by_years_nothing_of_the_last_year_is_seen_before(instances: Instances) -> None:
    dated = in_years(instances, 6)
    design = design_of(dated, 0, None)
    assert design is not None
    years = years_of(dated)
    assert set(years[design.test]) == {2006}
    assert set(years[design.bank]) == {2004, 2005}
    assert set(years[design.rehearsal[2]]) == {2004}
    assert set(years[design.rehearsal[1]]) == {2003}
    assert set(years[design.trained]) == {2001, 2002}
    people = subject_ids_of(dated)
    _, before, fitting = design.rehearsal
    seen = set(people[design.trained])
    assert seen & set(people[np.isin(years, [2003, 2004, 2005])]), "nobody to leave out"
    assert not seen & set(people[np.concatenate([before, fitting, design.bank, design.test])])
    assert disjoint(people[design.bank], people[design.test])
    again = np.isin(people, list(seen))
    assert dict(design.left_out) == {
        "rehearsal": (again & np.isin(years, [2003, 2004])).sum(),
        "bank": (again & np.isin(years, [2004, 2005])).sum(),
        "test": ((again | np.isin(people, people[design.bank])) & (years == 2006)).sum(),
    }
    small = design_of(dated, 0, (12, 5))
    assert small is not None
    assert (len(small.trained), len(small.test)) == (12, 5)


def test_a_visit_id_without_a_year_has_none(instances: Instances) -> None:
    assert not years_of(instances).any()
    assert design_of(instances, 0, None) is None


def test_by_hospitals_bank_and_test_are_other_patients_of_other_hospitals(instances: Instances) -> None:
    placed = at_sites(instances, 8)
    design = design_of(placed, 1, None)
    assert design is not None
    sites, people = np.array(sites_of(placed)), subject_ids_of(placed)
    assert disjoint(sites[design.trained], sites[design.bank])
    assert set(sites[design.bank]) == set(sites[design.test])
    assert disjoint(people[design.bank], people[design.test], people[design.trained])
    trained, bank, fitting = design.rehearsal
    assert disjoint(sites[trained], sites[bank])
    assert disjoint(people[trained], people[bank], people[fitting])


def test_a_patient_of_two_hospitals_is_not_trained_on_and_in_the_bank(instances: Instances) -> None:
    visits = instances.cohort.visits
    sites = [f"site {row % 8}" for row in range(visits.height)]
    named = visits.with_columns(pl.Series("site", sites)).select(visits.columns)
    placed = replace(instances, cohort=replace(instances.cohort, visits=named))
    design = design_of(placed, 1, None)
    assert design is not None
    people = subject_ids_of(placed)
    trained, before, fitting = (set(people[rows]) for rows in design.rehearsal)
    assert not trained & (before | fitting)
    assert not set(people[design.trained]) & set(people[np.concatenate([design.bank, design.test])])
    assert min(design.left_out.values()) > 0


def test_where_everybody_was_trained_on_nothing_is_measured(
    instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing_bank, "subject_ids_of", lambda given: np.full(len(given), "the same"))
    with pytest.raises(PlmError, match="too few patients outside"):
        measure(in_years(instances, 6), find_system("references").settings_of(None, **SMALL))


def test_updated_intercepts_meet_the_rates_of_the_bank() -> None:
    random = np.random.default_rng(0)
    logits, targets = random.normal(size=(3000, 2)), (random.random((3000, 2)) < [0.1, 0.7]).astype(float)
    added = updated_intercepts(logits, targets, MULTILABEL)
    np.testing.assert_allclose(MULTILABEL.probabilities(logits + added).mean(axis=0), targets.mean(axis=0), atol=2e-3)


def test_a_bank_that_is_new_compares_what_a_bank_of_training_compares(instances: Instances, tiny_folder: Path) -> None:
    """With a language model also its embeddings, without one never."""
    problem, rows = problem_of(instances), np.arange(20)
    embedder = {"name": str(tiny_folder), "trainable_layers": 0}
    for language_model in ("none", "frozen"):
        given = {**SMALL, "folds": 2, "language_model": language_model, "embedder": embedder, "max_tokens": 200}
        for relations in (["diagnoses"], ["embedding", "diagnoses"]):
            settings: Any = find_system("references").settings_of(None, **given, relations=relations)
            own = fit_own_parts(problem, settings, RunContext(settings))
            bank = bank_of_rows(own, instances, rows, problem.train, settings)
            assert ("embedding" in bank.similarities) == (language_model == "frozen")
            assert bank.lists(bank.described, 3).keys() == set(bank.similarities)


def test_rows_are_scored_on_the_same_test_instances(instances: Instances, monkeypatch: pytest.MonkeyPatch) -> None:
    dated = in_years(instances, 6)
    answers: list[Any] = []
    inner = growing_bank.scores_of

    def listened(logits: Any, test: Instances) -> Any:
        answers.append(logits)
        return inner(logits, test)

    monkeypatch.setattr(growing_bank, "scores_of", listened)
    design = design_of(dated, 0, None)
    assert isinstance(design, Design)
    settings = find_system("references").settings_of(None, **SMALL)
    found = measure(dated, settings)
    assert set(found["scores"]) == set(ROWS) == set(found["differences"])
    assert found["differences"]["frozen"][0] == 0
    assert found["gates_open"]
    assert found["left_out"] == dict(design.left_out)
    table = _table(dated, {"linear": [found]}, "about", "label")
    assert f"the bank's: {design.left_out['rehearsal']:,} of the rehearsal, " in table.caption
    assert found["curve"][str(found["instances"]["bank"])] == found["scores"]["bank grown"]
    assert found["scores"]["bank grown"] != found["scores"]["frozen"]
    assert found["scores"]["references at random"] != found["scores"]["bank grown"]
    # Outcomes of test instances reach nothing but the scores.
    labels = dated.labels.copy()
    labels[design.test] = 1 - labels[design.test]
    before, answers[:] = list(answers), []
    turned = measure(replace(dated, labels=labels), settings)
    assert turned["scores"]["frozen"] != found["scores"]["frozen"]
    for first, second in zip(before, answers, strict=True):
        np.testing.assert_array_equal(first, second)
