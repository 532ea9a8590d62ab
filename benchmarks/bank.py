"""Measure a bank that grows, and kill the extension at random moments: the old bank or the new one must be left.

1. **Cost**: seconds to add a cohort to the bank of a run of the system ``references``, and to open the run before and
   after it.
2. **Kills**: a process of its own adds the cohort and is killed (``kill -9``) at a random moment of its work; every
   fifth time the run is opened and read meanwhile. Moments are drawn in the processor time of the extension, so that a
   busy machine does not move them: half of them over the whole of it, a quarter shortly before the switch to the
   new bank, which is near its end, and a quarter within 10 ms after it. An extension that ended before its moment came
   is counted apart, and another one is killed in its place. After each kill the bank that a reader opens (every array,
   the written predictions, and every tenth time the predictions of new patients) must be, to the last bit, the old one
   or the new one, and the next writer must be able to go on.

    python benchmarks/bank.py [--kills 200] [--patients 1500] [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import close_with, machine

#: A process that has loaded everything and used nothing: each extension is a fork of it, which is killed. A line names
#: the run, the cohort, the processor time after which it is killed, and the time after the switch after which it is.
SERVER = """
import os, signal, sys, time
from pathlib import Path
import polars, scipy.optimize, scipy.sparse, sklearn.metrics
import patients_like_me.systems.linear, patients_like_me.systems.references
from patients_like_me.systems.growing import add_to_bank
print("ready", flush=True)
for line in sys.stdin:
    run, later, limit, after = line.rstrip().split("|")
    pointer = Path(run) / "bank" / "current.json"
    written = pointer.stat().st_mtime_ns if pointer.exists() else 0
    spent, switched, seen, ended = 0.0, 0.0, 0.0, False
    child = os.fork()
    if not child:
        try:
            add_to_bank(Path(run), Path(later))
        finally:
            os._exit(0)
    while spent < float(limit) and not (seen and time.monotonic() - seen > float(after)):
        if os.waitpid(child, os.WNOHANG)[0]:
            ended = True
            break
        try:
            spent = int(Path(f"/proc/{child}/schedstat").read_text().split()[0]) / 1e9
        except (OSError, IndexError):
            pass
        if not seen and pointer.exists() and pointer.stat().st_mtime_ns != written:
            seen, switched = time.monotonic(), spent
        time.sleep(0.0002)
    if not ended:
        os.kill(child, signal.SIGKILL)
        ended = os.WIFEXITED(os.waitpid(child, 0)[1])
    print(spent, switched, int(ended), flush=True)
"""
SETTINGS: dict[str, Any] = {
    "own_path": ["linear"],
    "part_settings": {"linear": {"penalties": [30.0], "block_factors": []}},
    "folds": 2,
    "k": [30],
    "powers": [1.0],
    "gate_penalties": [0.1],
    "may_stay_out": False,
}


def prepared(folder: Path, name: str, patients: int, seed: int) -> Path:
    """Write a synthetic hospital and prepare its cohort."""
    from patients_like_me.records.assemble import CohortSettings
    from patients_like_me.records.prepare import prepare
    from patients_like_me.records.synthetic import write_synthetic_hospital

    write_synthetic_hospital(folder / name, patients=patients, seed=seed)
    settings = CohortSettings(negative_stays="drop")
    return prepare("mimic4", folder / name, folder / f"{name}-cohort", settings=settings).folder


def later_cohort(cohort: Path) -> Any:
    """Return a cohort whose patients are nobody of the run: synthetic hospitals count theirs from the same number."""
    import polars as pl

    from patients_like_me.records.cohort import Cohort

    found = Cohort.load(cohort)
    patients = found.patients.with_columns((pl.lit("later-") + pl.col("subject_id")).alias("subject_id"))
    visits = found.visits.with_columns((pl.lit("later-") + pl.col("visit_id")).alias("visit_id"))
    return patients, visits


def rewritten(cohort: Path) -> Path:
    """Write the tables of a cohort with ids of its own."""
    from patients_like_me.files import digest_of_file, read_json, sealed, write_json

    about = read_json(cohort / "cohort.json", what="cohort")
    for name, table in zip(("patients", "visits"), later_cohort(cohort), strict=True):
        table.write_parquet(cohort / f"{name}.parquet")
        about["digests"][f"{name}.parquet"] = digest_of_file(cohort / f"{name}.parquet")
    write_json(cohort / "cohort.json", sealed(about))
    return cohort


def opened(folder: Path, cohort: Any = None) -> dict[str, Any]:
    """Return what a reader finds who opens the run now: the bank, the written predictions, and those of a cohort."""
    from patients_like_me.runs.run import load_run
    from patients_like_me.systems.growing import growing_system
    from patients_like_me.systems.keeping import load_fitted
    from patients_like_me.systems.predictor import Predictor

    run = load_run(folder)
    bank = load_fitted(growing_system(run), run).state.bank
    found = {
        "grown": run.bank_version is not None and bool(run.bank_version.record.additions),
        "ids": np.array(bank.instance_ids),
        "people": np.array(bank.described.subjects),
        "codes": bank.described.codes.indices,
        "residuals": bank.residuals,
        "written": np.array(run.predictions()["probabilities"].to_list()),
    }
    if cohort is not None:
        found["predicted"] = np.array(Predictor.load(run).predict(cohort)["probabilities"].to_list())
    return found


def state_of(seen: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> str:
    """Return which bank was seen: ``old``, ``new`` or ``mixture``."""
    for name, known in (("old", old), ("new", new)):
        if all(np.array_equal(value, known[part]) for part, value in seen.items()):
            return name
    return "mixture"


class Extensions:
    """Extensions of a bank in processes of their own, each killed after some seconds of its processor time."""

    def __init__(self, run: Path, later: Path) -> None:
        self.words = f"{run}|{later}"
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.answer()

    def answer(self) -> str:
        """Wait for the server's next line."""
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def begin(self, seconds: float, after: float = 3600.0) -> None:
        """Start an extension that is killed after some seconds of processor time, or some seconds after the switch."""
        assert self.server.stdin is not None
        self.server.stdin.write(f"{self.words}|{seconds}|{after}\n")
        self.server.stdin.flush()

    def close(self) -> None:
        """End the server."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()


def drop_everything(run: Path) -> None:
    """Take all additions out of the bank."""
    from patients_like_me.runs.bank_versions import read_version
    from patients_like_me.systems.growing import drop_from_bank

    version = read_version(run)
    if version is not None and version.record.additions:
        drop_from_bank(run, [each.number for each in version.record.additions])


def main() -> None:
    """Measure, kill, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--patients", type=int, default=1500)
    parser.add_argument("--quick", action="store_true", help="5 kills and 200 patients")
    given = parser.parse_args()
    kills, patients = (5, 200) if given.quick else (given.kills, given.patients)

    from patients_like_me.records.cohort import Cohort
    from patients_like_me.systems.growing import add_to_bank
    from patients_like_me.systems.train import train

    print(f"{machine()}; {patients:,} patients")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        cohort = prepared(folder, "first", patients, seed=0)
        later = rewritten(prepared(folder, "later", max(patients // 3, 60), seed=1))
        today = Cohort.load(prepared(folder, "today", 20, seed=2))
        run = folder / "run"
        train(cohort, "readmission", run, system="references", settings=SETTINGS)
        started = time.perf_counter()
        old = opened(run, today)
        opening = time.perf_counter() - started
        started = time.perf_counter()
        change = add_to_bank(run, later)
        adding = time.perf_counter() - started
        started = time.perf_counter()
        new = opened(run, today)
        reopening = time.perf_counter() - started
        assert not np.array_equal(old["predicted"], new["predicted"]), "the addition must be seen in predictions"
        drop_everything(run)
        print(f"adding {change.after - change.before:,} to {change.before:,} references: {adding:.2f} s")
        print(f"opening and predicting 20 patients: {opening:.2f} s before, {reopening:.2f} s after")

        chance = np.random.default_rng(0)
        left = {"old": 0, "new": 0, "mixture": 0}
        reads = {"old": 0, "new": 0, "mixture": 0}
        extensions = Extensions(run, later)
        extensions.begin(3600.0)
        spent, switched, _ = (float(word) for word in extensions.answer().split())
        print(f"an extension takes {spent:.2f} s of processor time and switches after {switched:.2f} s", flush=True)
        drop_everything(run)
        done = ended = 0
        while done < kills:
            moments = (chance.uniform(0.0, spent), chance.uniform(0.9 * switched, switched), 3600.0)
            kind = (0, 1, 0, 2)[(done + ended) % 4]
            extensions.begin(float(moments[kind]), float(chance.uniform(0.0, 0.01)) if kind == 2 else 3600.0)
            if done % 5 == 0:
                reads[state_of(opened(run), old, new)] += 1
            was_killed = extensions.answer().endswith(" 0")
            seen = state_of(opened(run, today if done % 10 == 0 else None), old, new)
            if was_killed:
                left[seen] += 1
            else:
                assert seen == "new", "an extension that ended leaves the new bank"
            done, ended = done + was_killed, ended + (not was_killed)
            if seen == "new":
                drop_everything(run)
            if was_killed and done % 20 == 0:
                print(f"{done} kills: {left}, read meanwhile {reads}; {ended} ended before", flush=True)
        extensions.close()
        add_to_bank(run, later)
        went_on = state_of(opened(run, today), old, new) == "new"
    close_with(
        {
            "kills": kills,
            "ended_before": ended,
            "left_old": left["old"],
            "left_new": left["new"],
            "mixtures": left["mixture"] + reads["mixture"],
            "reads_meanwhile": sum(reads.values()),
            "went_on": went_on,
            "references": change.before,
            "added": change.after - change.before,
            "add_seconds": round(adding, 3),
            "open_seconds": round(opening, 3),
            "reopen_seconds": round(reopening, 3),
        }
    )


if __name__ == "__main__":
    main()
