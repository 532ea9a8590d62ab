from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from graph.plain_product import diagnosis_sets, graph_settings, random_sets, stored_edges
from hypothesis import given, settings

from patients_like_me.errors import PlmError
from patients_like_me.graph import GraphSettings, PatientGraph, build_graph
from patients_like_me.graph.storage import ArrayWriter
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

FILES = ["indptr.npy", "neighbors.npy", "weights.npy", "set_indptr.npy", "set_codes.npy", "nodes.parquet"]


@given(sets=diagnosis_sets(splits=True), chosen=graph_settings)
@settings(deadline=None, max_examples=20)
def test_a_loaded_graph_is_the_saved_one(
    tmp_path_factory: pytest.TempPathFactory, sets: DiagnosisSets, chosen: GraphSettings
) -> None:
    graph = build_graph(sets, chosen)
    folder = tmp_path_factory.mktemp("graphs") / "graph"
    graph.save(folder)
    for verify in (True, False):
        loaded = PatientGraph.load(folder, verify=verify)
        assert stored_edges(loaded) == stored_edges(graph)
        assert (loaded.settings, loaded.cohort_hash) == (graph.settings, "made up")
        assert (loaded.instance_ids, loaded.sets.vocabulary) == (graph.instance_ids, graph.sets.vocabulary)
        assert loaded.splits is not None
        for name in ("indptr", "codes", "patients", "splits"):
            np.testing.assert_array_equal(getattr(loaded.sets, name), getattr(graph.sets, name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    build_graph(random_sets(1, 60, patients=30), GraphSettings(tau=3)).save(tmp_path / "graph")
    return tmp_path / "graph"


def test_the_edges_are_mapped_and_the_file_never_changes(folder: Path) -> None:
    before = (folder / "weights.npy").read_bytes()
    graph = PatientGraph.load(folder)
    assert isinstance(graph.weights.base, np.memmap)
    graph.weights[:] = 0
    assert (folder / "weights.npy").read_bytes() == before


def test_an_existing_folder_is_replaced_only_when_asked(folder: Path) -> None:
    graph = PatientGraph.load(folder)
    with pytest.raises(PlmError, match="exists already"):
        graph.save(folder)
    build_graph(random_sets(2, 10), GraphSettings(tau=3)).save(folder, replace=True)
    assert len(PatientGraph.load(folder)) == 10


@pytest.mark.parametrize("name", [*FILES, "vocabulary.parquet"])
@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_or_cut_file_is_named(folder: Path, name: str, verify: bool) -> None:
    content = (folder / name).read_bytes()
    for damage in (None, b"", content[: len(content) // 2], b"something else entirely"):
        (folder / name).unlink(missing_ok=True)
        if damage is not None:
            (folder / name).write_bytes(damage)
        with pytest.raises(PlmError, match=r"is damaged.*build the graph again"):
            PatientGraph.load(folder, verify=verify)


@pytest.mark.parametrize("name", FILES)
def test_a_single_changed_byte_is_noticed(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) * 3 // 4] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(PlmError, match=f"{name}' is damaged: its content is not the one that was saved"):
        PatientGraph.load(folder)


def test_what_is_no_graph_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="no graph at"):
        PatientGraph.load(tmp_path / "nowhere")
    (folder / "graph.json").write_text("{", encoding="utf-8")
    with pytest.raises(PlmError, match="not readable JSON"):
        PatientGraph.load(folder)
    for foreign in ({"format": "another"}, ["a list"], {}):
        (folder / "graph.json").write_text(json.dumps(foreign), encoding="utf-8")
        with pytest.raises(PlmError, match="is not a patient graph of format"):
            PatientGraph.load(folder)


def test_settings_that_make_no_sense_are_refused(folder: Path) -> None:
    about = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    for settings_ in ({**about["settings"], "tau": 0}, {**about["settings"], "colour": "red"}, None):
        (folder / "graph.json").write_text(json.dumps({**about, "settings": settings_}), encoding="utf-8")
        with pytest.raises(PlmError, match=r"graph\.json' is damaged"):
            PatientGraph.load(folder)


@pytest.mark.parametrize(
    ("array", "value", "message"),
    [
        ("neighbors", 10_000, "not a possible one"),
        ("neighbors", -1, "not a possible one"),
        ("weights", 0, "not a possible one"),
        ("indptr", 99_999, "rows of the graph do not fit"),
        ("set_codes", 99_999, "outside of the vocabulary"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(folder: Path, array: str, value: int, message: str) -> None:
    content = np.load(folder / f"{array}.npy")
    content[len(content) // 2] = value
    np.save(folder / f"{array}.npy", content)
    about = json.loads((folder / "graph.json").read_text(encoding="utf-8"))
    about["sha256"] = {}
    (folder / "graph.json").write_text(json.dumps(about), encoding="utf-8")
    with pytest.raises(PlmError, match=message):
        PatientGraph.load(folder)


def test_a_pickle_is_not_opened(folder: Path) -> None:
    np.save(folder / "weights.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(PlmError, match=r"weights\.npy' is damaged"):
        PatientGraph.load(folder, verify=False)


def test_arrays_of_unknown_length_are_plain_npy_files(tmp_path: Path) -> None:
    with ArrayWriter(tmp_path / "array.npy", np.int32) as writer:
        writer.append(np.arange(3))
        writer.append(np.arange(0))
        writer.append(np.arange(100_000))
    array = np.load(tmp_path / "array.npy", mmap_mode="r", allow_pickle=False)
    assert array.dtype == np.int32
    np.testing.assert_array_equal(array, np.concatenate([np.arange(3), np.arange(100_000)]))
    shutil.rmtree(tmp_path)
