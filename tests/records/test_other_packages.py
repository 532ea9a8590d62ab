"""A reader and a code system of another installed package: one file each, found by entry points, driven by ``plm``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import patients_like_me
from patients_like_me.records.cohort import Cohort

MODULE = '''
"""A hospital that keeps one table with one row per stay, coded by ward letters."""

import polars as pl

from patients_like_me.codes.registry import CodeSystem
from patients_like_me.records.cohort import TIME
from patients_like_me.records.events import EventStream
from patients_like_me.records.registry import Reader, SourceRecords


def map_wards(kind, codes, store):
    known = codes.str.starts_with("w")
    return pl.DataFrame(
        {
            "codes": [[code.upper()] if right else [] for code, right in zip(codes, known)],
            "way": ["ward" if right else "unmapped" for right in known],
        },
        schema={"codes": pl.List(pl.String), "way": pl.String},
    )


CODE_SYSTEM = CodeSystem("ward", {"diagnosis": "ward"}, map_wards, target="capitals")


def read(source, settings):
    table = source.open(
        "stays", {"who": pl.String, "stay": pl.String, "came": TIME, "left": TIME, "ward": pl.String}
    )
    stays = table.collect()
    return SourceRecords(
        patients=stays.select(
            pl.col("who").alias("subject_id").unique(maintain_order=True),
        ).with_columns(pl.lit(None, pl.String).alias("sex"), pl.lit(None, TIME).alias("death_time")),
        visits=stays.select(
            pl.col("who").alias("subject_id"),
            pl.col("stay").alias("visit_id"),
            pl.col("came").alias("admission_time"),
            pl.col("left").alias("discharge_time"),
            pl.lit(50).alias("age"),
            pl.lit(False).alias("died"),
        ),
        visits_table=table,
        streams=[
            EventStream(
                "diagnosis",
                table.then(lambda frame: frame.select(pl.col("stay").alias("visit_id"), "ward", pl.lit(None).alias("time"))),
                {"ward": "ward"},
            )
        ],
        time_column_names=("came", "left"),
    )


READER = Reader("stays", "the table of stays", lambda source: source.has("stays", "who"), read)
'''
ENTRY_POINTS = """[patients_like_me.readers]
stays = stays_hospital:READER

[patients_like_me.code_systems]
ward = stays_hospital:CODE_SYSTEM
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a folder with an installed package that brings a reader and a code system."""
    folder = tmp_path / "site"
    about = folder / "stays_hospital-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "stays_hospital.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stays-hospital\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


def plm(package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    source = Path(patients_like_me.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{source}", "PLM_CODES": str(package / "codes")}
    return subprocess.run(
        [sys.executable, "-m", "patients_like_me", *words], capture_output=True, text=True, check=False, env=environment
    )


def test_another_package_adds_a_reader_and_a_code_system(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hospital"
    folder.mkdir()
    (folder / "stays.csv").write_text(
        "who,stay,came,left,ward\na,1,2020-01-01,2020-01-04,w1\na,2,2020-01-08,2020-01-09,x\nb,3,2020-02-01,2020-02-09,w2\n"
    )
    finished = plm(package, "prepare", "stays", str(folder), "--out", str(tmp_path / "cohort"))
    assert finished.returncode == 0, finished.stderr
    assert "diagnosis ward to capitals" in finished.stdout
    cohort = Cohort.load(tmp_path / "cohort")
    assert cohort.codes["diagnosis"].select("visit", "code").rows() == [(0, "W1"), (2, "W2")]
    audited = plm(package, "audit", str(tmp_path / "cohort"), "--task", "length_of_stay")
    assert audited.returncode == 0, audited.stderr


def test_an_own_table_may_name_the_system_of_another_package(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "visits.csv").write_text("subject_id,visit_id\np,v\n")
    (folder / "events.csv").write_text("visit_id,kind,code\nv,diagnosis/ward,w9\n")
    finished = plm(package, "prepare", "tables", str(folder), "--out", str(tmp_path / "cohort"))
    assert finished.returncode == 0, finished.stderr
    assert pl.read_parquet(tmp_path / "cohort" / "diagnoses.parquet")["code"].to_list() == ["W9"]


def test_an_unknown_name_is_answered_with_what_the_folder_looks_like(package: Path, tmp_path: Path) -> None:
    (tmp_path / "stays.csv").write_text("who\na\n")
    finished = plm(package, "prepare", "paper_charts", str(tmp_path), "--out", str(tmp_path / "cohort"))
    assert finished.returncode == 2
    assert "no reader 'paper_charts', but this folder looks like the table of stays; use 'stays'" in finished.stderr


def test_a_package_that_ends_python_is_named_in_one_sentence_and_stops_nothing_else(
    package: Path, tmp_path: Path
) -> None:
    (package / "stays_hospital.py").write_text("import sys; sys.exit(0)")
    (tmp_path / "visits.csv").write_text("subject_id,visit_id\np,v\n")
    (tmp_path / "events.csv").write_text("visit_id,kind,code\nv,diagnosis/own,x\n")
    finished = plm(package, "prepare", "tables", str(tmp_path), "--out", str(tmp_path / "cohort"))
    assert finished.returncode == 0, finished.stderr
    assert "flow.json" in {path.name for path in (tmp_path / "cohort").iterdir()}
    lines = [line for line in finished.stderr.splitlines() if "stays-hospital" in line]
    assert lines[0] == (
        "plm: 'stays' of the installed package 'stays-hospital' cannot be loaded (SystemExit: 0); it is left out"
    )
    assert "Warning" not in finished.stderr
    asked = plm(package, "prepare", "stays", str(tmp_path), "--out", str(tmp_path / "other"))
    assert asked.returncode == 2
    assert "(SystemExit: 0); correct or uninstall it" in asked.stderr
