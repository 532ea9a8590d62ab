"""The named checks that every registered system must pass; what a system cannot have is decided by its capabilities.

A small network in this file is checked too: it shows that featuriser, epoch loop and contract fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from systems.tiny_network import SMALL_NETWORK

from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.run import load_run
from patients_like_me.systems.contract import Fitted, RunContext, System
from patients_like_me.systems.keeping import load_fitted
from patients_like_me.systems.problem import Logits, Problem, only, problem_of
from patients_like_me.systems.registry import all_systems
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.kinds import BINARY
from patients_like_me.tasks.registry import all_tasks

TASKS = all_tasks()

SYSTEMS = {**all_systems(), SMALL_NETWORK.name: SMALL_NETWORK}
SMALL_TRAINING = {"epochs": 3, "batch_size": 32, "rate": 0.01, "optimizer": "adam"}
#: Small grids, small trees, few epochs, so that all checks together take seconds.
QUICK: dict[str, dict[str, Any]] = {
    "logistic": {"inverse_penalty": [0.03, 1.0]},
    "boosting": {"trees": [5, 20], "leaf_instances": 5, "minimum_positives": 5},
    "neighbors": {"tau": [2, 4], "max_neighbors": [8, None], "prior": [30.0, 3.0]},
    "linear": {"penalties": [10.0, 1.0]},
    "references": {
        "part_settings": {
            "linear": {"penalties": [10.0, 1.0]},
            "boosting": {"trees": [5, 20], "leaf_instances": 5, "minimum_positives": 5},
        },
        "folds": 3,
        "k": [10, 30],
        "powers": [1.0],
        "gate_penalties": [1.0, 0.1],
        "output_penalties": [None],
    },
    "small_network": {"epochs": 4, "batch_size": 16, "rate": 0.02},
    "deepr": {**SMALL_TRAINING, "embedding": 8, "motifs": 8},
    "retain": {**SMALL_TRAINING, "embedding": 8, "visit_hidden": 8, "code_hidden": 8},
    "gram": {**SMALL_TRAINING, "embedding": 8, "attention": 6, "hidden": 8},
    "stagenet": {**SMALL_TRAINING, "embedding": 8, "chunk": 4, "window": 3},
    "adacare": {**SMALL_TRAINING, "filters": 4, "hidden": 8},
    "grasp": {**SMALL_TRAINING, "embedding": 8, "hidden": 8, "clusters": 4},
    "g_bert": {
        **SMALL_TRAINING,
        "width": 8,
        "graph_heads": 2,
        "heads": 2,
        "feed_forward": 8,
        "rounds": 1,
        "round_epochs": 1,
    },
    "gamenet": {**SMALL_TRAINING, "width": 8, "hidden": 8},
    "safedrug": {**SMALL_TRAINING, "width": 8},
    "micron": {**SMALL_TRAINING, "width": 8, "hidden": 16},
    "molerec": {**SMALL_TRAINING, "width": 8, "graph_layers": 2},
    "glem": {
        "epochs": 1,
        "batch_size": 32,
        "rate": 0.005,
        "em_rate": 0.002,
        "iterations": 1,
        "graph": {"tau": 2, "max_neighbors": 8, "references": "bank"},
        "graph_part": {"width": 16, "steps": 10, "check": 5, "dropout": 0.1},
    },
}
QUICK |= {
    "leader": {**SMALL_TRAINING, "width": 8, "heads": 2, "feed_forward": 8, "teacher_epochs": 1, "teacher_batch": 32},
    "udc": {
        **SMALL_TRAINING,
        "width": 8,
        "layers": 1,
        "heads": 2,
        "feed_forward": 8,
        "codes": {"width": 8, "books": 2, "codes": 4, "epochs": 10, "reseed_after": 3},
        "tuning_epochs": 2,
        "tuning_rate": 0.01,
    },
    "kehgcn": {**SMALL_TRAINING, "width": 8, "similar": 5},
    # Names are told apart by a random language model only if hardly any distance is small enough.
    "graphcare": {**SMALL_TRAINING, "hidden": 8, "layers": 1, "threshold": 1e-5},
    "colacare": {
        **SMALL_TRAINING,
        "adacare": {**SMALL_TRAINING, "filters": 4, "hidden": 8},
        "mc_gru": {**SMALL_TRAINING, "group": 4, "hidden": 8},
        "retain": {**SMALL_TRAINING, "embedding": 8, "visit_hidden": 8, "code_hidden": 8},
        "merged": 8,
        "max_rounds": 1,
        "max_tokens": 64,
    },
    "kare": {
        **SMALL_TRAINING,
        "epochs": 2,
        "max_tokens": 80,
        "threshold": 1e-5,
        "community_nodes": 4,
        "retrieval": {"chosen": 3},
    },
}
#: What these need to learn a few instances by heart.
OVERFITTING: dict[str, dict[str, Any]] = {
    "udc": {"width": 16, "rate": 0.005, "tuning_epochs": 20},
    "kehgcn": {"width": 16, "rate": 0.05, "epochs": 100, "similar": 1},
    # Similar patients have other codes in the same text.
    "kare": {"rate": 0.005, "similar": 0},
}
#: The language model of those that read texts; half precision rounds by the padding of a batch.
READING: dict[str, Any] = {"max_tokens": 200, "precision": "float32"}
#: Grids with one choice: validation has nothing to decide.
ONE_CHOICE: dict[str, dict[str, Any]] = {
    "logistic": {"inverse_penalty": [0.3]},
    "boosting": {"trees": [10], "leaf_instances": 5, "minimum_positives": 5},
    "neighbors": {"tau": [3], "max_neighbors": [8], "prior": [10.0]},
    "linear": {"penalties": [3.0], "block_factors": []},
    "references": {
        "part_settings": {
            "linear": {"penalties": [3.0], "block_factors": []},
            "boosting": {"trees": [10], "leaf_instances": 5, "minimum_positives": 5},
        },
        "folds": 3,
        "k": [20],
        "powers": [1.0],
        "gate_penalties": [0.3],
        "output_penalties": [None],
        "may_stay_out": False,
    },
}
every_system = pytest.mark.parametrize("name", list(SYSTEMS))
without_epochs = pytest.mark.parametrize(
    "name", [name for name, system in SYSTEMS.items() if not system.capabilities.epochs]
)
with_epochs = pytest.mark.parametrize("name", [name for name, system in SYSTEMS.items() if system.capabilities.epochs])
with_newcomers = pytest.mark.parametrize(
    "name", [name for name, system in SYSTEMS.items() if system.capabilities.newcomers]
)
every_served_task = pytest.mark.parametrize(
    ("name", "task"), [(name, task) for name, system in SYSTEMS.items() for task in TASKS if system.serves(TASKS[task])]
)
every_task = pytest.mark.parametrize("task", list(TASKS))
FitOf = Callable[..., tuple[System, Problem, Fitted]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True)
def _knowledge(made_up_knowledge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_CODES", str(made_up_knowledge))


def a_task_of(name: str, wanted: str = "drug_recommendation") -> str:
    """Return the wanted task where the system serves it, else one that it serves."""
    served = [task.name for task in TASKS.values() if SYSTEMS[name].serves(task)]
    return wanted if wanted in served else served[0]


@pytest.fixture(scope="module")
def folder_of(cohort_folder: Path, coded_cohort: Path) -> Callable[[str], Path]:
    """Return the cohort of a system: in codes where it needs tables about codes, else in words."""
    return lambda name: coded_cohort if SYSTEMS[name].knowledge else cohort_folder


@pytest.fixture(scope="module")
def instances_of(folder_of: Callable[[str], Path]) -> Callable[[str, str], Instances]:
    cohorts: dict[Path, Cohort] = {}

    def make(name: str, task: str) -> Instances:
        folder = folder_of(name)
        cohorts.setdefault(folder, Cohort.load(folder))
        return build_instances(cohorts[folder], TASKS[task])

    return make


@pytest.fixture(scope="module")
def settings_of(tiny_settings: Callable[..., Any], tiny_folder: Path) -> Callable[..., Any]:
    def make(name: str, **changes: Any) -> Any:
        system = SYSTEMS[name]
        if name in QUICK and system.has_setting("backbone"):
            changes = {"backbone": {"name": str(tiny_folder), "trainable_layers": 1}, **changes}
            wanted = {key: value for key, value in READING.items() if key not in QUICK[name]}
            changes |= {key: value for key, value in wanted.items() if system.has_setting(key)}
        if system.preset_part == "training":
            return tiny_settings(epochs=2, graph={"tau": 2, "references": "bank"}, **changes)
        return system.settings_of(None, **{**QUICK.get(name, {}), **changes})

    return make


class Gradients:
    """Watches every optimiser within its block: which parameters it has, and which had a gradient that is not zero."""

    def __init__(self) -> None:
        self.parameters: dict[int, Any] = {}
        self.moved: set[int] = set()

    def _watch(self, optimizer: Any, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.parameters[id(parameter)] = parameter
                # Once is enough, and to look costs time.
                if id(parameter) not in self.moved and parameter.grad is not None:
                    self.moved |= {id(parameter)} if bool(parameter.grad.abs().max() > 0) else set()

    def __enter__(self) -> Gradients:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self.handle = register_optimizer_step_pre_hook(self._watch)
        return self

    def __exit__(self, *_: object) -> None:
        self.handle.remove()


@pytest.fixture(scope="module")
def gradients_of() -> dict[tuple[str, str], Gradients]:
    """Return what was seen of the gradients while a system was fitted to a task."""
    return {}


@pytest.fixture(scope="module")
def fit_of(
    instances_of: Callable[[str, str], Instances],
    settings_of: Callable[..., Any],
    gradients_of: dict[tuple[str, str], Gradients],
) -> FitOf:
    """Return a function that fits a system to a task, once."""
    made: dict[tuple[str, str], tuple[System, Problem, Fitted]] = {}

    def make(name: str, task: str | None = None) -> tuple[System, Problem, Fitted]:
        task = task or a_task_of(name)
        if (name, task) not in made:
            problem = problem_of(instances_of(name, task))
            with Gradients() as seen:
                fitted = SYSTEMS[name].fit(problem, RunContext(settings_of(name)))
            made[name, task] = SYSTEMS[name], problem, fitted
            gradients_of[name, task] = seen
        return made[name, task]

    return make


def close(first: Logits, second: Logits) -> bool:
    """Compare probabilities: neural systems sum in another order when batches differ."""
    return bool(np.allclose(BINARY.probabilities(first), BINARY.probabilities(second), atol=1e-6))


def probabilities(system: System, problem: Problem, fitted: Fitted) -> np.ndarray:
    return problem.kind.probabilities(system.predict(fitted, only(problem.instances, problem.evaluated)))


@every_served_task
def test_probabilities_are_probabilities(name: str, task: str, fit_of: FitOf) -> None:
    system, problem, fitted = fit_of(name, task)
    found = probabilities(system, problem, fitted)
    assert found.shape == (len(problem.evaluated), problem.outputs)
    assert np.isfinite(found).all()
    assert found.min() >= 0
    assert found.max() <= 1
    if problem.kind == "multiclass":
        assert np.allclose(found.sum(axis=1), 1)


@with_newcomers
def test_padding_and_batch_independence(name: str, fit_of: FitOf) -> None:
    """Who else is predicted, and how long the longest record among them is, changes nothing."""
    system, problem, fitted = fit_of(name)
    together = system.predict(fitted, only(problem.instances, problem.evaluated))
    visits = problem.instances.history.group_by("instance").len().sort("len", descending=True)["instance"]
    longest = [row for row in visits.to_list() if row in set(problem.evaluated.tolist())][:1]
    shortest = [row for row in problem.evaluated.tolist() if row not in set(visits.to_list())][:2]
    assert longest
    assert shortest
    for rows in ([shortest[0]], [*shortest, *longest], longest):
        places = [int(np.flatnonzero(problem.evaluated == row)[0]) for row in rows]
        assert close(system.predict(fitted, only(problem.instances, np.array(rows))), together[places])


@with_newcomers
def test_order_of_patients(name: str, fit_of: FitOf) -> None:
    system, problem, fitted = fit_of(name)
    order = np.random.default_rng(1).permutation(problem.evaluated)
    places = [int(np.flatnonzero(problem.evaluated == row)[0]) for row in order]
    together = system.predict(fitted, only(problem.instances, problem.evaluated))
    assert close(system.predict(fitted, only(problem.instances, order)), together[places])


@with_newcomers
def test_order_of_codes_in_a_visit(name: str, fit_of: FitOf) -> None:
    system, problem, fitted = fit_of(name)
    chosen = only(problem.instances, problem.evaluated)
    codes = {kind: frame.sample(fraction=1.0, shuffle=True, seed=3) for kind, frame in chosen.cohort.codes.items()}
    shuffled = replace(chosen, cohort=replace(chosen.cohort, codes=codes))
    assert close(system.predict(fitted, shuffled), system.predict(fitted, chosen))


@with_newcomers
def test_no_influence_of_what_the_task_forbids(name: str, fit_of: FitOf) -> None:
    """The drugs of the current visit, where they are the answer, and all codes of later visits."""
    system, problem, fitted = fit_of(name)
    visits_of_subject = problem.instances.cohort.visits.group_by("subject").len("visits")
    several = only(problem.instances, problem.test).frame.join(visits_of_subject, on="subject", how="left")
    first = several.filter((pl.col("visits") > 1) & (pl.col("visit") == pl.col("first_visit")))["instance"][0]
    one = only(only(problem.instances, problem.test), np.array([first]))
    now = one.frame["visit"][0]
    forbidden = {kind: pl.col("visit") > now for kind in one.cohort.codes}
    if one.task.name == "drug_recommendation":
        forbidden["medication"] = pl.col("visit") >= now
    others = {kind: codes.filter(~forbidden[kind]) for kind, codes in one.cohort.codes.items()}
    without = replace(one, cohort=replace(one.cohort, codes=others))
    assert one.cohort.codes["medication"].height > others["medication"].height
    assert np.array_equal(system.predict(fitted, without), system.predict(fitted, one))


@every_system
def test_another_seed_gives_another_fit_where_chance_is_at_work(
    name: str, fit_of: FitOf, settings_of: Callable[..., Any]
) -> None:
    system, problem, fitted = fit_of(name)
    if system.capabilities.random:
        other = system.fit(problem, RunContext(settings_of(name, seed=1)))
        assert not np.array_equal(probabilities(system, problem, fitted), probabilities(system, problem, other))


@every_system
def test_save_and_load(
    name: str,
    folder_of: Callable[[str], Path],
    settings_of: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from patients_like_me.systems import train as training

    monkeypatch.setattr(training, "find_system", SYSTEMS.__getitem__)
    run = train(folder_of(name), a_task_of(name), tmp_path / "run", system=name, settings=settings_of(name))
    system, kept = SYSTEMS[name], load_fitted(SYSTEMS[name], load_run(run.folder))
    again = system.predict(kept, only(run.instances, np.concatenate([run.rows_of("validation"), run.rows_of("test")])))
    written = np.array(run.predictions()["probabilities"].to_list())
    assert np.abs(run.task.kind.probabilities(again) - written).max() < 1e-5
    assert not [path for path in run.folder.rglob("*") if path.suffix in (".pkl", ".pt", ".bin", ".partial")]


def flipped(instances: Instances, split: str) -> Instances:
    """Return the instances with every label of one split another one."""
    labels, rows = instances.labels.copy(), np.flatnonzero(instances.splits == split)
    labels[rows] = (labels[rows] + 1) % (10 if instances.task.kind == "multiclass" else 2)
    return replace(instances, labels=labels)


@every_system
def test_determinism_and_nothing_is_read_from_the_answer_of_test(
    name: str, fit_of: FitOf, instances_of: Callable[[str, str], Instances], settings_of: Callable[..., Any]
) -> None:
    """The same fit again, with every label of test another one, is the same to the last bit."""
    system, problem, fitted = fit_of(name)
    other = problem_of(flipped(instances_of(name, a_task_of(name)), "test"))
    again = system.fit(other, RunContext(settings_of(name)))
    assert np.array_equal(probabilities(system, problem, fitted), probabilities(system, other, again))
    assert fitted.account.tried == again.account.tried


@every_task
@without_epochs
def test_labels_of_validation_decide_the_choice_and_nothing_else(
    name: str, task: str, instances_of: Callable[[str, str], Instances]
) -> None:
    system, instances = SYSTEMS[name], instances_of(name, task)
    settings = system.settings_of(None, **ONE_CHOICE.get(name, {}))
    before, after = (
        probabilities(system, problem_of(given), system.fit(problem_of(given), RunContext(settings)))
        for given in (instances, flipped(instances, "validation"))
    )
    assert np.array_equal(before, after)


def test_labels_of_validation_and_test_are_not_in_the_problem(
    instances_of: Callable[[str, str], Instances],
) -> None:
    problem = problem_of(instances_of("frequency", "readmission"))
    assert not problem.instances.labels[problem.evaluated].any()
    assert problem.instances.labels[problem.train].any()
    lent = problem.with_validation_labels()
    assert lent.labels[problem.validation].any()
    assert not lent.labels[problem.test].any()


@every_task
@without_epochs
def test_the_order_of_training_instances_changes_nothing(
    name: str, task: str, fit_of: FitOf, settings_of: Callable[..., Any]
) -> None:
    system, problem, fitted = fit_of(name, task)
    order = np.random.default_rng(3).permutation(len(problem.train))
    shuffled = replace(problem, train=problem.train[order], targets=problem.targets[order])
    again = system.fit(shuffled, RunContext(settings_of(name)))
    assert fitted.account.chosen == again.account.chosen
    found = (probabilities(system, problem, each) for each in (fitted, again))
    assert np.allclose(*found, atol=2e-4)


@with_epochs
def test_a_gradient_reaches_every_parameter(
    name: str, fit_of: FitOf, gradients_of: dict[tuple[str, str], Gradients]
) -> None:
    task = a_task_of(name, "readmission")
    fit_of(name, task)
    seen = gradients_of[name, task]
    assert seen.parameters
    assert seen.moved == set(seen.parameters)


@with_epochs
def test_overfits_a_few_instances(name: str, make_cohort: Callable[..., Path], settings_of: Callable[..., Any]) -> None:
    """The same few records train and judge: after enough epochs they are ranked as their labels say."""
    system = SYSTEMS[name]
    cohort = Cohort.load(make_cohort(patients=14, seed=6, coded=bool(system.knowledge)))
    instances = build_instances(cohort, TASKS[a_task_of(name, "readmission")])
    rows = instances.rows_of("train")
    twice = only(instances, np.concatenate([rows, rows]))
    split = ["train"] * len(rows) + ["validation"] * len(rows)
    ids = [f"{place}/{instance}" for place, instance in enumerate(twice.instance_ids)]
    problem = problem_of(
        replace(twice, frame=twice.frame.with_columns(split=pl.Series(split), instance_id=pl.Series(ids)))
    )
    changes: dict[str, Any] = {"epochs": 60, "patience": 60, "rate": 0.02, "strategy": "lm_only", "batch_size": 4}
    if system.name in QUICK:
        changes |= {"epochs": 40, "batch_size": 8, "rounds": 0, "target_rate": 1.0}
        # A transformer and deep graph networks learn nothing with large steps.
        changes |= {"rate": 0.005, "width": 16, "epochs": 60} if system.name in ("g_bert", "molerec") else {}
        changes |= OVERFITTING.get(system.name, {})
        changes |= dict.fromkeys(("dropout", "attention_dropout", "graph_dropout", "connection_dropout"), 0.0)
    wanted = {key: value for key, value in changes.items() if system.has_setting(key)}
    fitted = system.fit(problem, RunContext(settings_of(name).model_copy(update=wanted)))
    found = system.predict(fitted, only(problem.instances, problem.validation))
    assert (problem.judge(BINARY.probabilities(found)) or 0) > 0.95


@pytest.fixture(scope="module")
def shuffled_cohort(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=220, seed=9, shuffle_labels=True)


@pytest.fixture(scope="module")
def learnable_cohort(make_cohort: Callable[..., Path]) -> Path:
    return make_cohort(patients=150, seed=4)


@without_epochs
def test_shuffled_labels_give_chance_on_fresh_patients(
    name: str, shuffled_cohort: Path, settings_of: Any, tmp_path: Path
) -> None:
    """The leak alarm: with labels that mean nothing, a score above chance could only come from a leak."""
    run = train(shuffled_cohort, "readmission", tmp_path / "run", system=name, settings=settings_of(name))
    assert abs((run.results.scores["test"]["auroc"] or 0) - 0.5) < 0.17


@without_epochs
def test_what_is_in_the_codes_is_learned(name: str, learnable_cohort: Path, settings_of: Any, tmp_path: Path) -> None:
    run = train(learnable_cohort, "readmission", tmp_path / "run", system=name, settings=settings_of(name))
    floor = {"logistic": 0.95, "boosting": 0.95, "linear": 0.95, "references": 0.95, "neighbors": 0.6}.get(name, 0.5)
    assert (run.results.scores["test"]["auroc"] or 0) >= floor


@pytest.mark.parametrize(
    "name", [name for name in QUICK if SYSTEMS[name].has_setting("backbone") and SYSTEMS[name].capabilities.newcomers]
)
def test_a_backbone_in_half_precision_is_trained_and_kept(
    name: str,
    instances_of: Callable[[str, str], Instances],
    settings_of: Callable[..., Any],
    tiny_folder: Path,
) -> None:
    """numpy, in which fitted parts are kept, has no bfloat16."""
    backbone = {"name": str(tiny_folder), "trainable_layers": 1, "dtype": "bfloat16"}
    problem = problem_of(instances_of(name, a_task_of(name)))
    system = SYSTEMS[name]
    fitted = system.fit(problem, RunContext(settings_of(name, backbone=backbone)))
    some = only(problem.instances, problem.validation[:3])
    assert np.isfinite(system.predict(fitted, some)).all()
