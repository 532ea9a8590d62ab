"""docs/extend.md is true: five parts, each in one file outside the package, go from tables to finished reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import patients_like_me
from patients_like_me.records.cohort import Cohort

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text()
FILES = {
    re.match(r"# (\w+\.py)\n", block)[1]: block  # type: ignore[index]
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}
COMMANDS = [
    line.split()[1:] for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.strip().splitlines()
]


def write_hospital(folder: Path, patients: int = 60) -> None:
    """Write the tables of the page: who has heart failure and kidney failure stays long."""
    generator = np.random.default_rng(0)
    stays, findings, number = ["who,stay,came,left,age"], ["stay,finding"], 0
    for patient in range(patients):
        for year in range(int(generator.integers(1, 3))):
            number += 1
            codes = [code for code in ("hf", "CKD", "dm", "pn", "st", "as") if generator.random() < 0.6] or ["hf"]
            days = 1 + 3 * ("hf" in codes) + 3 * ("CKD" in codes)
            stays.append(f"p{patient},s{number},202{year}-03-01,202{year}-03-{1 + days:02d},{40 + patient}")
            findings += [f"s{number},{code}" for code in [*codes, *(["zz"] if number == 1 else [])]]
    folder.mkdir()
    (folder / "stays.csv").write_text("\n".join(stays) + "\n")
    (folder / "findings.csv").write_text("\n".join(findings) + "\n")


def install(site: Path) -> None:
    """Put the files of the page on the path, as a wheel would: modules, and entry points from the page's TOML."""
    about = site / "ward_parts-1.0.dist-info"
    about.mkdir(parents=True)
    for name, block in FILES.items():
        (site / name).write_text(block)
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    groups = tomllib.loads(toml)["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
        for group, points in groups.items()
    ]
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ward-parts\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(lines))


#: The program that runs commands of ``plm`` one after the other and prints how each ended.
WALK = """
import json, sys
from dataclasses import asdict
from tiny_command import run_plm
print(json.dumps([asdict(run_plm(*words, COLUMNS="200")) for words in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> tuple[Path, dict[str, str]]:
    """Run every command of the page; return the folder and what each command printed."""
    folder = tmp_path_factory.mktemp("extending")
    install(folder / "site")
    write_hospital(folder / "hospital")
    source = Path(patients_like_me.__file__).parents[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (folder / "site", source, Path(__file__).parent))),
        "PLM_CODES": str(folder / "codes"),
        "PLM_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    walk = []
    for words in COMMANDS:
        extra = []
        if words[0] == "train" and "--system" not in words:
            # The packaged encoder would take minutes: a tiny one stands in for it.
            extra = ["--backbone", str(tiny_folder), "--set", "backbone.trainable_layers=1", "--set", "graph_steps=5"]
        elif words[0] in ("report", "faithfulness"):
            extra = ["--replicates", "20"]
        walk.append([*words, *extra])
    # One process for all of them: only there are the parts installed, and each process would import everything again.
    done = subprocess.run(
        [sys.executable, "-c", WALK, json.dumps(walk)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    printed = {" ".join(words): said["stdout"] for words, said in zip(COMMANDS, told, strict=True)}
    for words, said in zip(COMMANDS, told, strict=True):
        assert said["returncode"] == 0, f"plm {' '.join(words)}: {said['stderr']}"
    return folder, printed


def test_the_page_has_a_complete_file_of_every_kind() -> None:
    constants = {re.findall(r"^([A-Z_]+) = (?!\{)", block, re.MULTILINE)[-1] for block in FILES.values()}
    assert constants == {"READER", "CODE_SYSTEM", "TASK", "SYSTEM", "METHOD"}
    assert len(FILES) == 5


def test_the_reader_and_the_code_system_make_a_cohort(walked: tuple[Path, dict[str, str]]) -> None:
    folder, printed = walked
    cohort = Cohort.load(folder / "cohort")
    assert cohort.patients.height == 60
    assert set(cohort.codes["diagnosis"]["code"]) == {"HF", "CKD", "DM", "PN", "ST", "AS"}
    assert cohort.names("diagnosis")["HF"] == "heart failure"
    assert pl.read_parquet(folder / "cohort" / "unmapped.parquet")["code"].to_list() == ["zz"]
    assert "ward codes" in printed["prepare stays hospital --out cohort"]


def test_the_task_is_shown_and_audited_under_its_settings(walked: tuple[Path, dict[str, str]]) -> None:
    _, printed = walked
    assert "does the current visit last 5 days or more?" in printed["task show long_stay"]
    assert "4 days" in printed["audit cohort --task long_stay --set task.days=4"]


def test_the_system_is_listed_trained_and_reported(walked: tuple[Path, dict[str, str]]) -> None:
    folder, printed = walked
    assert "code_sums" in printed["systems"]
    record = json.loads((folder / "runs" / "code_sums" / "run.json").read_text())
    assert record["identity"]["system"] == "code_sums"
    assert record["results"]["epochs"] == 3
    page = (folder / "runs" / "code_sums" / "report.html").read_text()
    assert "Long stay: report on a run (code_sums)" in page
    assert re.search(r"No leak found in \d+ checks of the leakage audit\.", page)


def test_the_method_is_measured_against_the_others(walked: tuple[Path, dict[str, str]]) -> None:
    folder, _ = walked
    table = pl.read_csv(folder / "runs" / "vem" / "faithfulness" / "masking.csv")
    assert {"few_links", "gradient", "random"} <= set(table["method"])
    scores = pl.read_parquet(folder / "runs" / "vem" / "faithfulness" / "attributions.parquet")
    assert scores["few_links"].is_between(0, 1, closed="right").all()
    page = (folder / "runs" / "vem" / "report.html").read_text()
    assert "Long stay: report on a run (vem)" in page
    assert "does the current visit last 5 days or more?" in page
