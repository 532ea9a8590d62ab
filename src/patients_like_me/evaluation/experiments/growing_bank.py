"""What is a bank worth that grows? An own path that is not trained again, with references from where practice is now.

By years, where there are at least five: trained on the early ones, gates rehearsed on the third and fourth last with a
bank of the fourth last, a bank of the second and third last, tested on the last. By hospitals, where there are at least
six: trained in half of them; in the others half of the patients are the bank and half are the test; gates are rehearsed
in the same way on a third of the hospitals trained in. Rows: the own path as it is, its intercepts updated on the bank,
the bank grown, the same with gates fitted again to the bank (the own path stays), the bank grown with references drawn
at random, and the own path trained again with the bank.

Whoever was trained on is neither in the bank nor in the test, whoever is in the bank is not in the test, because
training again would have seen that patient, and whoever the rehearsal's own path was trained on fits no gates: a
residual from a model that saw the patient is worth nothing. The table says how many instances that leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from patients_like_me.errors import PlmError
from patients_like_me.evaluation.experiments.design import FigureFile, Findings
from patients_like_me.evaluation.experiments.figures import Panel, Point, Series, draw_panels
from patients_like_me.evaluation.experiments.measured_parts import (
    OWN_PATHS,
    differences_from,
    identity_of,
    kept_part,
    mean_difference,
    own_paths_named,
    scores_of,
    settings_of_references,
)
from patients_like_me.evaluation.experiments.result_table import Column, Number, ResultTable, TableRow
from patients_like_me.evaluation.experiments.results import METRIC_NAMES, ExperimentResults, title_of_task
from patients_like_me.evaluation.intervals import seed_spread
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.problem import only, outputs_of
from patients_like_me.systems.reference_path.correction import choose_reference_path
from patients_like_me.systems.reference_path.first_banks import bank_of_rows
from patients_like_me.systems.reference_path.model import ReferenceModel, sites_of, subject_ids_of
from patients_like_me.systems.reference_path.rehearsal import (
    HELD_OUT,
    fit_own_parts,
    problem_on,
    rehearse,
    rehearsed_model,
    times_of,
)
from patients_like_me.tasks.instances import Instances, Rows, build_instances
from patients_like_me.tasks.registry import find_task

ROWS: Final = (
    "frozen",
    "intercepts updated",
    "bank grown",
    "bank grown, gates fitted again",
    "references at random",
    "trained again",
)
#: Shares of the new bank for the curve.
SHARES: Final = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Design:
    """Which instances train, rehearse, fill the bank and test; ``words`` says how they were chosen."""

    words: str
    trained: Rows
    #: Rehearsal: what its own path was trained on, its bank, and on whom gates are fitted.
    rehearsal: tuple[Rows, Rows, Rows]
    bank: Rows
    test: Rows
    #: How many instances of rehearsal, bank and test are left out, because their patients are in a group before.
    left_out: Mapping[str, int] = field(default_factory=dict)


def summarize(results: ExperimentResults) -> Findings:
    """Make a table for each cohort and task, and a figure of the score over the size of the new bank."""
    tables: list[ResultTable] = []
    notes: list[str] = []
    figures: list[FigureFile] = []
    request = results.plan.request
    settings = settings_of_references(request)
    seeds = request.seeds or (1 if request.quick else 3)
    paths = own_paths_named(request.values or (("linear",) if request.quick else tuple(OWN_PATHS)))
    for place in results.cohorts:
        for task in results.tasks:
            found = build_instances(place.cohort, find_task(task, place.cohort), results.plan.task_settings[task])
            about = f"{title_of_task(task)}, {place.title}"
            if design_of(found, 0, None) is None:
                notes.append(f"{about}: neither five years nor six hospitals, so nothing can grow.")
                continue
            parts: dict[str, list[dict[str, Any]]] = {}
            for name, path in paths.items():
                for seed in range(seeds):
                    kept = request.out / "runs" / "growing-bank" / place.slug / task / f"{name}-seed{seed}.json"
                    wanted: Any = settings.model_copy(update={**path, "seed": seed})
                    sample = None if request.sample is None else list(request.sample)
                    identity = identity_of(found, wanted, __file__, sample=sample)
                    measured = partial(measure, found, wanted, request.sample, kept.parent)
                    parts.setdefault(name, []).append(kept_part(kept, identity, measured))
            several = len(results.cohorts) * len(results.tasks) > 1
            tables.append(_table(found, parts, about, results.label(len(tables))))
            ending = f"-{place.slug}-{task}" if several else ""
            figures.append(FigureFile(ending, partial(_draw, parts, about, found.task.metrics[0])))
    return Findings(tuple(tables), tuple(figures), tuple(notes))


def years_of(instances: Instances) -> npt.NDArray[np.int64]:
    """Return the year of every instance: of its prediction, or the digits that end its visit id; 0: unknown."""
    times = times_of(instances)
    return np.where(np.isnan(times), 0, np.floor(times)).astype(np.int64)


def design_of(instances: Instances, seed: int, sample: tuple[int, int] | None) -> Design | None:
    """Return who trains, rehearses, fills the bank and tests; None where there is neither time nor place."""
    random = np.random.default_rng(seed)
    train_most, test_most = sample or (len(instances), len(instances))

    def drawn(chosen: npt.NDArray[np.bool_], most: int) -> Rows:
        return np.sort(random.permutation(np.flatnonzero(chosen))[:most])

    patients = subject_ids_of(instances)
    left_out = {"rehearsal": 0, "bank": 0, "test": 0}

    def strangers(chosen: npt.NDArray[np.bool_], known: Rows, place: str) -> npt.NDArray[np.bool_]:
        """Leave out whom the own path was trained on, or who is in the bank."""
        seen = chosen & np.isin(patients, patients[known])
        left_out[place] += int(seen.sum())
        return chosen & ~seen

    years = years_of(instances)
    known = sorted(set(years[years > 0].tolist()))
    if len(known) >= 5:
        trained = drawn(np.isin(years, known[:-4]), train_most)
        before = drawn(strangers(years == known[-4], trained, "rehearsal"), (2 * train_most) // 3)
        fitting = drawn(strangers(years == known[-3], trained, "rehearsal"), (2 * train_most) // 3)
        bank = drawn(strangers(np.isin(years, known[-3:-1]), trained, "bank"), (4 * train_most) // 3)
        test = drawn(strangers(years == known[-1], np.union1d(trained, bank), "test"), test_most)
        words = (
            f"trained on {known[0]} to {known[-5]}, gates rehearsed on {known[-4]} and {known[-3]} with a bank of "
            f"{known[-4]}, "
            f"bank of {known[-3]} and {known[-2]}, tested on {known[-1]}"
        )
        return Design(words, trained, (trained, before, fitting), bank, test, left_out)
    sites = np.array([site or "" for site in sites_of(instances)])
    names = sorted(set(sites.tolist()) - {""})
    if len(names) < 6:
        return None
    order = random.permutation(len(names))
    ours, others = (np.isin(sites, [names[n] for n in part]) for part in np.array_split(order, 2))
    third = np.isin(sites, [names[n] for n in np.array_split(order, 2)[0][: len(names) // 6]])
    people, number = np.unique(patients, return_inverse=True)
    half = (random.permutation(len(people)) % 2 == 0)[number]
    words = (
        f"trained in {len(order) - len(order) // 2} of {len(names)} hospitals, bank and test are halves of the "
        "patients of the others"
    )
    trained, of_rehearsal = drawn(ours, train_most), drawn(ours & ~third, train_most)
    before, fitting = (np.flatnonzero(strangers(third & part, of_rehearsal, "rehearsal")) for part in (half, ~half))
    bank = drawn(strangers(others & half, trained, "bank"), train_most)
    test = drawn(strangers(others & ~half, trained, "test"), test_most)
    return Design(words, trained, (of_rehearsal, before, fitting), bank, test, left_out)


def measure(
    instances: Instances, settings: Any, sample: tuple[int, int] | None = None, cache: Path | None = None
) -> dict[str, Any]:
    """Compute all rows for one seed: scores, and paired differences from the frozen own path over patients.

    Fits of own paths are kept in ``cache``: the stack needs those of its parts again.
    """
    design = design_of(instances, settings.seed, sample)
    assert design is not None, "the design was found before"
    patients = subject_ids_of(instances)
    groups = (design.rehearsal[0], np.union1d(*design.rehearsal[1:]), design.bank, design.test)
    # Own paths are fitted with one part of the patients in so many as validation.
    if any(len(set(patients[rows])) < HELD_OUT + 2 for rows in groups):
        raise PlmError(
            "too few patients outside the training data for rehearsal, bank or test",
            remedy="use a cohort with more patients, or a smaller --sample",
        )
    run, kind = RunContext(settings, cache=cache), instances.task.kind
    problem = problem_on(instances, design.trained, settings.seed)
    own = fit_own_parts(problem, settings, run)
    of_rehearsal, before, fitting = design.rehearsal
    first = own
    if not np.array_equal(of_rehearsal, design.trained):
        first = fit_own_parts(problem_on(instances, of_rehearsal, settings.seed), settings, run)
    earlier = bank_of_rows(first, instances, before, of_rehearsal, settings)
    path = choose_reference_path(rehearse(first, instances, np.union1d(before, fitting), earlier, settings))
    retraining = problem_on(instances, np.union1d(design.trained, design.bank), settings.seed)
    # Training again holds some patients back to choose its settings: the bank has only those that it learns from.
    joined = np.intersect1d(design.bank, retraining.train)
    bank = bank_of_rows(own, instances, joined, design.trained, settings)
    model = rehearsed_model(own, instances, path, bank, settings)
    # The own path never saw the bank: the bank's own instances, each without its patient, can fit the gates too.
    path_of_bank = choose_reference_path(rehearse(own, instances, joined, bank, settings))
    refitted = rehearsed_model(own, instances, path_of_bank, bank, settings)
    test, added = only(instances, design.test), only(instances, joined)
    frozen = own.logits(test)
    targets = kind.targets(added.labels, outputs_of(instances))
    again = fit_own_parts(retraining, settings, run)
    at_random = replace(model, settings=settings.model_copy(update={"control": "rewired"}))
    compared = model.described(test)

    def corrected(by: ReferenceModel) -> npt.NDArray[np.float64]:
        return by.answers(frozen, test.instance_ids, compared)[0]

    logits = {
        "frozen": frozen,
        "intercepts updated": frozen + updated_intercepts(own.logits(added), targets, kind),
        "bank grown": corrected(model),
        "bank grown, gates fitted again": corrected(refitted),
        "references at random": corrected(at_random),
        "trained again": again.logits(test),
    }
    random = np.random.default_rng(settings.seed)
    curve = {}
    for share in SHARES:
        rows = np.sort(random.permutation(len(joined))[: int(share * len(joined))])
        smaller = rehearsed_model(own, instances, path, bank.rows(rows), settings)
        curve[str(len(rows))] = scores_of(corrected(smaller), test)
    return {
        "design": design.words,
        "instances": {
            "trained": len(design.trained),
            "bank": len(joined),
            "test": len(design.test),
        },
        "left_out": dict(design.left_out),
        "scores": {name: scores_of(each, test) for name, each in logits.items()},
        "differences": differences_from("frozen", logits, test),
        "curve": curve,
        "gates_open": model.uses_references,
    }


def updated_intercepts(logits: npt.NDArray[Any], targets: npt.NDArray[Any], kind: Any) -> npt.NDArray[np.float64]:
    """Return what to add to every output so that the bank's rates are met, by Newton's method with a ridge of 1."""
    added = np.zeros(logits.shape[1])
    for _ in range(8):
        found = kind.probabilities(logits + added)
        added = added + ((targets - found).sum(axis=0) - added) / ((found * (1 - found)).sum(axis=0) + 1)
    return added


def _table(
    instances: Instances, parts: Mapping[str, Sequence[Mapping[str, Any]]], about: str, label: str
) -> ResultTable:
    metrics = instances.task.metrics
    columns = (
        *(Column(METRIC_NAMES.get(name, name), scale=1.0, digits=4) for name in metrics),
        Column(f"{METRIC_NAMES.get(metrics[0], metrics[0])} over frozen", scale=1.0, digits=4, best=None),
        Column("% of training again", scale=1.0, digits=0, best=None),
    )
    rows = []
    for path, runs in parts.items():
        whole = mean_difference(runs, "trained again")
        for name in ROWS:
            cells = [seed_spread([run["scores"][name][metric] for run in runs]) for metric in metrics]
            gain = mean_difference(runs, name)
            share = None if not gain or not whole or whole[0] <= 0 else 100 * gain[0] / whole[0]
            shown = Number(gain[0], None, gain[1], gain[2], signed=True) if gain and name != "frozen" else ""
            rows.append(TableRow((path, name), (*cells, shown, "" if share is None or name == "frozen" else share)))
    first = next(iter(parts.values()))[0]
    sizes = ", ".join(f"{number:,} {name}" for name, number in first["instances"].items())
    left_out = ", ".join(f"{number:,} of the {name}" for name, number in first["left_out"].items())
    caption = (
        f"The growing bank. {about}: {first['design']} ({sizes} instances). Instances of patients who were trained on "
        f"are left out, and of the test those of the bank's: {left_out}. Mean ± standard deviation over seeds; "
        "differences are means over seeds, with the mean ends of their 95 % intervals over patients."
    )
    return ResultTable(caption, label, ("own path", "row"), columns, tuple(rows), title=about)


def _draw(parts: Mapping[str, Sequence[Mapping[str, Any]]], about: str, metric: str, folder: Path, name: str) -> None:
    """Draw the score over the size of the new bank, for every own path."""
    places = [f"{int(100 * share)} %" for share in SHARES]
    series = []
    for path, runs in parts.items():
        curves = [[values[metric] for values in run["curve"].values()] for run in runs]
        points = tuple(Point.of(seed_spread([curve[place] for curve in curves])) for place in range(len(places)))
        series.append(Series(path, points))
    caption = f"{about}: score with a part of the new bank, nothing trained again."
    panel = Panel(METRIC_NAMES.get(metric, metric), tuple(series), kind="lines")
    draw_panels(folder, name, places=places, axis="share of the new bank", panels=(panel,), caption=caption)
