"""Write a synthetic hospital block by block, in bounded memory, so that nothing half-written is ever seen."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, cast

import polars as pl

from patients_like_me import __version__
from patients_like_me.files import atomic_folder, write_json
from patients_like_me.records.synthetic.calibration import SCALES
from patients_like_me.records.synthetic.contents import draw_contents
from patients_like_me.records.synthetic.courses import draw_courses
from patients_like_me.records.synthetic.settings import (
    DEFAULT_ROWS_PER_DRUG,
    NOTICE,
    PAPER_VISITS_PER_PATIENT,
    Draws,
    SyntheticHospital,
    SyntheticSummary,
)
from patients_like_me.records.synthetic.syndromes import Knowledge, load_knowledge
from patients_like_me.records.synthetic.tables import COLUMNS, Counters, block_tables
from patients_like_me.records.synthetic.timeline import draw_timeline

MODEL_VERSION = 1
PATIENTS_PER_BLOCK = 2_000
COMPRESSION_LEVEL = 1

TableProgress = Callable[[str, int, int], None]


def write_synthetic_hospital(
    folder: Path | str,
    *,
    patients: int,
    seed: int = 0,
    compress: bool = True,
    visits_per_patient: float = PAPER_VISITS_PER_PATIENT,
    prescription_rows_per_drug: float = DEFAULT_ROWS_PER_DRUG,
    incomplete_visits: float = SyntheticHospital.incomplete_visits,
    progress: TableProgress | None = None,
) -> SyntheticSummary:
    """Write the five ``hosp/`` tables of a synthetic hospital, with a note that says what they are.

    ``progress`` is called with ("patients", done, all) after every block. The same settings give the same bytes;
    a patient stays the same when more patients are asked for.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "hospital"
    >>> summary = write_synthetic_hospital(folder, patients=5, compress=False)
    >>> summary.patients, sorted(file.name for file in folder.iterdir())
    (5, ['README.txt', 'SYNTHETIC.json', 'hosp'])
    """
    settings = SyntheticHospital(
        patients=patients,
        seed=seed,
        compress=compress,
        visits_per_patient=visits_per_patient,
        prescription_rows_per_drug=prescription_rows_per_drug,
        incomplete_visits=incomplete_visits,
    )
    knowledge = load_knowledge()
    counts = dict.fromkeys(("deaths_in_hospital", "icd9_visits"), 0)
    rows = dict.fromkeys(COLUMNS, 0)
    with atomic_folder(Path(folder)) as temporary:
        (temporary / "hosp").mkdir()
        with ExitStack() as stack:
            files = {
                name: stack.enter_context(_table_file(temporary / "hosp", name, compress=compress)) for name in COLUMNS
            }
            for block, first in enumerate(range(0, patients, PATIENTS_PER_BLOCK)):
                size = min(PATIENTS_PER_BLOCK, patients - first)
                counters = Counters(visits=rows["admissions"], prescriptions=rows["prescriptions"])
                for name, table in _draw_block(knowledge, settings, block, first, size, counters, counts):
                    _append(files[name], table, with_header=block == 0)
                    rows[name] += table.height
                if progress is not None:
                    progress("patients", first + size, patients)
        summary = SyntheticSummary(
            folder=Path(folder),
            patients=rows["patients"],
            visits=rows["admissions"],
            diagnosis_rows=rows["diagnoses_icd"],
            procedure_rows=rows["procedures_icd"],
            prescription_rows=rows["prescriptions"],
            **counts,
        )
        _write_notes(temporary, settings, summary)
    return summary


def _draw_block(
    knowledge: Knowledge,
    settings: SyntheticHospital,
    block: int,
    first: int,
    size: int,
    counters: Counters,
    counts: dict[str, int],
) -> Iterator[tuple[str, pl.DataFrame]]:
    draws = Draws(settings.seed, block)
    courses = draw_courses(knowledge, settings, draws, first_patient=first, patients=size)
    contents = draw_contents(knowledge, courses, draws, SCALES)
    timeline = draw_timeline(knowledge, courses, contents, draws)
    counts["deaths_in_hospital"] += int(courses.died.sum())
    counts["icd9_visits"] += int(timeline.icd9.sum())
    yield from block_tables(knowledge, settings, draws, counters, courses, contents, timeline).items()


@contextmanager
def _table_file(folder: Path, name: str, *, compress: bool) -> Iterator[BinaryIO]:
    if not compress:
        with (folder / f"{name}.csv").open("wb") as stream:
            yield stream
        return
    # No file name and no time in the gzip header: equal settings give equal bytes.
    with (
        (folder / f"{name}.csv.gz").open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=COMPRESSION_LEVEL, mtime=0) as stream,
    ):
        yield cast(BinaryIO, stream)


def _append(stream: BinaryIO, table: pl.DataFrame, *, with_header: bool) -> None:
    text = table.write_csv(include_header=with_header, datetime_format="%Y-%m-%d %H:%M:%S", date_format="%Y-%m-%d")
    stream.write(text.encode())


def _write_notes(folder: Path, settings: SyntheticHospital, summary: SyntheticSummary) -> None:
    counts = {name: number for name, number in asdict(summary).items() if name != "folder"}
    write_json(
        folder / "SYNTHETIC.json",
        {
            "synthetic": True,
            "notice": NOTICE,
            "generator": {"package": "patients-like-me", "version": __version__, "model": MODEL_VERSION},
            "settings": asdict(settings),
            "counts": counts,
        },
    )
    lines = [
        NOTICE,
        "",
        "The tables in hosp/ have the names, columns and text forms of MIMIC-IV 2.2. They hold no real person.",
        "ICD and drug names are real words of medicine; NDC and GSN are left blank.",
        "",
        f"Seed {settings.seed}, {summary.patients} patients, {summary.visits} visits.",
        "All settings and counts are in SYNTHETIC.json; the model is described in docs/synthetic-hospital.md",
        "of the project Patients-like-me.",
        "",
    ]
    (folder / "README.txt").write_text("\n".join(lines), encoding="utf-8")
