"""The bootstrap of a run's measures on many workers: a block is a hundred resamples of the patients.

A worker is given the run folder and the number of a block. It reads the predictions itself, and leaves the value of
every measure in every resample of its block as one file. Resamples depend on the number of patients, the seed and the
number of their block alone, so the intervals are those of one process.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.intervals import BLOCK, resample
from patients_like_me.evaluation.measures import Measure
from patients_like_me.evaluation.predictions import read_predictions
from patients_like_me.files import atomic_file, digest_of_file
from patients_like_me.runs.predictions import PREDICTIONS
from patients_like_me.runs.run import Run, load_run
from patients_like_me.tasks.forms import Floats, MetricForm
from patients_like_me.tasks.task import Split
from patients_like_me.workers import Progress, Workers, in_workers

_opening = threading.Lock()


def resampled_in_workers(
    run: Run,
    split: Split,
    measures: Sequence[Measure],
    folder: Path,
    *,
    workers: Workers,
    replicates: int,
    seed: int,
    progress: Progress | None = None,
) -> dict[str, Floats]:
    """Return the value of every measure that has a form in every resample; finished blocks in ``folder`` are used."""
    names = [measure.name for measure in measures if measure.form is not None]
    state = _state_of(run.folder)
    asked = hashlib.sha256(f"{state} {split} {seed} {replicates} {names}".encode()).hexdigest()[:24]
    place = folder.absolute() / asked
    place.mkdir(parents=True, exist_ok=True)
    parts = [
        (str(run.folder.absolute()), state, split, str(place), number, min(BLOCK, replicates - number * BLOCK), seed)
        for number in range(-(-replicates // BLOCK))
    ]
    in_workers(
        resample_measures,
        parts,
        workers=workers,
        is_done=lambda part: _part_of(place, part[4]).is_file(),
        progress=progress,
    )
    found = [_read_part(_part_of(place, part[4]), names) for part in parts]
    return {name: np.concatenate([block[name] for block in found]) for name in names}


def resample_measures(run: str, state: str, split: str, folder: str, number: int, rows: int, seed: int) -> None:
    """Compute the measures of one block of resamples and write them. What a worker runs.

    ``state`` is the digest of what the run says and predicts: a worker may live on while the run is recalibrated.
    """
    from safetensors.numpy import save_file

    with _opening:
        forms, patients = _forms_of(run, state, split)
    weights = resample(patients, number, rows, seed)
    with atomic_file(_part_of(Path(folder), number)) as temporary:
        save_file({name: np.ascontiguousarray(form(weights)) for name, form in forms.items()}, temporary)


@lru_cache(maxsize=1)
def _forms_of(folder: str, state: str, split: str) -> tuple[dict[str, MetricForm], int]:
    from patients_like_me.evaluation.evaluate import measures_of_run, thresholds_of

    run = load_run(Path(folder))
    predictions = read_predictions(run)
    if _state_of(run.folder) != state:
        raise PlmError(
            f"the run '{folder}' is not the same on a worker, or has changed meanwhile",
            remedy="evaluate it again when nothing writes into it, in a folder that all machines share",
        )
    chosen = predictions.of_split(cast(Split, split))
    measures = measures_of_run(chosen, thresholds_of(predictions), run.results.task.get("label_codes"))
    return {each.name: each.form for each in measures if each.form is not None}, chosen.number_of_patients


def _state_of(folder: Path) -> str:
    """Return a digest of what a run says, with its calibration, and of its predictions."""
    digests = digest_of_file(folder / "run.json") + digest_of_file(folder / PREDICTIONS)
    return hashlib.sha256(digests.encode()).hexdigest()


def _part_of(folder: Path, number: int) -> Path:
    return folder / f"resamples-{number:05d}.safetensors"


def _read_part(path: Path, names: Sequence[str]) -> dict[str, Floats]:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found = load_file(path)
        return {name: np.asarray(found[name], dtype=np.float64) for name in names}
    except KeyError as error:
        raise PlmError(
            f"a worker has no measure {error}: it may lack a table of interactions that this machine has",
            remedy="give all machines the same tables (PLM_CODES), or leave out --workers",
        ) from None
    except (OSError, SafetensorError) as error:
        raise PlmError(f"the part '{path}' is damaged: {error}", remedy="remove that file and run it again") from None
