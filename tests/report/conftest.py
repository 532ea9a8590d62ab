"""A hospital whose names, ids and columns hold everything that must never reach a page by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from patients_like_me.codes.store import CodeStore
from patients_like_me.records.prepare import prepare
from patients_like_me.systems.train import train
from patients_like_me.tasks.task import TaskSettings
from patients_like_me.training.settings import TrainingSettings

HOSTILE_NAME = "<script>alert('name')</script> & \"quotes\" | `code` \x1b[31m {{ 7*7 }} ]]> -->"
ETHNICITY, RELIGION = "SECRET-ETHNICITY", "SECRET-RELIGION"


@dataclass(frozen=True)
class HostileHospital:
    """The run, and what must not be seen."""

    run: Path
    subjects: tuple[str, ...]
    visits: tuple[str, ...]
    dates: tuple[str, ...]


@pytest.fixture(scope="session")
def hostile_hospital(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: Callable[..., TrainingSettings]
) -> HostileHospital:
    """Train a tiny run on a hospital with dates, high ages, hostile ids and hostile names of codes."""
    generator = np.random.default_rng(3)
    folder = tmp_path_factory.mktemp("hostile")
    tables = folder / "tables"
    tables.mkdir()
    codes = [f"dx{number}" for number in range(10)] + ["<img src=x onerror=alert(1)>"]
    visits = ["subject_id,visit_id,admission_time,discharge_time,sex,age,ethnicity,religion"]
    events, subjects, ids, dates = ["visit_id,kind,code"], [], [], set()
    for patient in range(40):
        subject = f"SUBJ<b>{patient:03}</b>"
        subjects.append(subject)
        cluster = generator.permutation(codes)[:7]
        day = np.datetime64("2151-02-03T10:30:00") + np.timedelta64(int(generator.integers(0, 3000)), "D")
        for number in range(3):
            visit = f"VISIT'{patient:03}_{number}"
            ids.append(visit)
            back = "dx0" in cluster
            end = day + np.timedelta64(int(generator.integers(20, 90)), "h")
            dates |= {str(day)[:10], str(end)[:10]}
            visits.append(f"{subject},{visit},{day},{end},F,{85 + patient % 12},{ETHNICITY},{RELIGION}")
            chosen = [code for code in cluster if generator.random() < 0.9] or [cluster[0]]
            events += [f"{visit},diagnosis/own,{code}" for code in chosen]
            events.append(f"{visit},medication/own,{'heparin' if back else 'insulin'}")
            day = day + np.timedelta64(5 if back else 40, "D")
    names = ["kind,code,name"] + [
        f'diagnosis,{code},"{HOSTILE_NAME.replace(chr(34), chr(34) * 2)} {number}"' for number, code in enumerate(codes)
    ]
    (tables / "visits.csv").write_text("\n".join(visits) + "\n")
    (tables / "events.csv").write_text("\n".join(events) + "\n")
    (tables / "names.csv").write_text("\n".join(names) + "\n")
    cohort = prepare("tables", tables, folder / "cohort", store=CodeStore(folder / "codes")).folder
    torch.set_num_threads(1)
    settings = tiny_settings(graph={"tau": 3, "max_neighbors": 12, "references": "bank"}, epochs=2)
    run = folder / "run"
    train(cohort, "readmission", run, settings=settings, task_settings=TaskSettings(), cache=folder / "cache")
    return HostileHospital(run, tuple(subjects), tuple(ids), tuple(sorted(dates)))
