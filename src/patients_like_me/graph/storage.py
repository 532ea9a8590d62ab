"""A graph as a folder: plain arrays that are mapped into memory, a Parquet table of the nodes, and JSON.

======================  ===========================================================================
file                    content
======================  ===========================================================================
``graph.json``          format, settings, counts, hash of the cohort, SHA-256 of every other file
``indptr.npy``          int64, where the row of each node begins
``neighbors.npy``       int32, sorted inside a row
``weights.npy``         uint8 or uint16, shared diagnoses
``set_indptr.npy``      int64, where the diagnosis set of each node begins
``set_codes.npy``       int32, numbers in the vocabulary, sorted inside a set
``nodes.parquet``       instance_id, patient (a number), split (if the instances have one); sex and age where the
                        graph compares them
``vocabulary.parquet``  code
======================  ===========================================================================

No file holds code: nothing is unpickled.
"""

from __future__ import annotations

import io
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_folder, read_json, sha256_of_file, write_json
from patients_like_me.graph.node_sets import check_sets, rounds_of
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

FORMAT: Final = "patients-like-me graph 1"
ARRAYS: Final = {
    "indptr": ("int64",),
    "neighbors": ("int32",),
    "weights": ("uint8", "uint16"),
    "set_indptr": ("int64",),
    "set_codes": ("int32",),
}
_HEADER_BYTES = 128
_ENTRIES_AT_ONCE = 1 << 24


class ArrayWriter:
    """Write a one-dimensional ``.npy`` file whose length is known only at the end."""

    def __init__(self, path: Path, kind: npt.DTypeLike) -> None:
        self.kind = np.dtype(kind)
        self.length = 0
        self.stream: IO[bytes] = path.open("wb")
        self.stream.write(self._header())

    def append(self, values: npt.NDArray[Any]) -> None:
        """Write values after those written so far."""
        self.stream.write(np.ascontiguousarray(values, dtype=self.kind).data)
        self.length += len(values)

    def _header(self) -> bytes:
        text = io.BytesIO()
        fields = {"descr": self.kind.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(text, fields)
        if len(text.getvalue()) != _HEADER_BYTES:
            raise RuntimeError("numpy changed the length of its headers")
        return text.getvalue()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stream.seek(0)
            self.stream.write(self._header())
        self.stream.close()


def save_graph(graph: PatientGraph, folder: Path, *, replace: bool = False) -> None:
    """Write a graph as a folder."""
    with atomic_folder(folder, replace=replace) as temporary:
        for name in ("indptr", "neighbors", "weights"):
            np.save(temporary / f"{name}.npy", getattr(graph, name), allow_pickle=False)
        write_about_nodes(temporary, graph.sets, graph.settings, entries=len(graph.neighbors))


def write_about_nodes(folder: Path, sets: DiagnosisSets, settings: GraphSettings, *, entries: int) -> None:
    """Write everything but the three arrays of the edges, which must be in the folder already."""
    import polars as pl

    np.save(folder / "set_indptr.npy", sets.indptr, allow_pickle=False)
    np.save(folder / "set_codes.npy", sets.codes, allow_pickle=False)
    nodes = pl.DataFrame({"instance_id": sets.instance_ids, "patient": sets.patients})
    if sets.splits is not None:
        nodes = nodes.with_columns(pl.Series("split", sets.splits.tolist(), dtype=pl.String))
    if settings.compares_people and sets.sexes is not None and sets.ages is not None:
        nodes = nodes.with_columns(pl.Series("sex", sets.sexes), pl.Series("age", sets.ages))
    nodes.write_parquet(folder / "nodes.parquet")
    pl.DataFrame({"code": sets.vocabulary}, schema={"code": pl.String}).write_parquet(folder / "vocabulary.parquet")
    names = [*(f"{name}.npy" for name in ARRAYS), "nodes.parquet", "vocabulary.parquet"]
    write_json(
        folder / "graph.json",
        {
            "format": FORMAT,
            "settings": settings.model_dump(),
            "nodes": len(sets),
            "entries": entries,
            "edge_weight": "number of distinct diagnoses that both instances have",
            "row": "the nodes from which a node receives",
            "cohort_hash": sets.cohort_hash,
            "sha256": {name: sha256_of_file(folder / name) for name in names},
        },
    )


def load_graph(folder: Path, *, verify: bool = True) -> PatientGraph:
    """Open a saved graph; a damaged or foreign folder is refused in one sentence."""
    about = read_json(folder / "graph.json", what="graph")
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise PlmError(f"'{folder / 'graph.json'}' is not a patient graph of format '{FORMAT}'")
    try:
        settings = GraphSettings(**about["settings"])
        hashes: dict[str, str] = dict(about["sha256"])
        cohort_hash, node_count, entries = about["cohort_hash"], int(about["nodes"]), int(about["entries"])
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise _damaged(folder / "graph.json", f"{type(error).__name__}: {error}".splitlines()[0]) from None
    if verify:
        for name, expected in hashes.items():
            if not (folder / name).is_file() or sha256_of_file(folder / name) != expected:
                raise _damaged(folder / name, "its content is not the one that was saved")
    arrays = {name: _mapped(folder / f"{name}.npy", kinds) for name, kinds in ARRAYS.items()}
    sets = _node_sets(folder, arrays["set_indptr"], arrays["set_codes"], cohort_hash)
    graph = PatientGraph(sets, settings, arrays["indptr"], arrays["neighbors"], arrays["weights"])
    if len(graph) != node_count or len(sets) != node_count or len(graph.neighbors) != entries:
        raise _damaged(folder, "its parts have different lengths")
    if verify:
        try:
            check_sets(sets)
            check_graph(graph)
        except PlmError as error:
            raise _damaged(folder, error.problem) from None
    return graph


def check_graph(graph: PatientGraph) -> None:
    """Refuse a graph that contradicts itself, in words that name the node."""
    indptr, neighbors, weights = graph.indptr, graph.neighbors, graph.weights
    if len(indptr) == 0 or indptr[0] != 0 or indptr[-1] != len(neighbors) or (np.diff(indptr) < 0).any():
        raise PlmError("the rows of the graph do not fit its neighbours")
    if len(weights) != len(neighbors):
        raise PlmError(f"the graph has {len(neighbors):,} neighbours but {len(weights):,} weights")
    is_cut = graph.settings.references == "cohort" and graph.splits is not None
    rounds = rounds_of(graph.sets) if is_cut else None
    for first in range(0, len(neighbors), _ENTRIES_AT_ONCE):
        last = min(first + _ENTRIES_AT_ONCE, len(neighbors))
        part = neighbors[first:last].astype(np.int64)
        rows = np.searchsorted(indptr, np.arange(first, last), side="right") - 1
        wrong = (part < 0) | (part >= len(graph)) | (part == rows) | (weights[first:last] < graph.settings.tau)
        wrong[1:] |= (rows[1:] == rows[:-1]) & (np.diff(part) <= 0)
        if wrong.any():
            raise PlmError(f"the row of node {rows[np.argmax(wrong)]} of the graph is not a possible one")
        patients = graph.sets.patients
        if (patients[part] == patients[rows]).any():
            raise PlmError("the graph links two instances of one patient")
        if rounds is not None and (rounds[part] != rounds[rows]).any():
            raise PlmError("a path of the graph may lead from one instance of a patient to another")
        if graph.evaluated[part].any():
            raise PlmError("an evaluated instance of the graph is a neighbour of another instance")


def _mapped(path: Path, kinds: tuple[str, ...]) -> npt.NDArray[Any]:
    try:
        # Copy on write: the file is never changed, and torch takes the pages without a complaint.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except FileNotFoundError:
        raise _damaged(path, "it is missing") from None
    except (ValueError, OSError, EOFError) as error:
        raise _damaged(path, str(error).splitlines()[0] if str(error) else "it is empty") from None
    if array.ndim != 1 or str(array.dtype) not in kinds:
        raise _damaged(path, f"it holds {array.dtype} in {array.ndim} dimensions, not a list of {kinds[0]}")
    return np.asarray(array)


def _node_sets(folder: Path, indptr: npt.NDArray[Any], codes: npt.NDArray[Any], cohort_hash: str) -> DiagnosisSets:
    import polars as pl

    try:
        nodes = pl.read_parquet(folder / "nodes.parquet", glob=False)
        vocabulary = pl.read_parquet(folder / "vocabulary.parquet", glob=False)["code"].to_list()
        return DiagnosisSets(
            indptr=indptr,
            codes=codes,
            patients=nodes["patient"].to_numpy().astype(np.int32),
            instance_ids=tuple(nodes["instance_id"].to_list()),
            vocabulary=tuple(vocabulary),
            splits=nodes["split"].to_numpy().astype(str) if "split" in nodes.columns else None,
            cohort_hash=cohort_hash,
            sexes=nodes["sex"].to_numpy().astype(np.int16) if "sex" in nodes.columns else None,
            ages=nodes["age"].to_numpy().astype(np.int16) if "age" in nodes.columns else None,
        )
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _damaged(folder / "nodes.parquet", str(error).splitlines()[0]) from None


def _damaged(path: Path, reason: str) -> PlmError:
    return PlmError(f"the graph file '{path}' is damaged: {reason}", remedy="build the graph again")
