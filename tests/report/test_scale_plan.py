from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.report import scale_rates
from patients_like_me.report.scale_figure import draw_growth
from patients_like_me.report.scale_plan import PartOfPlan, ScalePlan, plan_scale


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_rates, "_WHOLE_SIZES", (200, 400))
    monkeypatch.setattr(scale_rates, "_ATTRIBUTION_SIZES", (40, 80))
    monkeypatch.setattr(scale_rates, "_NEWCOMERS", 3)
    monkeypatch.setattr(scale_rates, "_ALL_PAIRS_SIZE", 300)
    monkeypatch.setattr(scale_rates, "_INGEST_SIZES", (40, 400))


def test_the_plan_measures_every_part_and_shares_what_can_be_shared(small_sizes: None) -> None:
    said: list[str] = []
    plan = plan_scale(
        1_000_000, 10, settings=GraphSettings(tau=8, max_neighbors=4), sizes=(500, 1_000), report=said.append
    )
    assert all(seconds > 0 for part in plan.parts for _, seconds in part.points)
    shared = [part for part in plan.parts if part.is_shared]
    assert {part.name for part in shared} == {"graph, all pairs", "attribution of all"}
    for part in shared:
        assert part.wall_seconds(1_000_000, 10) == pytest.approx(part.seconds(1_000_000) / 10)
    graph = plan.parts[1]
    # A node has its entries, its diagnoses and its place on disk: five bytes an entry and four a diagnosis at least.
    assert 4 * 22 + 5 * 4 < graph.disk_bytes < 4 * 22 + 5 * 4 * 4 + 60
    assert graph.memory_bytes > graph.disk_bytes
    assert len(plan.table()) == len(plan.parts) + 1
    assert plan.notes[-1] == "embedding was not measured: name a backbone"
    assert 0.05 < plan.process_gib < 20


def test_a_graph_of_all_pairs_is_told_in_numbers_and_the_growth_is_drawn(small_sizes: None, tmp_path: Path) -> None:
    plan = plan_scale(100_000, 1, settings=GraphSettings(tau=8), sizes=(300, 600))
    share = len(build_graph(drawn_sets(300), GraphSettings(tau=8)).neighbors) / 300**2
    assert f"without max_neighbors {share:.1%} of all pairs" in plan.notes[0]
    assert f"{share * 1e10:.3g} entries" in plan.notes[0]
    assert "the plan is for the strongest 32" in plan.notes[0]
    draw_growth(plan, tmp_path / "growth.svg")
    # A line and a legend for every part.
    assert (tmp_path / "growth.svg").read_text().count("<g id=") > 2 * len(plan.parts)


def test_the_part_that_grows_fastest_is_named() -> None:
    linear = PartOfPlan("embedding", ((10, 1.0),), True)
    pairs = PartOfPlan("graph", ((10, 11.0), (100, 200.0)), True, compares_pairs=True)
    plan = ScalePlan(1_000, 2, (linear, pairs))
    assert plan.fastest_growing is pairs
    assert pairs.seconds(1_000) == pytest.approx(1.0 * 1_000 + 0.01 * 1_000**2, rel=1e-6)
    assert 1 < pairs.growth(10) < pairs.growth(1_000) < 2


def test_a_plan_without_a_cohort_or_patients_is_refused() -> None:
    result = CliRunner().invoke(app, ["plan"])
    assert result.exit_code != 0
    assert "no cohort was given" in str(result.exception)


def test_the_command_measures_the_graph_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, backbones = [], []

    def noted(instances: int, workers: int, *, settings: GraphSettings, backbone: str | None, **others: object) -> None:
        measured.append(settings)
        backbones.append(backbone)
        raise PlmError("enough")

    monkeypatch.setattr("patients_like_me.report.scale_plan.plan_scale", noted)
    words = ["plan", "--patients", "1000", "--preset", "clinical", "--set", "graph.tau=4", "--set", "epochs=2"]
    told = CliRunner().invoke(app, words)
    assert (measured[0].tau, measured[0].self_loop) == (4, "own_codes")
    assert "the setting 'epochs' changes nothing here" in told.stderr
    for more in (["--preset", "quick"], ["--backbone", "other"], ["--set", "backbone.name=third"]):
        told = CliRunner().invoke(app, ["plan", "--patients", "1000", *more])
        assert "changes nothing here" not in told.stderr
    assert backbones[1:] == ["minilm-2", "other", "third"]
    told = CliRunner().invoke(app, ["plan", "--patients", "1000", "--set", "backbone=third"])
    assert str(told.exception) == "'backbone' holds several settings; name one of them, such as backbone.name=minilm"
    monkeypatch.setattr("patients_like_me.model.backbones.locate", lambda _: None)
    told = CliRunner().invoke(app, ["plan", "--patients", "1000", "--preset", "quick"])
    assert backbones[-1] is None
    assert "the backbone 'minilm-2' of the preset is not on this machine" in told.stderr
    assert "; the language model is not measured" in told.stderr
