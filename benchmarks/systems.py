"""Measure what the compared systems cost: seconds per 10,000 instances and epoch, peak memory, and the featuriser.

1. **Every network over visits**, with its paper's settings, on a synthetic hospital: seconds per 10,000 training
   instances and epoch (validation included) and the number of weights. Knowledge tables (hierarchies, interactions,
   molecules) are made up over the hospital's codes, at the size of real ones. Peak memory is that of a process of its
   own per system; with ``--quick`` all share one process, and the one figure is the peak of all. GLEM and the teacher
   of LEADER read with ``minilm-2``, one layer of which is trained.
2. **Featuriser over bare torch**: an epoch of our RETAIN against the same network in a bare PyTorch loop on tensors
   that were padded beforehand, in one run, epochs alternating. Aim: at most 1.25. The same in seconds of the processor,
   for a machine that others use too.

    python benchmarks/systems.py [--quick]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _measure import close_with, machine, peak_gib

from patients_like_me.runs.watching import Nobody

SYSTEMS = (
    *("deepr", "retain", "gram", "stagenet", "adacare", "grasp", "g_bert"),
    *("gamenet", "safedrug", "micron", "molerec"),
    *("glem", "leader", "udc", "kehgcn", "graphcare"),
)
#: Fewer epochs and rounds of those that train in stages.
SHORT: dict[str, dict[str, Any]] = {
    "g_bert": {"rounds": 1, "round_epochs": 1},
    "glem": {
        "iterations": 1,
        "max_tokens": 128,
        "backbone": {"name": "minilm-2", "trainable_layers": 1},
        "graph": {"tau": 4, "max_neighbors": 32, "references": "bank"},
    },
    "leader": {"teacher_epochs": 1, "max_tokens": 128, "backbone": {"name": "minilm-2", "trainable_layers": 1}},
    "udc": {"tuning_epochs": 1, "codes": {"epochs": 5}},
}
#: Molecules of the size of small drugs, for codes of which the made-up table knows the structure.
SMILES = ("CC(=O)OC1=CC=CC=C1C(O)=O", "CCOC(=O)CN", "c1ccccc1CC(=O)NCC", "CN1C=NC2=C1C(=O)N(C)C(=O)N2C", "CCN(CC)CC")


def make_hospital(folder: Path, patients: int) -> Path:
    """Write and prepare a synthetic hospital, with made-up knowledge about its codes in ``folder/codes``."""
    from patients_like_me.codes.store import CodeStore
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.records.prepare import prepare
    from patients_like_me.records.synthetic import write_synthetic_hospital

    store = CodeStore(folder / "codes")
    write_synthetic_hospital(folder / "hospital", patients=patients, seed=0)
    cohort = Cohort.load(prepare("mimic4", folder / "hospital", folder / "cohort", store=store).folder)
    for kind, table in (("diagnosis", "ccs_multi_dx"), ("procedure", "ccs_multi_pr")):
        codes = sorted(cohort.codes[kind]["code"].unique().to_list())
        rows = [
            f"{code},{level},{group},{group}"
            for at, code in enumerate(codes)
            for level, group in ((1, f"{at // 40}.{at // 8}"), (2, f"{at // 40}"))
        ]
        (folder / "tree.csv").write_text("\n".join(["ccs,level,ancestor,name", *(rows or ["none,1,none,none"])]) + "\n")
        store.add(folder / "tree.csv", table=table)
    drugs = sorted(cohort.codes["medication"]["code"].unique().to_list())
    draw = np.random.default_rng(0)
    pairs = [f"{a},{b}" for at, a in enumerate(drugs) for b in drugs[at + 1 :] if draw.random() < 0.15]
    (folder / "pairs.csv").write_text("\n".join(["atc3_a,atc3_b", *pairs]) + "\n")
    molecules = [f"{drug},{draw.choice(SMILES)}{'C' * int(draw.integers(0, 9))}" for drug in drugs for _ in range(4)]
    (folder / "smiles.csv").write_text("\n".join(["atc3,smiles", *molecules]) + "\n")
    for name in ("pairs.csv", "smiles.csv"):
        store.add(folder / name)
    return folder


@functools.cache
def problem_for(folder: Path, task: str) -> Any:
    """Return the problem of a task over the hospital."""
    from patients_like_me.records.cohort import Cohort
    from patients_like_me.systems.problem import problem_of
    from patients_like_me.tasks.instances import build_instances
    from patients_like_me.tasks.registry import find_task

    return problem_of(build_instances(Cohort.load(folder / "cohort"), find_task(task)))


def measure_system(folder: Path, name: str) -> dict[str, float]:
    """Train one system for two epochs; return its seconds per 10,000 instances and epoch, weights and peak memory."""
    os.environ["PLM_CODES"] = str(folder / "codes")
    from patients_like_me.systems.contract import RunContext
    from patients_like_me.systems.registry import find_system

    system = find_system(name)
    problem = problem_for(folder, (system.tasks or ("drug_recommendation",))[0])
    changes = {"epochs": 2, "patience": 2, **SHORT.get(name, {})}
    fitted = system.fit(problem, RunContext(system.settings_of(None, **changes)))
    seconds = statistics.mean(float(epoch["seconds"]) for epoch in fitted.account.epochs)
    weights = sum(value.size for value in fitted.arrays.values() if value.dtype == np.float32)
    return {"seconds": seconds * 10_000 / len(problem.train), "weights": weights, "peak_gib": peak_gib()}


class ProcessorClock(Nobody):
    """Takes the processor's seconds from the beginning of a training to the end of its epoch."""

    def __init__(self) -> None:
        self.started = self.seconds = 0.0

    def begin(self) -> None:
        """Begin an epoch; it may be said several times, of which the first counts."""
        self.started = self.started or time.process_time()

    def epoch_done(self, record: dict[str, Any]) -> None:
        """End the epoch."""
        del record
        self.seconds = time.process_time() - self.started


def featuriser_ratio(folder: Path, epochs: int) -> dict[str, float]:
    """Alternate epochs of our RETAIN and of the same network on tensors prepared beforehand."""
    import torch

    from patients_like_me.systems.contract import RunContext
    from patients_like_me.systems.features import VisitFeatures, Vocabularies
    from patients_like_me.systems.retain import SYSTEM, build
    from patients_like_me.systems.visit_network import penalised

    problem = problem_for(folder, "readmission")
    settings = SYSTEM.settings_of(None, epochs=1)
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    features = VisitFeatures.of(problem.instances, vocabularies)
    targets = torch.from_numpy(problem.targets).float()
    network: Any = build(settings, {"vocabularies": vocabularies.as_json(), "outputs": problem.outputs})
    optimizer = torch.optim.Adadelta(network.parameters(), lr=settings.rate, rho=0.95)
    ours, bare = [], []
    for epoch in range(epochs + 1):
        clock = ProcessorClock()
        fitted = SYSTEM.fit(problem, RunContext(settings, watcher=clock, begin=clock.begin))
        ours.append((float(fitted.account.epochs[0]["seconds"]), clock.seconds))
        order = np.random.default_rng(epoch).permutation(len(problem.train))
        places = [order[at : at + settings.batch_size] for at in range(0, len(order), settings.batch_size)]
        batches = [(features.batch(problem.train[chosen]), targets[torch.from_numpy(chosen)]) for chosen in places]
        asked = [problem.validation[at : at + 256] for at in range(0, len(problem.validation), 256)]
        validation = [features.batch(rows) for rows in asked]
        started = time.perf_counter(), time.process_time()
        network.train()
        for visits, wanted in batches:
            optimizer.zero_grad()
            penalised(network, visits, wanted, epoch, problem.kind).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            logits = torch.cat([network(visits) for visits in validation])
        problem.judge(problem.kind.probabilities(logits.double().numpy()))
        bare.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    # The first epoch of each warms up.
    (own, own_processor), (plain, plain_processor) = (
        (min(wall for wall, _ in taken[1:]), min(processor for _, processor in taken[1:])) for taken in (ours, bare)
    )
    return {
        "retain_epoch_seconds": own,
        "bare_torch_epoch_seconds": plain,
        "featuriser_over_bare_torch": own / plain,
        "featuriser_over_bare_torch_processor": own_processor / plain_processor,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small hospital and one process: under a minute")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure_system(options.folder, options.one)))
        return
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = make_hospital(Path(scratch), patients=150 if options.quick else 4_000)
        print(f"{machine()}; synthetic hospital, {'quick' if options.quick else 'full'}", flush=True)
        print(f"{'system':10} {'s per 10,000 and epoch':>22} {'weights':>12} {'peak GiB':>9}")
        for name in SYSTEMS:
            if options.quick:
                found = measure_system(folder, name)
            else:
                words = [sys.executable, __file__, "--one", name, "--folder", str(folder)]
                answer = subprocess.run(words, capture_output=True, text=True, check=True)
                found = json.loads(answer.stdout.splitlines()[-1])
            shown = "" if options.quick else f"{found['peak_gib']:9.2f}"
            print(f"{name:10} {found['seconds']:22.1f} {int(found['weights']):12,} {shown}", flush=True)
            figures[f"{name}_seconds_per_10000"] = round(found["seconds"], 2)
            if not options.quick:
                figures[f"{name}_peak_gib"] = round(found["peak_gib"], 2)
        if options.quick:
            figures["peak_gib"] = round(peak_gib(), 2)
        ratio = featuriser_ratio(folder, epochs=4)
        found = (ratio["featuriser_over_bare_torch"], ratio["featuriser_over_bare_torch_processor"])
        print(f"RETAIN's epoch over bare torch: {found[0]:.2f}, by the processor {found[1]:.2f} (aim: at most 1.25)")
        figures |= {name: round(value, 3) for name, value in ratio.items()}
    close_with(figures)


if __name__ == "__main__":
    main()
