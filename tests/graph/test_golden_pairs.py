"""Pairs of patients of the MIMIC demos that share at least k CCS diagnoses, against the counts published with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from graph.plain_product import plain_edges, stored_edges

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.edge_weights import overlaps_of
from patients_like_me.tasks.diagnosis_sets import DiagnosisSets

GOLDEN = {
    "mimic3": {1: 3983, 3: 1786, 5: 582, 8: 108, 10: 30},
    "mimic4": {1: 4409, 3: 3133, 5: 1988, 8: 1065, 10: 732},
}


def patients_of(shared_data: Path, name: str) -> DiagnosisSets:
    """Read the CCS diagnoses of every patient over all visits."""

    def table(path: str) -> pl.DataFrame:
        return pl.read_csv(shared_data / path, infer_schema=False)

    maps = {
        version: table(f"codes/icd{version}cm_to_ccs.csv.gz").rename({f"icd{version}cm": "icd_code"})
        for version in ("9", "10")
    }
    if name == "mimic3":
        rows = table("mimic3_demo/DIAGNOSES_ICD.csv.gz").rename({"icd9_code": "icd_code"})
        rows = rows.with_columns(icd_version=pl.lit("9"))
    else:
        rows = table("mimic4_demo/hosp/diagnoses_icd.csv")
    mapped = pl.concat(
        rows.filter(pl.col("icd_version") == version).join(codes, on="icd_code").select("subject_id", "ccs")
        for version, codes in maps.items()
    )
    grouped = mapped.group_by("subject_id").agg(pl.col("ccs").unique()).sort("subject_id")
    return DiagnosisSets.from_lists(grouped["ccs"].to_list(), patients=list(range(grouped.height)))


@pytest.fixture(scope="module", params=list(GOLDEN))
def demo(request: pytest.FixtureRequest, shared_data: Path) -> tuple[DiagnosisSets, dict[int, int]]:
    return patients_of(shared_data, request.param), GOLDEN[request.param]


def test_pairs_that_share_at_least_k_diagnoses(demo: tuple[DiagnosisSets, dict[int, int]]) -> None:
    sets, golden = demo
    overlaps = overlaps_of(sets)
    assert len(sets) == 100
    assert overlaps.pairs.sum() == 4950
    for tau, pairs in golden.items():
        assert build_graph(sets, GraphSettings(tau=tau)).edges == pairs
        assert overlaps.edges_at(tau) == pairs


@pytest.mark.parametrize("limit", [None, 5])
def test_demo_graphs_equal_the_plain_product(demo: tuple[DiagnosisSets, dict[int, int]], limit: int | None) -> None:
    chosen = GraphSettings(tau=3, max_neighbors=limit)
    graph = build_graph(demo[0], chosen)
    assert stored_edges(graph) == plain_edges(demo[0], chosen)
    assert np.all(graph.weights >= 3)
