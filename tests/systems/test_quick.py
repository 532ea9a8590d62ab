"""The quick form of systems: what takes long is cut by the room, and a user's own wish wins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from patients_like_me.evaluation.experiments.catalogue import find_experiments
from patients_like_me.evaluation.experiments.jobs import open_cohorts, plan_experiment
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.systems.quick import LARGEST, quick_changes
from patients_like_me.systems.registry import all_systems, find_system


def test_every_system_has_a_quick_form() -> None:
    for system in all_systems().values():
        changes = quick_changes(system, "quick", max_tokens=96)
        settings = system.settings_of("quick", **changes)
        if system.capabilities.epochs:
            assert settings.epochs <= LARGEST["epochs"], system.name  # type: ignore[attr-defined]
    deep = quick_changes(find_system("colacare"))
    assert deep["retain"]["epochs"] == deep["epochs"] == LARGEST["epochs"]
    assert quick_changes(find_system("kare"), max_tokens=96)["max_tokens"] == 96
    # What is smaller already stays.
    assert "epochs" not in quick_changes(find_system("glem"))


def test_experiments_use_it_and_a_user_may_change_it(make_cohort: Callable[..., Path], tmp_path: Path) -> None:
    places = open_cohorts([make_cohort(patients=20, seed=2)])
    (main,) = find_experiments("main")

    def epochs(quick: bool, **changes: object) -> set[int]:
        request = Request(tmp_path, systems=("retain",), quick=quick, changes=changes, tasks=("readmission",))
        jobs = plan_experiment(main, places, request).jobs
        return {job.settings.epochs for job in jobs if job.variant.system == "retain"}

    assert epochs(quick=False) == {100}
    assert epochs(quick=True) == {LARGEST["epochs"]}
    assert epochs(quick=True, retain={"epochs": 7}) == {7}
