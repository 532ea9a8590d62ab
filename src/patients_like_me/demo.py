"""``make demo``: the main job end to end on a small synthetic hospital."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from patients_like_me.tasks.registry import TASKS
from patients_like_me.training.run import Run

FOLDER = Path("demo")
PATIENTS = 600
TRAINED_TASK = "drug_recommendation"


def main() -> None:
    """Synthesize a hospital, prepare and audit a cohort, print an instance of each task, and train two strategies."""
    started = time.monotonic()
    _say(f"Patients-like-me: a walk through a synthetic hospital of {PATIENTS} patients (some minutes on 2 cores).")
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    hospital, cohort = str(FOLDER / "hospital"), str(FOLDER / "cohort")
    _plm("synthesize", "--patients", str(PATIENTS), "--seed", "1", "--out", hospital)
    _plm("prepare", "mimic4", hospital, "--out", cohort)
    for task in TASKS:
        _plm("audit", cohort, "--task", task)
    for task in TASKS:
        _plm("show", cohort, "--task", task)
    runs = {strategy: str(FOLDER / "runs" / strategy) for strategy in ("lm_only", "vem")}
    for strategy, run in runs.items():
        _plm("train", cohort, "--task", TRAINED_TASK, "--strategy", strategy, "--preset", "quick", "--out", run)
    _say(f"{TRAINED_TASK}, test split, the language model alone and with the patient graph:")
    for strategy, run in runs.items():
        scores = Run.load(Path(run)).about["scores"]["test"]
        _say(f"  {strategy:8} " + ", ".join(f"{name} {value:.4f}" for name, value in scores.items()))
    _say(
        f"Done in {time.monotonic() - started:.0f} seconds. Open {cohort}/flow.svg and "
        f"{cohort}/audit/readmission.html; the runs are {' and '.join(runs.values())}, with model cards.\n"
        "The hospital is made up, so no claim about accuracy rests on it."
    )


def _plm(*words: str) -> None:
    """Run a command as a user would, and stop at the first that fails."""
    _say(f"$ plm {' '.join(words)}")
    finished = subprocess.run([sys.executable, "-m", "patients_like_me", *words], check=False)  # noqa: S603
    if finished.returncode:
        sys.exit(finished.returncode)


def _say(line: str) -> None:
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
