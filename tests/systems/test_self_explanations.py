"""Systems that explain themselves: what their pages say agrees with what they predict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from patients_like_me.cli import app
from patients_like_me.errors import PlmError
from patients_like_me.explanation.pseudonyms import about_history
from patients_like_me.runs.run import Run
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.systems.micron import NETWORK
from patients_like_me.systems.problem import only
from patients_like_me.systems.registry import find_system
from patients_like_me.systems.train import train
from patients_like_me.systems.visit_network import features_of

SMALL: dict[str, Any] = {"epochs": 2, "batch_size": 32, "rate": 0.02, "optimizer": "adam"}
SETTINGS: dict[str, dict[str, Any]] = {
    "retain": {"embedding": 8, "visit_hidden": 8, "code_hidden": 8},
    "gram": {"embedding": 8, "attention": 6, "hidden": 8},
    "stagenet": {"embedding": 8, "chunk": 4, "window": 2},
    "adacare": {"filters": 4, "hidden": 8},
    "grasp": {"embedding": 8, "hidden": 8, "clusters": 4},
    "gamenet": {"width": 8, "hidden": 8},
    "safedrug": {"width": 8},
    "micron": {"width": 8, "hidden": 16},
    "molerec": {"width": 8, "graph_layers": 2},
}


@pytest.fixture(scope="module")
def run_of(
    coded_cohort: Path, made_up_knowledge: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Run]:
    folder = tmp_path_factory.mktemp("runs")

    def make(name: str) -> Run:
        task = (find_system(name).tasks or ("readmission",))[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PLM_CODES", str(made_up_knowledge))
            return train(coded_cohort, task, folder / name, system=name, settings={**SMALL, **SETTINGS[name]})

    return make


def tables_of(run: Run, row: int) -> dict[str, Any]:
    system = find_system(run.identity.system)
    assert system.explain is not None
    return {table.title: table for table in system.explain(load_fitted(system, run), run.instances, row, None).tables}


@pytest.mark.parametrize("name", list(SETTINGS))
def test_the_prediction_on_the_page_is_the_one_of_the_run(name: str, run_of: Callable[[str], Run]) -> None:
    run = run_of(name)
    row = int(run.instances.rows_of("test")[0])
    system = find_system(name)
    logits = system.predict(load_fitted(system, run), only(run.instances, np.array([row])))
    expected = np.sort(run.task.kind.probabilities(logits)[0])[::-1]

    tables = tables_of(run, row)

    np.testing.assert_allclose([value for _, value in tables["Prediction"].rows], expected, atol=1e-6)
    assert all(len(cells) == len(table.columns) for table in tables.values() for cells in table.rows)


def test_retain_s_parts_sum_to_the_logit(run_of: Callable[[str], Run]) -> None:
    run = run_of("retain")
    for row in run.instances.rows_of("test")[:5].tolist():
        tables = tables_of(run, row)
        parts = dict(tables["The sum"].rows)
        probability = tables["Prediction"].rows[0][1]
        assert parts["logit"] == pytest.approx(np.log(probability / (1 - probability)), abs=1e-5)
        assert sum(parts.values()) - parts["logit"] == pytest.approx(parts["logit"], abs=1e-5)
        assert sum(cells[3] for cells in tables["Codes"].rows) == pytest.approx(parts["codes of all visits"], abs=1e-5)
        assert sum(cells[1] for cells in tables["Visits"].rows) == pytest.approx(1, abs=1e-5)


def test_gram_s_weights_of_a_code_sum_to_one_and_name_its_groups(run_of: Callable[[str], Run]) -> None:
    run = run_of("gram")
    rows = tables_of(run, int(run.instances.rows_of("test")[0]))["Attention over ancestors"].rows
    sums: dict[str, float] = {}
    for _, code, _, weight in rows:
        sums[code] = sums.get(code, 0.0) + weight
    assert all(total == pytest.approx(1, abs=1e-5) for total in sums.values())
    assert {"the code itself", "root", "1: Group 1"} <= {above for _, _, above, _ in rows}
    assert any("11 of 12 diagnosis codes have ancestors" in note for note in run.results.notes)


def test_the_interacting_pair_of_a_recommended_set_is_named(run_of: Callable[[str], Run]) -> None:
    for name in ("gamenet", "safedrug", "micron", "molerec"):
        run = run_of(name)
        shown = []
        for row in run.instances.rows_of("test")[:4].tolist():
            tables = tables_of(run, row)
            recommended = {what.split(":")[0] for what, value in tables["Prediction"].rows if value >= 0.2}
            pairs = tables["Interacting pairs of the recommended set"].rows
            assert bool(pairs) == ({"A10A", "B01A"} <= recommended)
            shown += pairs
        assert shown, name
    assert "2 of 3 drug codes have a molecule; without: B05D" in run_of("safedrug").results.notes


def test_micron_says_how_well_its_updated_sets_do(run_of: Callable[[str], Run]) -> None:
    run = run_of("micron")
    network, rows = NETWORK.opened(load_fitted(find_system("micron"), run)), run.instances.rows_of("validation")
    visits = features_of(load_fitted(find_system("micron"), run), run.instances).batch(rows)
    true = run.instances.labels[rows] > 0
    found = []
    sets = network.sets(visits)[np.arange(len(rows)), visits.visit_mask.sum(1).numpy() - 1].numpy()
    for chosen in (sets, torch.sigmoid(network(visits)).detach().numpy() >= 0.2):
        either, has_drugs = (chosen | true).sum(axis=1), true.any(axis=1)
        found.append(float(((chosen & true).sum(axis=1)[has_drugs] / either[has_drugs]).mean()))

    (note,) = (note for note in run.results.notes if "updated from visit to visit" in note)
    assert f"have a Jaccard of {found[0]:.3f}, those from 0.2 on" in note
    assert note.endswith(f"{found[1]:.3f}")


def test_grasp_shows_training_patients_of_the_cluster(run_of: Callable[[str], Run]) -> None:
    run = run_of("grasp")
    rows = tables_of(run, int(run.instances.rows_of("test")[0]))["Nearest training patients of the cluster"].rows
    distances = [distance for _, distance, _ in rows]
    assert distances == sorted(distances)
    assert rows[0][0] == "R1"


def test_the_command_writes_a_page_in_three_forms(run_of: Callable[[str], Run], tmp_path: Path) -> None:
    run = run_of("retain")
    for ending in ("html", "md", "json"):
        out = tmp_path / f"page.{ending}"
        answer = CliRunner().invoke(app, ["explain", str(run.folder), "--example", "1", "--out", str(out)])
        # The page opens with whom it is about.
        assert about_history(run.instances, int(run.rows_of("test")[0]))[1:] in out.read_text()
        assert answer.exit_code == 0, answer.output
        assert "added to the logit" in answer.output
        assert "added to the logit" in out.read_text()
    assert json.loads((tmp_path / "page.json").read_text())["system"] == "RETAIN"
    assert "<script" not in (tmp_path / "page.html").read_text()

    refused = CliRunner().invoke(app, ["explain", str(run.folder), "--example", "1", "--tau", "3"])
    assert isinstance(refused.exception, PlmError)
    assert "explains itself, without references" in str(refused.exception)


def test_missing_knowledge_is_refused_or_in_the_name(coded_cohort: Path, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLM_CODES", str(tmp_path / "no tables"))
        with pytest.raises(PlmError, match=r"the system 'gram' needs the tables ccs_multi_dx, ccs_multi_pr"):
            train(coded_cohort, "readmission", tmp_path / "gram", system="gram")
        with pytest.raises(PlmError, match=r"needs the table atc3_smiles.*Or do without.*molecules"):
            train(
                coded_cohort,
                "drug_recommendation",
                tmp_path / "safedrug",
                system="safedrug",
                settings={"without": ["interactions"]},
            )
        run = train(
            coded_cohort,
            "drug_recommendation",
            tmp_path / "bare",
            system="safedrug",
            settings={**SMALL, "width": 8, "without": ["interactions", "molecules"]},
        )
    assert run.record.system.title == "SafeDrug[no-interactions,no-molecules]"
    assert not (tmp_path / "gram").exists()


def test_tables_that_know_none_of_the_drugs_are_refused(
    cohort_folder: Path, made_up_knowledge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))

    def trained(out: str, *without: str) -> str:
        settings = {**SMALL, "width": 8, "without": without}
        task = "drug_recommendation"
        return train(cohort_folder, task, tmp_path / out, system="safedrug", settings=settings).record.system.title

    with pytest.raises(PlmError, match=r"interactions covers 0 of \d+ drug codes.*without=\[\"interactions\"\]"):
        trained("whole")
    with pytest.raises(PlmError, match=r"molecules has none of \d+ drug codes.*without=\[\"molecules\"\]"):
        trained("less", "interactions")
    assert trained("bare", "interactions", "molecules") == "SafeDrug[no-interactions,no-molecules]"
