"""Two processes that train together give what one process gives; one that is lost ends in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_backbones import SHAPES, texts_of, tiny_backbone
from two_processes import Starter, environment

from patients_like_me.errors import PlmError
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.randomness import DrawnForRows, seeded
from patients_like_me.model.ranks import SeveralRanks
from patients_like_me.runs.run import Run, load_run
from patients_like_me.runs.watching import Nobody
from patients_like_me.systems.train import train
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.launching import launched_ranks
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.state import TrainingState

pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this build of torch has no gloo, by which processes of a CPU talk",
)
Settings = Callable[..., TrainingSettings]

#: What else a training may do with a batch, spread over the strategies.
VARIANTS = {
    "vem": {"coupling": 0.5, "graph_refresh": 2, "graph": {"tau": 2, "max_neighbors": 8, "references": "cohort"}},
    "lm_only": {"accumulation": 2, "batch_size": 13},
    "end_to_end": {"store_refresh": "never", "warm_epochs": 0},
}
BACKBONES = {"encoder": {"trainable_layers": 2, "gradient_checkpointing": True}, "decoder": {"lora_dropout": 0.1}}
#: Every variant and every backbone, and one variant with both backbones; ``PLM_ALL=1`` before pytest trains all.
NAMES = ["vem-encoder", "vem-decoder", "lm_only-decoder", "end_to_end-encoder"]
if os.environ.get("PLM_ALL"):
    NAMES += ["lm_only-encoder", "end_to_end-decoder"]


class StoppedError(Exception):
    """Stands for Ctrl-C."""


class StopInSecondEpoch(Nobody):
    def batch_done(self, state: TrainingState, batches: int) -> None:
        if (state.epoch, state.batch) == (1, 2):
            raise StoppedError


@pytest.fixture(scope="module")
def small_cohort(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=40, seed=3)


@pytest.fixture(scope="module")
def settings_of(tiny_settings: Settings, tiny_folder: Path, decoder_folder: Path) -> Callable[[str], TrainingSettings]:
    folders = {"encoder": tiny_folder, "decoder": decoder_folder}

    def make(name: str) -> TrainingSettings:
        strategy, _, kind = name.partition("-")
        backbone = {"name": str(folders[kind]), **BACKBONES[kind]}
        changes = {"epochs": 2, "graph_steps": 10, "batch_size": 12, "backbone_rate": 1e-4, **VARIANTS[strategy]}
        return tiny_settings(strategy=strategy, backbone=backbone, **changes)

    return make


def alone(cohort: Path, out: Path, settings: TrainingSettings, **more: object) -> Run:
    torch.set_num_threads(1)
    cache = out.parent / "cache"
    return train(cohort, "readmission", out, settings=settings, task_settings=TaskSettings(), cache=cache, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def by_one(
    small_cohort: Path, settings_of: Callable[[str], TrainingSettings], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Run]:
    """Return a function that trains in this process, each training once."""
    folder, done = tmp_path_factory.mktemp("one"), {}

    def make(name: str) -> Run:
        if name not in done:
            done[name] = alone(small_cohort, folder / name, settings_of(name))
        return done[name]

    return make


@pytest.fixture(scope="module")
def starter() -> Iterator[Starter]:
    with Starter() as found:
        yield found


@pytest.fixture(scope="module")
def by_two(
    starter: Starter,
    small_cohort: Path,
    settings_of: Callable[[str], TrainingSettings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Let two processes train everything, and finish what one process has begun; return the folder of the runs."""
    folder = tmp_path_factory.mktemp("two")
    with pytest.raises(StoppedError):
        alone(small_cohort, folder / NAMES[0], settings_of(NAMES[0]), watcher=StopInSecondEpoch(), save_every=0.0)
    trainings = [
        {
            "cohort": str(small_cohort),
            "task": "readmission",
            "out": str(folder / name),
            "cache": str(folder / "cache"),
            "settings": settings_of(name).model_dump(mode="json"),
        }
        for name in NAMES
    ]
    (folder / "trainings.json").write_text(json.dumps(trainings))
    for ended in starter.two("train_all", folder / "trainings.json"):
        assert ended.code == 0, ended.said
    return folder


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    files = sorted((run.folder / "model").glob("*.safetensors"))
    return {f"{file.stem} {name}": value for file in files for name, value in load_file(file).items()}


def assert_equal(run: Run, expected: Run) -> None:
    found, wanted = weights_of(run), weights_of(expected)
    assert found.keys() == wanted.keys()
    # A softmax does not see key biases: their gradient is rounding noise, which AdamW scales up to whole steps.
    seen = [name for name in wanted if not name.endswith("key.bias")]
    assert len(seen) > len(wanted) * 0.9
    assert {name: float((found[name] - wanted[name]).abs().max()) for name in seen} == pytest.approx(
        dict.fromkeys(seen, 0.0), abs=1e-4
    )
    assert run.results.scores == expected.results.scores
    assert run.results.scores_as_newcomers == expected.results.scores_as_newcomers
    assert run.results.best_epoch == expected.results.best_epoch


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_train_what_one_trains(name: str, by_two: Path, by_one: Callable[[str], Run]) -> None:
    run = load_run(by_two / name)
    assert_equal(run, by_one(name))
    assert any("trained by 2 processes" in note for note in run.results.notes)
    assert not (run.folder / "checkpoint.safetensors").exists()


def test_a_killed_process_ends_in_one_sentence_and_one_process_finishes_the_run(
    starter: Starter,
    small_cohort: Path,
    settings_of: Callable[[str], TrainingSettings],
    by_one: Callable[[str], Run],
    tmp_path: Path,
) -> None:
    settings = settings_of("vem-encoder")
    words = [f"--set={name}={json.dumps(value)}" for name, value in settings.model_dump(mode="json").items()]
    out = tmp_path / "run"
    command_line = ["train", small_cohort, "--task", "readmission", "--preset", "paper", "--out", out]
    batches = len(json.loads((by_one("vem-encoder").folder / "epochs.json").read_text())) and 6
    first, second = starter.two("plm", 1, batches, "SIGKILL", *command_line, "--cache", tmp_path / "cache", *words)
    assert (first.code, second.code) == (2, -9), first.said
    assert "one of the 2 processes of this training has ended" in " ".join(first.said.split())
    assert "Traceback" not in first.said
    assert second.said == ""
    assert (out / "checkpoint.safetensors").is_file()
    assert_equal(alone(small_cohort, out, settings), by_one("vem-encoder"))


@pytest.mark.parametrize(("rank", "name"), [(0, "SIGKILL"), (1, "SIGSTOP"), (0, "SIGTERM")])
def test_whoever_is_left_says_that_a_process_is_lost(rank: int, name: str, starter: Starter) -> None:
    ended = starter.two("add_up", rank, 5, name, seconds_to_answer=3)
    said = "".join(each.said for each in ended)
    assert said.count("plm: one of the 2 processes of this training has ended or does not answer") == 1
    assert "Traceback" not in said


def test_a_launcher_starts_the_command(
    small_cohort: Path, settings_of: Callable[[str], TrainingSettings], tmp_path: Path
) -> None:
    """Other systems are trained by one process: both processes refuse, one of them says so."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    words = ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0", "-m"]
    plm = [
        "patients_like_me",
        "train",
        small_cohort,
        "--task=readmission",
        "--system=logistic",
        "--out",
        tmp_path / "x",
    ]
    finished = subprocess.run(
        [sys.executable, "-m", *map(str, [*words, *plm])],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join(finished.stderr.split())
    assert said.count("the system 'logistic' is trained by one process, and 2 were started") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("model_type", sorted(SHAPES))
def test_rows_of_a_batch_draw_what_they_draw_in_the_whole(model_type: str) -> None:
    """With gradient checkpointing, which draws again in the backward pass."""
    backbone = tiny_backbone(model_type, gradient_checkpointing=True)
    inputs = prepare_inputs(backbone, texts_of([9, 4, 7, 12, 3]))
    rows = np.arange(5)
    backbone.train()
    if model_type in ("bert", "roberta"):
        with seeded(3), torch.no_grad():
            dropped = backbone(inputs.batch(rows))
        assert not torch.allclose(dropped, backbone.eval()(inputs.batch(rows)))
        backbone.train()
    trained = list(backbone.trained_parameters().values())
    with seeded(3):
        whole = backbone.pool(inputs.batch(rows), "float32")
        expected = torch.autograd.grad(whole.square().sum(), trained)
    found = [torch.zeros_like(value) for value in trained]
    for rank in range(2):
        first, last, _ = SeveralRanks(rank, 2, None).part_of(5)
        with seeded(3), DrawnForRows(first, last, 5):
            part = backbone.pool(inputs.batch(rows[first:last]).padded_to(14), "float32")
            for total, own in zip(found, torch.autograd.grad(part.square().sum(), trained), strict=True):
                total += own
        torch.testing.assert_close(part, whole[first:last], atol=1e-5, rtol=1e-5)
    for total, gradient in zip(found, expected, strict=True):
        torch.testing.assert_close(total, gradient, atol=1e-4, rtol=1e-4)


def test_fused_dropout_is_drawn_by_rows_or_refused() -> None:
    values = torch.arange(12.0).reshape(4, 3) + 1
    with seeded(1):
        whole, mask = torch.native_dropout(values, 0.5, True)
    with seeded(1), DrawnForRows(1, 3, 4):
        part, own = torch.native_dropout(values[1:3], 0.5, True)
    assert torch.equal(part, whole[1:3])
    assert torch.equal(own, mask[1:3])
    with DrawnForRows(1, 3, 4), pytest.raises(PlmError, match="cannot be drawn for a part of a batch"):
        torch.randn(2)


def test_every_row_of_a_batch_counts_once() -> None:
    for total in range(1, 9):
        for size in range(1, 12):
            parts = [SeveralRanks(number, size, None).part_of(total) for number in range(size)]
            counted = [row for first, _, count in parts for row in range(first, first + count)]
            assert counted == list(range(total))
            assert all(0 <= first < last <= total for first, last, _ in parts)


def test_a_wrong_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(PlmError, match="WORLD_SIZE is 'two', not a number"), launched_ranks():
        pass
