"""Finished runs written by hand: a cohort on disk, and predictions that a test chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.prepare import prepare
from patients_like_me.runs.record import (
    Capabilities,
    GraphSummary,
    Results,
    RunRecord,
    SystemRecord,
    identity_of,
)
from patients_like_me.systems.registry import DEFAULT
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task
from patients_like_me.training.settings import settings_of_preset

MakeRun = Callable[..., Path]


def write_hospital(folder: Path, *, patients: int, seed: int = 0) -> Path:
    """Write own tables with age, sex, ethnicity and insurance; drugs are ATC-3 codes."""
    generator = np.random.default_rng(seed)
    folder.mkdir()
    visits = ["subject_id,visit_id,order,age,sex,ethnicity,insurance"]
    events, labels = ["visit_id,kind,code"], ["visit_id,task,value"]
    for patient in range(patients):
        age, sex = int(generator.integers(20, 90)), "FM"[int(generator.integers(2))]
        group = ["WHITE", "WHITE - RUSSIAN", "ASIAN", ""][int(generator.integers(4))]
        for number in range(int(generator.integers(1, 6))):
            visit = f"{patient}v{number}"
            visits.append(f"{patient},{visit},{number},{age},{sex},{group},Medicare")
            codes = generator.permutation(8)[:4]
            events += [f"{visit},diagnosis/own,d{code}" for code in codes]
            events += [f"{visit},medication/own,{drug}" for drug in _drugs(generator)]
            labels.append(f"{visit},readmission,{int(generator.random() < 0.3)}")
            labels.append(f"{visit},length_of_stay,{int(generator.integers(0, 12))}")
    (folder / "visits.csv").write_text("\n".join(visits) + "\n")
    (folder / "events.csv").write_text("\n".join(events) + "\n")
    (folder / "labels.csv").write_text("\n".join(labels) + "\n")
    return folder


def _drugs(generator: np.random.Generator) -> list[str]:
    known = np.array(["A01A", "B03B", "C07A", "C09C", "N02B"])
    return sorted(generator.permutation(known)[: int(generator.integers(1, 4))].tolist())


@pytest.fixture(scope="session")
def cohort_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cohort of 120 patients that these tests share."""
    folder = tmp_path_factory.mktemp("hospital")
    source = write_hospital(folder / "tables", patients=120)
    return prepare("tables", source, folder / "cohort", store=CodeStore(folder / "codes")).folder


@pytest.fixture
def make_run(cohort_folder: Path, tmp_path: Path) -> MakeRun:
    """Return a function that writes a finished run with random predictions of some skill."""

    def make(
        name: str = "run",
        task: str = "readmission",
        *,
        skill: float = 1.0,
        noise: int = 0,
        task_settings: dict[str, Any] | None = None,
        system: str = DEFAULT,
        change: Callable[[pl.DataFrame], pl.DataFrame] | None = None,
        **settings: Any,
    ) -> Path:
        cohort = Cohort.load(cohort_folder)
        chosen = find_task(task, cohort).settings(task_settings)
        instances = build_instances(cohort, find_task(task, cohort), chosen)
        rows = np.flatnonzero(instances.splits != "train")
        labels = instances.labels[rows]
        generator = np.random.default_rng([noise, 1])
        if instances.task.kind == "multiclass":
            logits = skill * np.eye(len(instances.label_vocabulary))[labels] + generator.normal(size=(len(rows), 10))
            probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            listed = [[int(label)] for label in labels]
        else:
            matrix = labels.reshape(len(rows), -1)
            logits = skill * (2 * matrix - 1) + generator.normal(size=matrix.shape)
            probabilities = 1 / (1 + np.exp(-logits))
            binary = instances.task.kind == "binary"
            listed = [[int(row[0])] if binary else row.nonzero()[0].tolist() for row in matrix]
        frame = instances.frame[rows.tolist()].join(
            cohort.patients.select("subject", "subject_id"), on="subject", how="left", maintain_order="left"
        )
        predictions = pl.DataFrame(
            {
                "instance_id": frame["instance_id"],
                "subject_id": frame["subject_id"],
                "split": frame["split"],
                "prediction_time": instances.prediction_times[rows.tolist()]["prediction_time"],
                "label": pl.Series(listed, dtype=pl.List(pl.Int64)),
                "probabilities": pl.Series(probabilities.astype("float32").tolist(), dtype=pl.List(pl.Float32)),
            }
        )
        folder = tmp_path / name
        folder.mkdir()
        base = {"strategy": "vem", "graph": {"tau": 2, "max_neighbors": 8}}
        made = settings_of_preset("quick", **{**base, **settings})
        capabilities = Capabilities(references=system == DEFAULT, newcomers=True)
        uses_graph = system == DEFAULT and made.strategy != "lm_only"
        results = Results(
            scores={},
            seconds=1.0,
            peak_gib=0.1,
            label_vocabulary=instances.label_vocabulary,
            task=instances.task.as_json(),
            instances={split: len(instances.rows_of(split)) for split in ("train", "validation", "test")},
            graph=GraphSummary(edges=0, splits={}) if uses_graph else None,
        )
        RunRecord(
            identity=identity_of(cohort, task, chosen, system, made),
            system=SystemRecord(
                title=made.strategy if system == DEFAULT else system, description=system, capabilities=capabilities
            ),
            cohort_folder=str(cohort_folder),
            environment={},
        ).finished(results).write(folder)
        (change or (lambda same: same))(predictions).write_parquet(folder / "predictions.parquet")
        return folder

    return make
