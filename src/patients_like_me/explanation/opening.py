"""From a run folder to the scene of a split, for every system with references."""

from __future__ import annotations

from pathlib import Path

from patients_like_me.errors import PlmError
from patients_like_me.explanation.scene import EvaluatedSplit, Scene, set_scene
from patients_like_me.runs.run import load_run
from patients_like_me.training.opened_run import open_run


def open_scene(folder: Path | str, cohort: Path | str | None = None, split: str = "test") -> Scene:
    """Open a finished run with references; a run whose references bring their outcomes has a scene of its own."""
    run = load_run(folder, cohort)
    run.require_references()
    if run.has_patient_graph:
        return set_scene(open_run(folder, cohort), split)
    from patients_like_me.explanation.reference_scene import OpenedReferences, set_reference_scene

    if split not in ("validation", "test"):
        raise PlmError(f"the split '{split}' is not explained", remedy="choose validation or test")
    evaluated: EvaluatedSplit = "validation" if split == "validation" else "test"
    if not run.evaluated(evaluated):
        raise PlmError(f"the split '{split}' of this run has no instances", remedy="choose the other split")
    return set_reference_scene(OpenedReferences.of(run), evaluated)
