"""There is one way to embed: the stored bank, predictions of newcomers and what-if agree, in any precision."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from patients_like_me.explanation.scene import graph_model_of
from patients_like_me.model import devices
from patients_like_me.runs.run import load_run
from patients_like_me.systems.predictor import Predictor
from patients_like_me.systems.train import train
from patients_like_me.training.settings import TrainingSettings


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
@pytest.mark.parametrize("cached", [True, False])
def test_the_stored_bank_is_what_prediction_embeds(
    precision: str,
    tolerance: float,
    cached: bool,
    cohort_folder: Path,
    tiny_settings: Callable[..., TrainingSettings],
    tmp_path: Path,
) -> None:
    settings = tiny_settings(strategy="lm_only", epochs=1, precision=precision, device="cpu")
    cache = tmp_path / "cache" if cached else None
    run = train(cohort_folder, "readmission", tmp_path / "run", settings=settings, cache=cache)
    opened = load_run(run.folder)
    rows = opened.rows_of("train")
    trained = graph_model_of(opened)
    again = trained.embed(opened.instances, rows.tolist())
    assert (again - torch.from_numpy(opened.graph_bank.embeddings)).abs().max() < tolerance
    # Prediction and explanation share one model, and with it the bank.
    assert Predictor.load(opened).fitted.state is trained
    assert trained.bank is opened.graph_bank  # type: ignore[attr-defined]


def test_device_and_precision_of_the_settings_are_used_by_training_and_prediction_alike(
    cohort_folder: Path,
    tiny_settings: Callable[..., TrainingSettings],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from patients_like_me.model import backbone

    seen: list[tuple[str, str]] = []
    honest = devices.autocast

    def watched(device: torch.device, precision: devices.Precision) -> object:
        seen.append((device.type, precision))
        return honest(device, precision)

    monkeypatch.setattr(backbone, "autocast", watched)
    placed: list[str] = []
    monkeypatch.setattr(devices, "best_device", lambda: placed.append("asked") or torch.device("cpu"))
    settings = tiny_settings(strategy="lm_only", epochs=1, precision="bfloat16", device="auto")
    run = train(cohort_folder, "readmission", tmp_path / "run", settings=settings)
    in_training, asked = set(seen), len(placed)
    seen.clear()
    opened = load_run(run.folder)
    graph_model_of(opened).embed(opened.instances, [0])
    assert set(seen) == in_training == {("cpu", "bfloat16")}
    assert asked == 1
    assert len(placed) == 2
