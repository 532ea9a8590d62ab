"""``plm codes``: what a user sees."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from patients_like_me.cli.codes import codes_app
from patients_like_me.codes.code_tables import installable_tables
from patients_like_me.errors import PlmError

app = typer.Typer()
app.add_typer(codes_app, name="codes")


@pytest.fixture
def plm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Return a runner whose code tables are in a folder of this test."""
    monkeypatch.setenv("PLM_CODES", str(tmp_path / "installed"))
    monkeypatch.setenv("COLUMNS", "120")
    return CliRunner()


def plain(text: str) -> str:
    """Drop colours and line breaks, so that wrapped sentences can be found."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def test_status_teaches_what_is_missing_and_where_to_get_it(plm: CliRunner, tmp_path: Path) -> None:
    result = plm.invoke(app, ["codes", "status"])
    assert result.exit_code == 0
    text = plain(result.output)
    assert "72,446" in text
    for words in (
        "hcup-us.ahrq.gov",
        "CCS for ICD-9-CM, single level",
        "RxNorm Full Monthly Release",
        "UMLS licence",
    ):
        assert words in text
    assert str(tmp_path / "installed") in text
    assert not (tmp_path / "installed").exists()


def test_add_installs_and_status_shows_it(plm: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("icd9proc,ccs\n0101,1\n0331,4\n")
    result = plm.invoke(app, ["codes", "add", str(file)])
    assert result.exit_code == 0
    assert "icd9proc_ccs: read 2 entries, now 2 are installed" in result.output
    text = plain(plm.invoke(app, ["codes", "status"]).output)
    assert "own.csv" in text
    assert "Single_Level_CCS_2015.zip" not in text


def test_add_says_how_many_rows_gave_nothing_and_replace_drops(plm: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "own.csv"
    file.write_text("ndc,rxcui,atc3\n00000000011,1,C07A\n00000000022,2,\n")
    output = plm.invoke(app, ["codes", "add", str(file), "--as", "rxcui_atc3"]).output
    assert "rxcui_atc3: read 1 entries, now 1 are installed; 1 rows of the file had no usable value" in output
    file.write_text("rxcui,atc3\n5,C07A\n")
    assert "now 2 are" in plm.invoke(app, ["codes", "add", str(file)]).output
    assert "now 1 are" in plm.invoke(app, ["codes", "add", str(file), "--replace"]).output


def test_errors_are_sentences(plm: CliRunner, tmp_path: Path) -> None:
    result = plm.invoke(app, ["codes", "add", str(tmp_path / "nowhere.csv")])
    assert isinstance(result.exception, PlmError)
    assert str(result.exception).endswith("nowhere.csv'; check the path")


def test_help_names_every_table(plm: CliRunner) -> None:
    text = plain(plm.invoke(app, ["codes", "add", "--help"]).output)
    assert all(table in text.replace("│ │ ", "") for table in tuple(installable_tables()))


def test_the_command_line_loads_no_table_library_for_help() -> None:
    program = "import sys, patients_like_me.cli.codes; sys.exit('polars' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
