"""The command as a newcomer meets it: help, mistakes, exit codes."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_command import Finished, run_plm
from tiny_hospital import TABLES
from tiny_runs import rewrite_table
from typer.main import get_command

from patients_like_me import __version__
from patients_like_me.cli import app
from patients_like_me.cli.overview import STEPS, with_options_of


def plm(*words: str, codes: Path) -> Finished:
    return run_plm(*words, PLM_CODES=str(codes), HOME=str(codes))


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hospital")
    for name, lines in TABLES.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def cohort(hospital: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "cohort"
    finished = plm("prepare", "mimic4", str(hospital), "--out", str(out), codes=hospital)
    assert finished.returncode == 0, finished.stderr
    assert "Cohort written" in finished.stdout
    assert "all visits in the source" in finished.stdout
    return out


def test_help_teaches_and_answers_in_under_a_second() -> None:
    command = [sys.executable, "-m", "patients_like_me", "--help"]
    subprocess.run(command, capture_output=True, check=True)
    # The processor's time of the child: a busy machine lets it wait without fault of its own.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
    for word in ("prepare", "synthesize", "codes", "task", "audit", "show", "A first walk"):
        assert word in shown.stdout


@pytest.mark.parametrize("command", ["prepare", "synthesize", "audit", "show", "task", "codes"])
def test_every_command_explains_itself(command: str, tmp_path: Path) -> None:
    shown = plm(command, "--help", codes=tmp_path)
    assert shown.returncode == 0
    assert len(shown.stdout) > 200


def test_no_slow_library_is_imported_for_the_help() -> None:
    code = "import patients_like_me.cli, sys; print([m for m in ('torch', 'polars', 'numba', 'matplotlib') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_help_shows_every_command_at_its_step_and_does_not_wait_for_rich() -> None:
    code = "import sys; from patients_like_me.cli import main\ntry:\n    main()\nfinally:\n    print('rich' in sys.modules, file=sys.stderr)"
    shown = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert shown.stderr.strip() == "False"
    assert "[bold]" not in shown.stdout
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    names += [group.name for group in app.registered_groups if group.name]
    assert sorted(names) == sorted(name for step in STEPS.values() for name in step)


def test_version_and_completion(tmp_path: Path) -> None:
    assert plm("--version", codes=tmp_path).stdout.strip() == f"plm {__version__}"
    assert "--install-completion" in plm("--help", codes=tmp_path).stdout


def test_task_show(tmp_path: Path) -> None:
    shown = plm("task", "show", "drug_recommendation", codes=tmp_path).stdout
    assert "its own medications are not an input" in shown
    assert "jaccard_per_instance" in shown


def test_audit_writes_a_page_and_leaves_with_zero(cohort: Path, tmp_path: Path) -> None:
    shown = plm("audit", str(cohort), "--task", "length_of_stay", codes=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert (cohort / "audit" / "length_of_stay.html").read_text().startswith("<!doctype html>")


def test_audit_leaves_with_one_on_a_leak(cohort: Path, tmp_path: Path) -> None:
    import polars as pl

    broken = tmp_path / "broken"
    shutil.copytree(cohort, broken)
    visits = pl.read_parquet(broken / "visits.parquet")
    visits.with_columns(pl.col("admission_time").reverse()).write_parquet(broken / "visits.parquet")
    assert (
        "visits.parquet' is damaged"
        in plm("audit", str(broken), "--task", "drug_recommendation", codes=tmp_path).stderr
    )
    # As if the cohort had been written so.
    rewrite_table(broken, "visits", pl.read_parquet(broken / "visits.parquet"))
    shown = plm("audit", str(broken), "--task", "drug_recommendation", codes=tmp_path)
    assert shown.returncode == 1
    assert "leak" in shown.stdout


def test_show_prints_one_instance(cohort: Path, tmp_path: Path) -> None:
    shown = plm("show", str(cohort), "--task", "readmission", codes=tmp_path).stdout
    assert "Current visit: diagnoses:" in shown
    assert "label:" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("prepare", "mimic5", ".", "--out", "x"),
            "there is no reader 'mimic5'; choose one of",
        ),
        (("prepare", "mimic4", "nowhere", "--out", "x"), "the folder 'nowhere' does not exist"),
        (("audit", "nowhere", "--task", "readmission"), "'nowhere' is not a cohort folder"),
        (("task", "show", "mortality"), "there is no task 'mortality'"),
        (
            ("prepare", "mimic4", ".", "--out", "x", "--negative-stays", "hide"),
            "negative_stays='hide' is not possible",
        ),
    ],
)
def test_mistakes_end_in_one_sentence(words: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    finished = plm(*words, codes=tmp_path)
    assert finished.returncode == 2
    assert sentence in finished.stderr
    assert "Traceback" not in finished.stderr


def test_a_wrong_task_setting_is_a_sentence(cohort: Path, tmp_path: Path) -> None:
    finished = plm("audit", str(cohort), "--task", "readmission", "--set", "task.clock=noon", codes=tmp_path)
    assert finished.returncode == 2
    assert "clock='noon' is not possible" in finished.stderr


@pytest.mark.parametrize(
    ("words", "out", "sentence"),
    [
        (("train", "{cohort}", "--task", "readmission", "--system", "frequency"), "file", "/file' is a file; choose"),
        (("synthesize", "--patients", "5"), "file/run", "/file': file exists; choose another name"),
        (("synthesize", "--patients", "5"), "x" * 300, "name too long; choose a shorter name"),
    ],
)
def test_a_place_that_cannot_be_written_is_a_sentence(
    words: tuple[str, ...], out: str, sentence: str, cohort: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    given = (word.format(cohort=cohort) for word in words)
    finished = plm(*given, "--out", str(tmp_path / out), codes=tmp_path)
    assert finished.returncode == 2
    assert sentence in finished.stderr
    assert "Traceback" not in finished.stderr


def test_the_options_of_a_command_are_worked_out_when_it_is_called_and_no_others() -> None:
    whole = get_command(app)
    for name, command in whole.commands.items():
        light = get_command(with_options_of(app, ["--help", name, "folder"]))
        assert list(light.commands) == list(whole.commands)
        assert [found.help for found in light.commands.values()] == [found.help for found in whole.commands.values()]
        called = light.commands[name]
        assert [option.name for option in called.params] == [option.name for option in command.params]
        for below in getattr(command, "commands", {}):
            options = [option.name for option in called.commands[below].params]
            assert options == [option.name for option in command.commands[below].params]
    assert not get_command(with_options_of(app, ["--help"])).commands["train"].params
    assert len(whole.commands["train"].params) > 5


def test_the_help_names_the_strategy_that_is_the_default() -> None:
    from patients_like_me.training.settings import TrainingSettings
    from patients_like_me.training.strategies import STRATEGIES

    assert TrainingSettings().strategy == next(iter(STRATEGIES))
