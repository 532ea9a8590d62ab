"""The comparison of docs/results.md: five strategies and five plain models on real public records, three tasks.

Each row is an ordinary run folder, so a stopped comparison goes on where it was, and ``plm evaluate``, ``plm compare``
and ``plm report`` work on every run. What is chosen on validation is chosen once for all rows that share it: tau by
an M-step on the embeddings of ``lm_only`` with seed 0, which is what ``two_stage`` does; thresholds by each run.

    plm prepare mimic4 mimic4_demo --out cohorts/mimic4
    python examples/diabetes130.py diabetic_data.csv.gz --patients 3000 --out tables
    plm prepare tables tables --out cohorts/diabetes
    python examples/real_records.py mimic4 cohorts/mimic4 --out results
    python examples/real_records.py diabetes cohorts/diabetes --out results

The MIMIC-IV demo has two readmissions among its test patients, which say nothing. ``--divisions 10`` trains ``vem``,
``lm_only`` and the plain models on ten divisions of the patients instead and averages over them. They have the preset's
tau, since a tau tuned in one division would have seen the test patients of another.

    python examples/real_records.py mimic4 cohorts/mimic4 --task readmission --divisions 10 --out results
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patients_like_me.graph.settings import GraphSettings
from patients_like_me.tasks.metrics import score
from patients_like_me.tasks.registry import all_tasks
from patients_like_me.tasks.task import Split

_SMALL_COHORT = {"batch_size": 8, "backbone_rate": 3e-4, "epochs": 5, "patience": 2}
#: Settings beside the preset ``quick``, the same for all strategies (see docs/results.md for how they were chosen).
DATASETS: dict[str, dict[str, Any]] = {
    "mimic4": {
        "training": _SMALL_COHORT,
        "task": {},
        "taus": (2, 4, 8, 12),
    },
    # The usual clinical question, which twice as many visits answer: back within 30 days of a discharge alive?
    "mimic4-30-days": {
        "training": _SMALL_COHORT,
        "task": {"clock": "discharge", "population": "discharged_alive", "window_days": 30},
        "taus": (2, 4, 8, 12),
    },
    "diabetes": {
        "training": {
            "batch_size": 8,
            "backbone_rate": 3e-4,
            "epochs": 2,
            "max_tokens": 96,
            "graph_steps": 100,
            "graph_patience": 5,
        },
        "drug_recommendation": {"epochs": 3, "max_tokens": 128},
        "task": {"window_days": 30},
        "taus": (1, 2, 3, 4),
    },
}
SEEDS = {"vem": 3, "lm_only": 3, "two_stage": 3, "alternating": 1, "end_to_end": 1}
PLAIN = ("frequency", "repeat", "neighbors", "logistic", "boosting")
SHOWN = {
    "readmission": ("auprc", "auroc"),
    "length_of_stay": ("auroc_weighted", "auprc_macro", "f1_macro"),
    "drug_recommendation": ("auprc_per_instance", "f1_per_instance@0.2", "f1_per_instance@tuned", "auroc_per_code"),
}


@dataclass(frozen=True)
class Row:
    """One run to train: a strategy or a plain model, on one task with one seed."""

    dataset: str
    cohort: Path
    task: str
    name: str
    seed: int
    tau: int
    out: Path
    division: int = 0

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        divided = f"-division{self.division}" if self.division else ""
        return self.out / self.dataset / self.task / f"{self.name}-tau{self.tau}-seed{self.seed}{divided}"


def train_row(row: Row) -> dict[str, Any]:
    """Train one run on one thread and return its scores of validation and test."""
    import torch

    torch.set_num_threads(1)
    from patients_like_me.runs.run import default_cache
    from patients_like_me.systems.registry import find_system
    from patients_like_me.systems.train import train
    from patients_like_me.tasks.registry import task_settings_of

    chosen = DATASETS[row.dataset]
    task_settings = task_settings_of(row.task, "quick", **chosen["task"], split_seed=row.division)
    name, changes = row.name, {}
    if row.name not in PLAIN:
        graph = {"tau": row.tau} if row.tau else {}
        training = {**chosen["training"], **chosen.get(row.task, {})}
        name, changes = "patients_like_me", {"strategy": row.name, "seed": row.seed, "graph": graph, **training}
    run = train(
        row.cohort,
        row.task,
        row.folder,
        system=name,
        settings=find_system(name).settings_of("quick", **changes),
        task_settings=task_settings,
        cache=default_cache(),
    )
    return {"scores": run.results.scores, "seconds": run.results.seconds}


def train_all(rows: list[Row], workers: int) -> dict[Row, dict[str, Any]]:
    """Train many runs, some at a time, and say how each went."""
    started, results = time.monotonic(), {}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for row, result in zip(rows, pool.map(train_row, rows), strict=True):
            results[row] = result
            first = next(iter(result["scores"]["validation"].items()))
            sys.stdout.write(
                f"{len(results)} of {len(rows)}, {time.monotonic() - started:.0f} s: {row.task} {row.name} "
                f"tau {row.tau} seed {row.seed} division {row.division}: "
                f"validation {first[0]} {_shown(first[1])}, {result['seconds']:.0f} s\n"
            )
            sys.stdout.flush()
    return results


def tau_scores(row: Row) -> dict[int, float]:
    """Return the first metric on validation for every tau: an M-step each, on the embeddings of an ``lm_only`` run."""
    import torch

    torch.set_num_threads(1)
    from patients_like_me.graph.build import build_graph
    from patients_like_me.model.heads import loss_per_instance
    from patients_like_me.training.data import predicted
    from patients_like_me.training.graphs import graphs_of_splits
    from patients_like_me.training.opened_run import open_run
    from patients_like_me.training.vem import EmProblem, m_step

    scores = {}
    for tau in DATASETS[row.dataset]["taus"]:
        opened = open_run(row.folder)
        kind, model = opened.task.kind, opened.model
        graph = build_graph(opened.instances.diagnosis_sets, opened.settings.graph.model_copy(update={"tau": tau}))
        used: tuple[Split, ...] = ("train", "validation")
        splits = {split: opened.rows_of(split) for split in used}
        graphs = graphs_of_splits(graph, splits)
        labels = {split: torch.from_numpy(opened.instances.labels[rows]) for split, rows in splits.items()}
        own = opened.embeddings_of("validation")

        @torch.no_grad()
        def answer(model: Any = model, own: Any = own, graphs: Any = graphs) -> Any:
            return model.graph_logits(own, graphs["validation"].propagation)

        def validate(answer: Any = answer, kind: Any = kind, labels: Any = labels) -> float:
            return -float(loss_per_instance(kind, answer(), labels["validation"]).mean())

        problem = EmProblem(model, graphs["train"].propagation, labels["train"], kind, opened.settings)
        m_step(problem, opened.bank_embeddings, validate, epoch=0)
        metrics = score(opened.task.metrics[:1], labels["validation"].numpy(), predicted(kind, answer()))
        scores[tau] = _first(metrics)
    return scores


def table(rows: list[Row], seconds: dict[Path, float]) -> str:
    """Compare the runs of one task as Markdown: mean ± deviation over seeds, interval over patients, difference."""
    from patients_like_me.evaluation.compare import compare
    from patients_like_me.evaluation.comparison_files import counted_in_words

    order = list(SEEDS) + list(PLAIN)
    folders = [row.folder for row in sorted(rows, key=lambda row: (order.index(row.name), row.seed, row.division))]
    divided = len({row.division for row in rows}) > 1
    comparison = compare(folders, across_splits=divided)
    names = [name for name in SHOWN[rows[0].task] if name in comparison.names]
    lines = [
        counted_in_words(comparison),
        "",
        f"| row | {' | '.join(names)} | {names[0]} against {comparison.rows[0].name} | seconds |",
        f"|{' --- |' * (len(names) + 3)}",
    ]
    for row in comparison.rows:
        cells = {cell.measure.name: cell for cell in row.cells}
        shown = []
        for name in names:
            cell = cells[name]
            spread = "" if cell.spread is None or cell.spread.deviation is None else f" ± {cell.spread.deviation:.3f}"
            limits = "" if cell.interval is None else f" ({cell.interval.low:.3f} to {cell.interval.high:.3f})"
            shown.append(f"{_shown(cell.value)}{spread}{limits}")
        found = cells[names[0]].difference
        between = found.interval if found is not None else None
        difference = (
            ""
            if found is None or between is None
            else f"{found.value:+.3f} ({between.low:+.3f} to {between.high:+.3f})"
        )
        times = [seconds[folder] for folder in row.folders]
        lines.append(f"| {row.name} | {' | '.join(shown)} | {difference} | {sum(times) / len(times):.0f} |")
    return "\n".join(lines)


def _has_no_tau(name: str) -> bool:
    return name == "lm_only" or name in PLAIN


def _first(scores: dict[str, float | None]) -> float:
    value = next(iter(scores.values()))
    return -1.0 if value is None else value


def _shown(value: float | None) -> str:
    return "not available" if value is None else f"{value:.3f}"


def tuned_rows(place: tuple[str, Path], tasks: list[str], out: Path, workers: int) -> tuple[list[Row], str]:
    """Return the rows of the comparison on one division, after choosing tau for each task, and what was chosen."""
    plan = {**SEEDS, **dict.fromkeys(PLAIN, 1)}
    alone = [Row(*place, task, name, 0, 0, out) for task in tasks for name in plan if _has_no_tau(name)]
    train_all(alone, workers)
    choices = {row.task: tau_scores(row) for row in alone if row.name == "lm_only"}
    taus = {task: max(tried, key=lambda tau: (tried[tau], -tau)) for task, tried in choices.items()}
    rows = [
        Row(*place, task, name, seed, 0 if _has_no_tau(name) else taus[task], out)
        for seed in range(max(SEEDS.values()))
        for task in tasks
        for name, seeds in plan.items()
        if seed < seeds
    ]
    return rows, f"tau {json.dumps(taus)}, on validation: {json.dumps(choices)}"


def divided_rows(place: tuple[str, Path], tasks: list[str], out: Path, divisions: int) -> tuple[list[Row], str]:
    """Return the rows of the comparison over several divisions: nothing is tuned across them."""
    tau = GraphSettings().tau
    rows = [
        Row(*place, task, name, 0, 0 if _has_no_tau(name) else tau, out, division)
        for task in tasks
        for division in range(divisions)
        for name in ("vem", "lm_only", *PLAIN)
    ]
    return rows, f"tau {tau}, the preset's"


def main() -> None:
    """Tune, train and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=list(DATASETS))
    parser.add_argument("cohort", type=Path, help="the cohort folder")
    parser.add_argument("--out", type=Path, required=True, help="the folder for runs and tables")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--task", action="append", choices=list(all_tasks()), help="only these tasks; repeatable")
    parser.add_argument("--divisions", type=int, default=1, help="average over this many divisions of the patients")
    arguments = parser.parse_args()
    tasks = arguments.task or list(all_tasks())
    place = (arguments.dataset, arguments.cohort)
    if arguments.divisions > 1:
        rows, chosen = divided_rows(place, tasks, arguments.out, arguments.divisions)
    else:
        rows, chosen = tuned_rows(place, tasks, arguments.out, arguments.workers)
    sys.stdout.write(f"{chosen}\n")
    results = train_all(rows, arguments.workers)
    seconds = {row.folder: result["seconds"] for row, result in results.items()}
    parts = [f"### {task}\n\n{table([row for row in rows if row.task == task], seconds)}\n" for task in tasks]
    ending = f"-{arguments.divisions}-divisions" if arguments.divisions > 1 else ""
    target = arguments.out / f"{arguments.dataset}{ending}.md"
    target.write_text("\n".join([f"{chosen}\n", *parts]), encoding="utf-8")
    sys.stdout.write(f"{target.read_text(encoding='utf-8')}\n{target}\n")


if __name__ == "__main__":
    main()
