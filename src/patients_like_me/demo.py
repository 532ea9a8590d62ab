"""``make demo``: the main job end to end on a small synthetic hospital, from raw files to pages to read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from patients_like_me.tasks.registry import all_tasks

FOLDER: Final = Path("demo")
PATIENTS: Final = 600
TRAINED_TASK: Final = "drug_recommendation"
#: References from the bank have known outcomes; in a small hospital few patients share eight diagnoses.
GRAPH: Final = ("--set", "graph.references=bank", "--set", "graph.tau=5")


def main() -> None:
    """Synthesize a hospital, prepare and audit a cohort, train twice, evaluate, explain three patients, report."""
    started = time.monotonic()
    _say(f"Patients-like-me: a walk through a synthetic hospital of {PATIENTS} patients (4 to 5 minutes on 2 cores).")
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    hospital, cohort = FOLDER / "hospital", FOLDER / "cohort"
    alone, together = FOLDER / "runs" / "lm_only", FOLDER / "runs" / "vem"
    _plm("synthesize", "--patients", PATIENTS, "--seed", 1, "--out", hospital)
    _plm("prepare", "mimic4", hospital, "--out", cohort)
    for task in all_tasks():
        _plm("audit", cohort, "--task", task)
    for task in all_tasks():
        _plm("show", cohort, "--task", task)
    for run in (alone, together):
        words = ("--task", TRAINED_TASK, "--strategy", run.name, "--preset", "quick", *GRAPH)
        _plm("train", cohort, *words, "--out", run)
    _plm("evaluate", together)
    _plm("compare", alone, together)
    pages = [_patient_page(together, number) for number in _three_examples(together)]
    _plm("report", together)
    _say("\n".join(_ending(time.monotonic() - started, cohort, together, pages)))


def _three_examples(run: Path) -> list[int]:
    """Return the first, a middle and the last of the report's example patients: low, middle and high risk."""
    from patients_like_me.report.run_sections.examples import examples_of_run

    found = examples_of_run(run)
    return [found[0], found[len(found) // 2], found[-1]]


def _patient_page(run: Path, example: int) -> Path:
    _plm("explain", run, "--example", example)
    return run / "explanations" / f"test-{example}.html"


def _ending(seconds: float, cohort: Path, run: Path, pages: Sequence[Path]) -> list[str]:
    """Return the last lines: what to open, in which order."""
    return [
        f"Done in {seconds:.0f} seconds. Open in a browser:",
        f"  {run / 'report.html'}   the whole run on one page",
        *(f"  {page}   one patient and the references behind the prediction" for page in pages),
        f"  {cohort / 'audit' / f'{TRAINED_TASK}.html'}   the leakage audit",
        f"  {cohort / 'flow.svg'}   from the source to the cohort",
        f"Tables and figures: {run / 'evaluation'}. Model card: {run / 'README.md'}.",
        "Today's list, what-if and new patients to click through: run 'make serve' and open the address it prints",
        "(on this machine, http://127.0.0.1:8765).",
        "The hospital is made up, so no claim about accuracy rests on it.",
    ]


def _plm(*words: object) -> None:
    """Run a command as a user would, and stop at the first that fails."""
    written = [str(word) for word in words]
    _say(f"$ plm {' '.join(written)}")
    finished = subprocess.run([sys.executable, "-m", "patients_like_me", *written], check=False)  # noqa: S603
    if finished.returncode:
        sys.exit(finished.returncode)


def _say(line: str) -> None:
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
