"""README and docs are true: every Python block is executed, every command that can run on a small hospital is run."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from string import Template
from typing import Any

import pytest
from tiny_eicu import TABLES
from tiny_forms import bundle_of
from typer.testing import CliRunner

import patients_like_me as plm
from patients_like_me.evaluation.experiments.design import PAPER_TASKS
from patients_like_me.records.forms.form import find_form
from patients_like_me.records.synthetic import write_synthetic_hospital
from patients_like_me.settings import merged, preset_values
from patients_like_me.systems import contract

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: Languages of blocks that are executed; the others show data or output.
EXECUTED, SHOWN = {"python", "sh"}, {"text", "csv", "toml", "json"}

REAL_RECORDS = "needs real records, and hours"
#: Commands that no test can run, by their first words, with the reason.
CANNOT_RUN = {
    "make demo": "takes minutes; tests/test_demo.py walks it",
    "make test": "is this test among others",
    "make serve": "runs until it is stopped; tests/serve walks through its pages",
    "plm serve runs/": "runs until it is stopped; tests/serve walks through its pages",
    "plm experiment all": "takes days on a graphics card",
    "for name in": "takes minutes; tests/evaluation_experiments runs every experiment",
    "plm codes add icd9proc_to_ccs.csv.gz": "needs a file that HCUP alone distributes",
    "plm codes add ccs_multi_": "needs a file that HCUP alone distributes",
    "plm codes add atc3_ddi_pairs.csv": "needs a table that its authors distribute",
    "plm codes add molerec_idx2SMILES.json": "needs a table that its authors distribute",
    "plm prepare mimic4 mimic4_demo": REAL_RECORDS,
    "plm prepare mimic3 ~/physionet": "needs MIMIC-III; tests/records/test_sources.py reads its form",
    "plm prepare tables meps-": REAL_RECORDS,
    "plm prepare tables nhds-": REAL_RECORDS,
    "plm prepare eicu eicu_demo": REAL_RECORDS,
    "plm prepare tables diabetes-": REAL_RECORDS,
    "plm experiment references cohorts/": REAL_RECORDS,
    "plm experiment growing-bank cohorts/": REAL_RECORDS,
    "plm experiment masking cohorts/": REAL_RECORDS,
    "plm experiment sex-and-age cohorts/": REAL_RECORDS,
    "plm train cohorts/mimic4": REAL_RECORDS,
    "plm faithfulness results/": REAL_RECORDS,
    "plm experiment records cohorts/": REAL_RECORDS,
    "plm experiment records cohort --systems all": "trains every system ten times; tests/evaluation_experiments run it",
    "plm prepare omop cdm.duckdb": "needs a DuckDB file; tests/records/test_omop.py writes one",
    "plm prepare omop postgresql://": "needs a server; tests/records/test_omop.py starts one",
    "plm train cohort --task length_of_stay --system references --set rehearsal": "needs more patients; "
    "tests/systems/reference_path rehearses",
    "python examples/": REAL_RECORDS,
}
#: Pages whose blocks another test runs.
RUN_ELSEWHERE = {"extend.md": "tests/test_extending.py"}
#: What makes a command quick without changing what it shows.
QUICKER = {
    "faithfulness": ["--sample", "2", "--replicates", "5"],
    **{name: ["--replicates", "20"] for name in ("evaluate", "compare", "report")},
}


def blocks(page: Path, language: str) -> list[str]:
    return [text for tag, text in BLOCK.findall(page.read_text()) if tag == language]


def commands(page: Path) -> list[str]:
    """Return the commands of a page's shell blocks, continued lines joined."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.strip()]


def reason_not_to_run(command: str) -> str | None:
    if re.fullmatch(r'\w+=".*"', command):
        return "is words for the shell"
    return next((reason for words, reason in CANNOT_RUN.items() if command.startswith(words)), None)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Path]:
    """Return a folder in which the commands of the documents find what they name, and which is the current one.

    A tiny language model takes the place of the presets' own, so that a training takes seconds.
    """
    folder = tmp_path_factory.mktemp("documents")
    small = {
        "training": {
            "backbone": {"name": str(tiny_folder), "trainable_layers": 1, "attention_dropout": None},
            "graph": {"tau": 3, "max_neighbors": 8, "references": "bank"},
            "max_tokens": 128,
            "epochs": 1,
            "graph_steps": 10,
        }
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in {"HOME": folder, "PLM_CODES": folder / "codes", "PLM_CACHE": folder / "states"}.items():
            patch.setenv(name, str(value))
        patch.setattr(contract, "preset_values", lambda name: merged(preset_values(name), small))
        write_synthetic_hospital("physionet/mimic-iv-3.1", patients=150, seed=1)
        write_synthetic_hospital("today", patients=15, seed=2)
        for name in ("eicu-crd-2.0", "eicu-crd-demo-2.0"):
            (folder / "physionet" / name).mkdir()
            for table, lines in TABLES.items():
                (folder / "physionet" / name / f"{table}.csv").write_text("\n".join(lines) + "\n")
        for form, place in (("meds", folder / "meds" / "mimic-iv"), ("fhir", folder / "fhir" / "export")):
            find_form(form).write(folder / "today", place)
        (folder / "bundle.json").write_text(json.dumps(bundle_of(patient="b")))
        cohort = plm.prepare("mimic4", "physionet/mimic-iv-3.1", out="cohort", settings={"negative_stays": "drop"})
        plm.prepare("mimic4", "today", out="todays-cohort")
        # Most of these patients are not in the first hospital: they can join a bank.
        write_synthetic_hospital("later", patients=250, seed=3)
        plm.prepare("mimic4", "later", out="cohort-2024", settings={"negative_stays": "drop"})
        (folder / "moved").mkdir()
        (folder / "moved" / "cohort").symlink_to(folder / "cohort")
        train = partial(plm.train, cohort, task="readmission")
        train(out="runs/vem", strategy="vem")
        train(out="runs/lm_only", strategy="lm_only")
        for seed in range(3):
            train(out=f"runs/seed{seed}", seed=seed, settings={"max_tokens": 64})
        train(task="drug_recommendation", out="runs/drugs")
        yield folder


def filled(command: str, example: Any) -> list[str]:
    """Return the words of a command; what only one hospital has is replaced by what this one has."""
    words = [os.path.expanduser(word) for word in shlex.split(command, comments=True)][1:]  # noqa: PTH111
    there = [code.code for kind in example.references[:1] for code in kind.codes["diagnosis"].shared]
    own = {"22595853": example.patient.instance_id, "49": there[0] if there else "49"}
    return [own.get(word, word) for word in words] + QUICKER.get(words[0], [])


def test_the_two_commands_come_first() -> None:
    first = commands(README)[:2]
    assert [command.split("#")[0].strip() for command in first] == ["make demo", "make test"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {tag for tag, _ in BLOCK.findall(page.read_text())} <= EXECUTED | SHOWN


def test_what_cannot_run_is_still_there() -> None:
    everything = [command for page in PAGES for command in commands(page)]
    for words in CANNOT_RUN:
        assert any(command.startswith(words) for command in everything), f"no page has '{words}' any more"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page.name not in RUN_ELSEWHERE], ids=lambda p: p.name
)
def test_the_python_of_a_page_runs(
    page: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if page == README:
        # It begins with a hospital and a cohort of its own.
        monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(page, "python"), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), {})  # noqa: S102


@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands(page) and page.name not in RUN_ELSEWHERE], ids=lambda p: p.name
)
def test_the_commands_of_a_page_run(page: Path, workspace: Path) -> None:
    from patients_like_me.cli import app

    example = plm.explain("runs/vem", example=3, show_ids=True).explanation
    for command in commands(page):
        if reason_not_to_run(command):
            continue
        assert command.startswith("plm "), f"{page.name}: '{command}' is no command of plm"
        finished = CliRunner().invoke(app, filled(command, example))
        assert finished.exit_code == 0, f"{page.name}: '{command}': {finished.exception}\n{finished.output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_example_that_is_named_exists() -> None:
    named = {(page.name, path) for page in PAGES for path in re.findall(r"examples/\w+\.py", page.read_text())}
    assert named
    assert not [(page, path) for page, path in named if not (ROOT / path).is_file()]


def test_the_page_of_results_has_a_place_for_every_table_that_its_commands_make() -> None:
    from patients_like_me.evaluation.experiments.page import labels_of_page

    page = ROOT / "docs" / "results.md"
    wanted = []
    said: dict[str, str] = {}
    for command in commands(page):
        if found := re.fullmatch(r'(\w+)="(.*)"', command):
            said[found[1]] = found[2]
        if command.startswith("plm experiment "):
            words = shlex.split(Template(command).substitute(said))
            name = words[words.index("--name") + 1]
            tasks = [after for word, after in pairwise(words) if word == "--task"]
            # The growing bank has one table of one task, by its own name.
            of_tasks = [f"{name}-{task}" for task in tasks or PAPER_TASKS]
            wanted += [name] if words[2] == "growing-bank" else of_tasks
    assert wanted
    assert sorted(labels_of_page(page.read_text())) == sorted(wanted)


def test_every_plm_command_in_the_documents_exists() -> None:
    from typer.main import get_command

    from patients_like_me.cli import app

    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        for word in re.findall(r"(?:^|`)plm ([a-z]+)", page.read_text(), re.MULTILINE):
            assert word in known, f"{page.name} names plm {word}"


def test_every_function_of_the_architecture_exists() -> None:
    from importlib import import_module

    named = re.findall(r"`([a-z_0-9.]+):([A-Za-z_0-9.]+)`", (ROOT / "docs" / "architecture.md").read_text())
    assert len(named) > 15
    for module, name in named:
        found: Any = import_module(f"patients_like_me.{module}")
        for part in name.split("."):
            found = getattr(found, part)
