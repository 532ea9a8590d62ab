"""Are the explanations of a run faithful? Masking, agreement of methods, randomised weights and other seeds in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.intervals import LEVEL
from patients_like_me.evaluation.writing import with_safe_cells
from patients_like_me.explanation.agreement import Agreement, agreements, refuse_wrong_scores
from patients_like_me.explanation.known_pass import refuse_what_memory_cannot_hold
from patients_like_me.explanation.masking_experiment import (
    RANDOM,
    Masking,
    MaskingResult,
    masking_experiment,
    metrics_to_mask,
)
from patients_like_me.explanation.methods import Method, Question, methods_named
from patients_like_me.explanation.robustness import randomisation_check, stability
from patients_like_me.explanation.scene import graph_model_of
from patients_like_me.files import atomic_file, write_json
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.parts import in_few_words, is_ours

if TYPE_CHECKING:
    from patients_like_me.explanation.network_pass import NetworkPass
    from patients_like_me.runs.run import Run
    from patients_like_me.tasks.task import Split
    from patients_like_me.workers import Workers

FORMAT = 1
PAPER_K = 3
SAMPLE = 100
#: What an assessment holds at once, in passes of the network: the run's, one with random weights, and importances.
_PASSES = 2.5

Report = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """What was found about the references of one run; ``attributions`` has a row per target and reference."""

    run: str
    task: str
    split: str
    references: str
    target: str
    masking: tuple[MaskingResult, ...]
    agreement: tuple[Agreement, ...]
    randomisation: tuple[Agreement, ...]
    stability: tuple[Agreement, ...]
    attributions: pl.DataFrame = field(repr=False)
    replicates: int = 500
    seed: int = 0
    #: Sentences about methods of other packages that gave no scores.
    left_out: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return all but the attributions as plain data."""
        return {
            "format": FORMAT,
            "run": self.run,
            "task": self.task,
            "split": self.split,
            "references": self.references,
            "target": self.target,
            "intervals": {
                "method": "percentile bootstrap over patients, differences within each resample",
                "level": LEVEL,
                "replicates": self.replicates,
                "seed": self.seed,
            },
            "masking": [result.as_json() for result in self.masking],
            "agreement": [found.as_json() for found in self.agreement],
            "randomisation": [found.as_json() for found in self.randomisation],
            "stability": [found.as_json() for found in self.stability],
            "left_out": list(self.left_out),
        }

    def table(self) -> pl.DataFrame:
        """Return the changes of the masking experiment, a row for each group, method, k and measure."""
        rows = [
            {
                "task": self.task,
                "group": result.group,
                "instances": result.instances,
                "method": change.method,
                "k": change.k,
                "measure": change.measure,
                "before": result.before.get(change.measure),
                "change": change.value,
                "low": change.interval.low if change.interval else None,
                "high": change.interval.high if change.interval else None,
                "minus_random": change.against_random.value if change.against_random else None,
                "minus_random_low": _bound(change.against_random, "low"),
                "minus_random_high": _bound(change.against_random, "high"),
                "p_value": change.against_random.p_value if change.against_random else None,
            }
            for result in self.masking
            for change in result.changes
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def verdict(self, k: int = PAPER_K) -> list[str]:
        """Say in sentences whether each method beats random at one k, by the paper's measure and by probabilities."""
        sentences = list(self.left_out)
        for result in self.masking:
            k = k if k in result.ks else result.ks[0]
            for measure in (result.measures[0], result.measures[-1]):
                # A fall of the metric and a change of the probabilities both mean that the removed ones mattered.
                sign = -1 if measure in result.before else 1
                for method in result.methods:
                    change = result.change(method, k, measure)
                    difference = change.against_random
                    if difference is None or difference.interval is None:
                        continue
                    interval = difference.interval
                    ends = interval.low * sign, interval.high * sign
                    beats = (
                        "they matter more than random ones"
                        if min(ends) > 0
                        else "they matter less than random ones"
                        if max(ends) < 0
                        else "they cannot be told from random ones"
                    )
                    bounds = f"{interval.low:+.4f} to {interval.high:+.4f}"
                    moved = f"{measure} changes by" if sign < 0 else "the probabilities move by"
                    size = f"{change.value or 0.0:+.4f}" if sign < 0 else f"{change.value or 0.0:.4f}"
                    sentences.append(
                        f"{result.group}: without the first {k} by {method} {moved} {size}, {difference.value:+.4f} "
                        f"against random removal (95 % interval {bounds}): {beats}"
                    )
        return sentences

    def write(self, folder: Path) -> Path:
        """Write ``faithfulness.json``, ``masking.csv``, ``attributions.parquet`` and the masking figure."""
        from patients_like_me.explanation.faithfulness_figure import draw_masking

        folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(folder / "attributions.parquet") as temporary:
            self.attributions.write_parquet(temporary)
        with atomic_file(folder / "masking.csv") as temporary:
            with_safe_cells(self.table()).write_csv(temporary)
        for number, result in enumerate(self.masking):
            draw_masking(result, folder, task=self.task, name="masking" if not number else f"masking_{number + 1}")
        write_json(folder / "faithfulness.json", self.as_json())
        return folder


def assess_faithfulness(
    runs: Sequence[Run],
    masked: Masking | None = None,
    *,
    methods: Sequence[str] = ("fast",),
    split: Split = "test",
    output: int | None = None,
    sample: int | None = SAMPLE,
    threads: int | None = None,
    shared: tuple[Path, Workers] | None = None,
    report: Report = lambda _: None,
) -> Faithfulness:
    """Assess the first run; further ones, trained with other seeds, tell how stable its top references are.

    Slow methods see a ``sample`` of the targets that have references, and are compared with the others on the same
    sample; None lets them see all. ``output`` explains one class or code for everyone. ``shared`` is a folder that
    workers see, and these workers, who compute importances and removals of the package's own network.
    """
    masked = masked or Masking()
    ks, seed = masked.ks, masked.seed
    if not ks or min(ks) < 1:
        raise PlmError(f"k={min(ks, default=0)} references cannot be removed", remedy="give 1 or more")
    run, chosen = runs[0], methods_named(methods)
    question = question_of(run, split, output=output, seed=seed, threads=threads)
    if shared is not None:
        question = replace(question, known=_shared(question, *shared))
    if not question.edges.edges:
        raise PlmError(
            f"no instance of the split '{split}' has a reference", remedy="train with a smaller tau or a larger cohort"
        )
    rows = run.rows_of(split)
    labels, subjects = run.instances.labels[rows], run.instances.frame["subject"].to_numpy()[rows]
    metrics = metrics_to_mask(run.instances.task.kind, run.instances.task.metrics)
    left_out: list[str] = []
    scores = _scores([method for method in chosen if not method.slow or sample is None], question, report, left_out)
    whole = masking_experiment(
        question, scores, labels, subjects, metrics, masked, group="all instances", progress=report
    )
    masking = [whole]
    slow = [method for method in chosen if method.slow and sample is not None]
    agreement_scores, agreement_edges = scores, question.edges
    if slow and sample is not None:
        numbers = _sampled(question, sample, seed)
        part = question.of_targets(numbers)
        places = np.concatenate([np.arange(*question.edges.row(int(n)).indices(question.edges.edges)) for n in numbers])
        partial = {name: values[places] for name, values in scores.items()}
        partial |= _scores(slow, part, report, left_out)
        group = f"sample of {len(numbers)} instances with references"
        sampled = (part, partial, labels[numbers], subjects[numbers], metrics, masked)
        masking.append(masking_experiment(*sampled, group=group, progress=report))
        agreement_scores, agreement_edges = partial, part.edges
    report("comparing rankings")
    importances = (
        scores["gradient"] if "gradient" in scores else _score(methods_named(["gradient"])[0], question, report)
    )
    others = [question_of(other, split, output=output, seed=seed, threads=threads) for other in runs[1:]]
    names = [f"run {number}" for number in range(1, len(runs) + 1)]
    return Faithfulness(
        run=run.name,
        task=run.instances.task.name,
        split=split,
        references=run.graph_settings.references,
        target=_target_in_words(run, output),
        masking=tuple(masking),
        agreement=tuple(
            agreements(agreement_edges, {k: v for k, v in agreement_scores.items() if k != RANDOM}, seed=seed)
        ),
        randomisation=tuple(randomisation_check(question, importances, seed=seed)),
        stability=tuple(stability([question, *others], names, seed=seed)) if others else (),
        attributions=attribution_table(question, scores),
        replicates=masked.replicates,
        seed=seed,
        left_out=tuple(left_out),
    )


def question_of(
    run: Run, split: Split, *, output: int | None = None, seed: int = 0, threads: int | None = None
) -> Question:
    """Ask about all instances of a split of a run."""
    model = graph_model_of(run)
    if not run.uses_graph:
        raise PlmError(
            f"the run '{run.folder}' predicts without a graph: no prediction leans on a reference",
            remedy="give a run of another strategy than lm_only",
        )
    graph, evaluated = run.graph_of(split), run.evaluated(split)
    if not evaluated:
        raise PlmError(f"the run has no instances in the split '{split}'", remedy="choose another split")
    targets = np.arange(len(graph) - evaluated, len(graph))
    if type(model.graph_network) is GraphNetwork:
        refuse_what_memory_cannot_hold(graph, model.graph_network, times=_PASSES)
    return Question.ask(
        model.graph_network,
        graph,
        torch.from_numpy(run.embeddings_of(split)),
        run.instances.task.kind,
        targets,
        output=output,
        seed=seed,
        threads=threads,
    )


def _shared(question: Question, folder: Path, workers: Workers) -> NetworkPass:
    """Return the pass of a question as one that workers share."""
    from patients_like_me.explanation.known_pass import KnownPass
    from patients_like_me.explanation.masking_blocks import SharedPass

    if not isinstance(question.known, KnownPass):
        raise PlmError(
            f"workers do not support the network {type(question.network).__name__}", remedy="leave out --workers"
        )
    return SharedPass.of(question.known, folder, workers)


def attribution_table(question: Question, scores: dict[str, Any]) -> pl.DataFrame:
    """Return a row per target and reference: both instance ids, the shared diagnoses, and every method's score."""
    edges, ids = question.edges, np.array(question.graph.instance_ids)
    return pl.DataFrame(
        {
            "instance_id": pl.Series(ids[edges.targets[edges.target_of_edge]].tolist(), dtype=pl.String),
            "reference_id": pl.Series(ids[edges.neighbors].tolist(), dtype=pl.String),
            "shared_diagnoses": pl.Series(question.weights.astype(np.int64)),
            "target_logit": pl.Series(question.target_logits[edges.target_of_edge]),
            **{name: pl.Series(values) for name, values in scores.items()},
        }
    )


def _score(method: Method, question: Question, report: Report) -> Any:
    report(f"scoring references by {method.name}")

    def progress(done: int, total: int) -> None:
        report(f"scoring references by {method.name}: {done:,} of {total:,}")

    return method.score(replace(question, progress=progress))


def _scores(methods: Sequence[Method], question: Question, report: Report, left_out: list[str]) -> dict[str, Any]:
    """Return the scores of methods by name; one of another package that fails is left out with a sentence."""
    scores: dict[str, Any] = {}
    for method in methods:
        try:
            found = np.asarray(_score(method, question, report))
            refuse_wrong_scores(question.edges, found, method.name)
            scores[method.name] = found
        except Exception as error:
            if is_ours(method.score):
                raise
            left_out.append(f"the method '{method.name}' of another package is left out ({in_few_words(error)})")
    if methods and not scores:
        raise PlmError("; ".join(left_out), remedy="name another method")
    return scores


def _sampled(question: Question, sample: int, seed: int) -> Any:
    with_references = np.flatnonzero(np.diff(question.edges.indptr))
    return np.sort(np.random.default_rng([seed, 6]).permutation(with_references)[:sample])


def _target_in_words(run: Run, output: int | None) -> str:
    if output is not None:
        return f"the logit of {run.label_vocabulary[output]}"
    return run.instances.task.kind.target_words


def _bound(difference: Any, side: str) -> float | None:
    return None if difference is None or difference.interval is None else getattr(difference.interval, side)
