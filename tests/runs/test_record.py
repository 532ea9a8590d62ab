"""The record of a run: typed, refused with a sentence where it is damaged, old or incomplete; and free of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import patients_like_me.runs
from patients_like_me.errors import PlmError
from patients_like_me.files import sealed
from patients_like_me.runs.run import load_run
from patients_like_me.systems.train import train


@pytest.fixture(scope="module")
def run_folder(cohort_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(cohort_folder, "readmission", tmp_path_factory.mktemp("runs") / "run", system="frequency").folder


@pytest.fixture
def changed(run_folder: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    """Return a function that writes the record with a change into another folder."""

    def make(change: Callable[[dict[str, Any]], object]) -> Path:
        content = json.loads((run_folder / "run.json").read_text())
        change(content)
        (tmp_path / "run.json").write_text(json.dumps(sealed(content)))
        return tmp_path

    return make


def test_no_module_of_the_room_loads_torch() -> None:
    names = [f"patients_like_me.runs.{module.name}" for module in iter_modules(patients_like_me.runs.__path__)]
    assert len(names) > 3
    program = f"import sys, {', '.join(names)}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_asking_for_a_plain_system_loads_no_slow_library() -> None:
    slow = ("torch", "sklearn", "numba", "transformers")
    names = ("frequency", "repeat", "neighbors", "logistic", "boosting", "patients_like_me")
    program = (
        "import sys\nfrom patients_like_me.systems.registry import find_system\n"
        f"[find_system(name) for name in {names!r}]\n"
        f"print([name for name in {slow!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_run_knows_itself_without_torch(run_folder: Path) -> None:
    run = load_run(run_folder)
    assert run.is_finished
    assert run.name == "frequency"
    assert run.identity.system == "frequency"
    assert not run.uses_graph
    assert run.capabilities.newcomers
    assert len(run.instances) == sum(run.results.instances.values())
    assert run.output_labels == run.label_vocabulary[-1:]
    assert run.epoch_records() == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda record: record.update(format=2), r"has format 2, this version reads 3; train the run again"),
        (lambda record: record.pop("identity"), r"is damaged \(identity: field required\)"),
        (lambda record: record["results"].pop("scores"), r"is damaged \(results\.scores: field required\)"),
        (lambda record: record["results"].update(seconds="long"), r"is damaged \(results\.seconds: "),
        (lambda record: record.update(results=None), r"is damaged \(content: .*if and only if it is finished"),
        (lambda record: record.update(extra=1), r"is damaged \(extra: extra inputs"),
        (lambda record: record.pop("format") and record.clear(), r"is damaged"),
    ],
)
def test_a_damaged_or_old_record_ends_in_a_sentence(
    change: Callable[[dict[str, Any]], object], sentence: str, changed: Callable[..., Path]
) -> None:
    with pytest.raises(PlmError, match=sentence):
        load_run(changed(change))


def test_text_that_is_not_json_and_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlmError, match=r"is not a run folder .*plm train"):
        load_run(tmp_path)
    for text in ("{", "[1]", "null"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(PlmError, match=r"not readable JSON|is damaged"):
            load_run(tmp_path)


def test_a_record_without_its_seal_is_refused(run_folder: Path, tmp_path: Path) -> None:
    content = json.loads((run_folder / "run.json").read_text())
    for name in ("seal", "digests"):
        (tmp_path / "run.json").write_text(json.dumps({key: value for key, value in content.items() if key != name}))
        with pytest.raises(PlmError, match=r"run\.json' is damaged: its content is not what was written"):
            load_run(tmp_path)


def test_an_unfinished_run_has_no_results(changed: Callable[..., Path]) -> None:
    run = load_run(changed(lambda record: record.update(status="running", results=None)))
    assert not run.is_finished
    with pytest.raises(PlmError, match=r"is not finished; run its plm train command again"):
        _ = run.results
