from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS, find_experiments
from patients_like_me.evaluation.experiments.jobs import Plan, open_cohorts, plan_experiment
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.systems.registry import find_system
from patients_like_me.training.strategies import STRATEGIES


def test_a_grid_becomes_every_combination_of_task_row_and_seed(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    plan = make_plan("ablation", tmp_path, seeds=2)
    assert len(plan.jobs) == 3 * 5 * 2
    combinations = {(job.task, job.settings.strategy, job.settings.seed) for job in plan.jobs if job.settings}
    assert combinations == {
        (task, strategy, seed)
        for task in ("readmission", "length_of_stay", "drug_recommendation")
        for strategy in STRATEGIES
        for seed in (0, 1)
    }
    assert len({job.folder for job in plan.jobs}) == len(plan.jobs)
    assert all(job.folder.is_relative_to(tmp_path / "runs") for job in plan.jobs)


def test_rows_win_over_the_users_changes_and_those_over_the_experiments_own(
    make_plan: Callable[..., Plan], tmp_path: Path, tiny_changes: dict[str, object]
) -> None:
    taus = [job.settings.graph.tau for job in make_plan("tau", tmp_path, values=("3", "5")).jobs if job.settings]
    assert taus == [3, 5]
    plain = [job.settings.coupling for job in make_plan("mc-samples", tmp_path).jobs if job.settings]
    assert plain == [1.0, 1.0, 1.0, 0.0]
    changed = make_plan("mc-samples", tmp_path, changes={**tiny_changes, "coupling": 0.5})
    assert [job.settings.coupling for job in changed.jobs if job.settings] == [0.5, 0.5, 0.5, 0.0]
    assert [job.settings.mc_samples for job in changed.jobs if job.settings][:3] == [1, 5, "exact"]


def test_equal_runs_of_two_experiments_are_one_folder_but_measured_runs_stand_apart(
    make_plan: Callable[..., Plan], tmp_path: Path
) -> None:
    folders = {
        name: {job.folder for job in make_plan(name, tmp_path, tasks=("readmission",)).jobs}
        for name in ("ablation", "main", "visits", "efficiency")
    }
    assert folders["visits"] < folders["ablation"]
    assert folders["main"] == folders["ablation"]
    assert not folders["efficiency"] & folders["ablation"]


def test_efficiency_trains_every_epoch(make_plan: Callable[..., Plan], tmp_path: Path) -> None:
    for job in make_plan("efficiency", tmp_path).jobs:
        assert job.settings is not None
        assert job.settings.patience == job.settings.epochs


def test_other_systems_are_rows_of_the_main_table_with_one_seed_where_nothing_is_random(
    make_plan: Callable[..., Plan], tmp_path: Path, two_random_systems: tuple[str, str]
) -> None:
    plan = make_plan("main", tmp_path, seeds=3, systems=("all",), tasks=("readmission",))
    plain = [job for job in plan.jobs if job.variant.system != "patients_like_me"]
    assert {"logistic", "boosting", "frequency", "repeat", "neighbors", "random_walk"} <= {
        job.variant.system for job in plain
    }
    for job in plain:
        assert job.seed == 0 or find_system(job.variant.system).capabilities.random
    assert {job.seed for job in plain if job.variant.system == "random_walk"} == {0, 1, 2}


def test_the_paper_takes_its_own_backbones_and_names_those_that_are_missing(
    cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_BACKBONES", str(tmp_path / "none"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    plan = plan_experiment(
        EXPERIMENTS["backbones"], open_cohorts([cohort_folder]), Request(out=tmp_path / "out", preset="paper")
    )
    assert not plan.jobs
    assert not plan.is_possible
    assert set(plan.skipped) == {"bioclinical-modernbert", "meerkat-8b", "biobert-large", "biomistral-7b"}
    assert "on a machine with network" in plan.skipped["meerkat-8b"]


def test_missing_backbones_are_skipped_and_the_others_stay(
    make_plan: Callable[..., Plan], tiny_folder: Path, tmp_path: Path
) -> None:
    plan = make_plan("backbones", tmp_path, backbones=(str(tiny_folder), "no-such-model"))
    assert {job.backbone for job in plan.jobs} == {tiny_folder.name}
    assert list(plan.skipped) == ["no-such-model"]


def test_two_cohorts_have_different_names_and_the_same_one_twice_is_refused(
    cohort_folder: Path, make_cohort: Callable[..., Path]
) -> None:
    places = open_cohorts([cohort_folder, make_cohort(patients=12, seed=5)])
    assert len({place.slug for place in places}) == 2
    assert len({place.title for place in places}) == 2
    with pytest.raises(PlmError, match="given twice"):
        open_cohorts([cohort_folder, cohort_folder])


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("tau", {"values": ("many",)}, "tau='many' is not possible"),
        ("mc-samples", {"values": ("few",)}, "whole numbers, or exact"),
        ("visits", {"values": ("3",)}, "has no values"),
        ("tau", {"tasks": ("mortality",)}, "there is no task 'mortality'"),
        ("tau", {"changes": {"graph": {"tao": 3}}}, "tao"),
    ],
)
def test_mistakes_are_named(
    make_plan: Callable[..., Plan], tmp_path: Path, name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(PlmError, match=words):
        make_plan(name, tmp_path, **options)


def test_an_unknown_experiment_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PlmError, match="ablation"):
        find_experiments("sweep")
    assert [each.name for each in find_experiments("all")] == [
        name
        for name in EXPERIMENTS
        if name not in ("records", "references", "sex-and-age", "interaction-target", "growing-bank", "learning-curve")
    ]
