from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from patients_like_me.evaluation.experiments.catalogue import EXPERIMENTS
from patients_like_me.evaluation.experiments.jobs import open_cohorts, plan_experiment
from patients_like_me.evaluation.experiments.request import Request
from patients_like_me.evaluation.experiments.results import FinishedJob
from patients_like_me.evaluation.experiments.visits import strata_by_visits
from patients_like_me.evaluation.experiments.worker import train_job
from patients_like_me.runs.run import load_run
from patients_like_me.tasks.metrics import score


def test_a_stratum_has_the_metric_of_its_own_instances(
    make_cohort: Callable[..., Path],
    make_request: Callable[..., Request],
    tiny_changes: dict[str, object],
    tmp_path: Path,
) -> None:
    torch.set_num_threads(1)
    cohort = make_cohort(patients=300, seed=3)
    (place,) = open_cohorts([cohort])
    plan = plan_experiment(
        EXPERIMENTS["visits"], [place], make_request(tmp_path, seeds=2, changes={**tiny_changes, "epochs": 1})
    )
    results = []
    for job in plan.jobs:
        train_job(job, None)
        results.append(FinishedJob(job, load_run(job.folder)))
    strata = {stratum.name: stratum for stratum in strata_by_visits(results)}
    positions = place.cohort.visits.select(pl.col("visit_id").alias("instance_id"), "position")
    for number, name in enumerate(("1", "2")):
        for seed, result in enumerate(results):
            rows = result.run.predictions().filter(pl.col("split") == "test").join(positions, on="instance_id")
            rows = rows.filter(pl.col("position") == number)
            probabilities = np.array(rows["probabilities"].to_list())
            labels = np.zeros(probabilities.shape, dtype=np.int64)
            for row, codes in enumerate(rows["label"].to_list()):
                labels[row, codes] = 1
            assert strata[name].counts.startswith(f"{rows.height} / ")
            value = strata[name].values("auprc_per_instance")[seed]
            assert value == pytest.approx(score(("auprc_per_instance",), labels, probabilities)["auprc_per_instance"])
    ends = strata["1"].interval("auprc_per_instance")
    assert ends is not None
    mean = np.mean([value for value in strata["1"].values("auprc_per_instance") if value is not None])
    assert ends[0] < mean < ends[1]
