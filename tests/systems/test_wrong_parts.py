"""What a foreign system, task or code system gives back is checked where it enters: a sentence, never a wrong number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from patients_like_me.cli.training import systems
from patients_like_me.errors import PlmError
from patients_like_me.parts import LeftOutWarning, is_ours
from patients_like_me.records.cohort import Cohort
from patients_like_me.report import self_page
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems import planning, predictor, registry
from patients_like_me.systems import train as training
from patients_like_me.systems.contract import Account, Fitted, RunContext, SelfExplanation
from patients_like_me.systems.frequency import SYSTEM as FREQUENCY
from patients_like_me.systems.planning import plan_training
from patients_like_me.systems.problem import Problem, problem_of
from patients_like_me.systems.reference_path.model import subject_ids_of
from patients_like_me.systems.reference_path.own_parts import cross_fit_parts
from patients_like_me.systems.tuning import tune
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fit": lambda problem, run: None}, "returned a NoneType, not a Fitted"),
        ({"fit": lambda problem, run: int("x")}, r"failed while fitting \(ValueError: "),
        ({"predict": lambda fitted, instances: {}["x"]}, r"failed while predicting \(KeyError: "),
        ({"fit": lambda problem, run: sys.exit(0)}, r"failed while fitting \(SystemExit: 0\)"),
        ({"fit": lambda problem, run: Fitted(run.settings, facts={1: "one"})}, "facts .* are not a dict"),  # type: ignore[dict-item]
        ({"fit": lambda problem, run: Fitted(run.settings, facts={"rates": np.ones(2)})}, "do not survive JSON"),
        ({"predict": lambda fitted, instances: np.zeros((len(instances), 2))}, r"shape \(\d+, 2\) for .* 1 output;"),
        ({"predict": lambda fitted, instances: np.zeros(len(instances))}, r"shape \(\d+,\)"),
        ({"predict": lambda fitted, instances: np.zeros((1, 1))}, r"shape \(1, 1\)"),
        ({"predict": lambda fitted, instances: np.full((len(instances), 1), np.nan)}, "not numbers"),
        ({"predict": lambda fitted, instances: np.full((len(instances), 1), "a")}, "logits of the type '<U1'"),
        ({"predict": lambda fitted, instances: np.full((len(instances), 1), 1j)}, "logits of the type 'complex128'"),
        ({"predict": lambda fitted, instances: [[0.0], [0.0, 1.0]]}, "logits that are not an array"),
        ({"fit": lambda problem, run: Fitted(run.settings, account=None)}, "account .* is a NoneType"),  # type: ignore[arg-type]
        (
            {"fit": lambda problem, run: Fitted(run.settings, account=Account(notes="all went well"))},  # type: ignore[arg-type]
            "'notes' in the account .* cannot be kept",
        ),
        (
            {"fit": lambda problem, run: Fitted(run.settings, account=Account(best_epoch="3"))},  # type: ignore[arg-type]
            "'best_epoch' in the account .* cannot be kept",
        ),
        ({"title": lambda settings: {}["x"]}, r"failed while naming a run \(KeyError: "),
        ({"title": lambda settings: None}, "names a run with something else than one line of text"),
        (
            {"fit": lambda problem, run: Fitted(run.settings, account=Account(chosen={"c": np.float32(1)}))},
            "the account .* does not survive JSON",
        ),
        (
            {"fit": lambda problem, run: replace(FREQUENCY.fit(problem, run), as_newcomers=np.zeros((3, 1)))},
            r"shape \(3, 1\)",
        ),
        (
            {"fit": lambda problem, run: Fitted(run.settings, arrays={"names": np.array(["x"])})},
            "the array 'names' .* does not hold numbers",
        ),
        (
            {"fit": lambda problem, run: Fitted(run.settings, arrays={"wide": np.ones(1, np.longdouble)})},
            "the array 'wide' .* does not hold numbers of at most 64 bits",
        ),
        ({"fit": lambda problem, run: Fitted(run.settings, arrays={1: np.ones(1)})}, "arrays .* are not a dict"),  # type: ignore[dict-item]
        ({"fit": lambda problem, run: Fitted(run.settings, facts=None)}, "facts .* are not a dict"),  # type: ignore[arg-type]
        (
            # What is only in the state is gone when the run is read again.
            {
                "fit": lambda problem, run: replace(FREQUENCY.fit(problem, run), state=3.0),
                "predict": lambda fitted, instances: np.full((len(instances), 1), fitted.state or 0.0),
            },
            "does not predict as it was scored: probabilities differ by 0.45",
        ),
    ],
)
def test_a_system_that_gives_nonsense_is_refused(
    changes: dict[str, Any], words: str, cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "find_system", lambda name: replace(FREQUENCY, **changes))
    with pytest.raises(PlmError, match=words):
        training.train(cohort_folder, "readmission", tmp_path / "run", system="frequency")
    assert not (tmp_path / "run" / "README.md").exists()


def test_what_is_not_a_number_is_not_handed_out_for_newcomers(
    cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training.train(cohort_folder, "readmission", tmp_path / "run", system="frequency")
    nonsense = replace(FREQUENCY, predict=lambda fitted, instances: np.full((len(instances), 1), np.nan))
    monkeypatch.setattr(predictor, "find_system", lambda name: nonsense)
    with pytest.raises(PlmError, match="some predictions of the system 'frequency' are not numbers"):
        predictor.Predictor.load(run).predict(Cohort.load(cohort_folder))


def test_what_a_system_overwrites_is_its_own_copy(
    cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwriting(problem: Problem, run: RunContext) -> Fitted:
        fitted = FREQUENCY.fit(problem, run)
        problem.validation[:], problem.test[:] = problem.validation[0], problem.test[0]
        for frame in (problem.instances.frame, problem.instances.cohort.visits):
            for name in {"instance_id", "visit_id"} & set(frame.columns):
                frame.replace_column(frame.get_column_index(name), pl.Series(name, ["x"] * frame.height))
        problem.instances.labels[:] = 1
        return fitted

    expected = training.train(cohort_folder, "readmission", tmp_path / "expected", system="frequency")
    monkeypatch.setattr(training, "find_system", lambda name: replace(FREQUENCY, fit=overwriting))
    found = training.train(cohort_folder, "readmission", tmp_path / "found", system="frequency")
    files = [pl.read_parquet(run.folder / "predictions.parquet") for run in (found, expected)]
    assert files[0].equals(files[1])
    assert found.results.scores == expected.results.scores


def test_labels_that_the_source_gives_are_not_handed_to_a_system(cohort_folder: Path) -> None:
    cohort = Cohort.load(cohort_folder)
    visits = cohort.visits["visit"]
    given = pl.DataFrame(
        {"visit": [*visits, *visits], "task": ["mortality"] * len(visits) + ["score"] * len(visits), "value": "1"},
        schema=cohort.labels.schema,
    ).with_columns(pl.when(pl.col("visit") % 2 == 0).then(pl.lit("0")).otherwise("value").alias("value"))
    with_labels = replace(cohort, labels=given)
    problem = problem_of(build_instances(with_labels, find_task("mortality", with_labels)))
    shown = problem.instances.cohort
    assert shown.labels["task"].unique().to_list() == ["score"]
    assert shown.hash == with_labels.hash


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capabilities": None}, "'capabilities' that are not Capabilities"),
        ({"kinds": "binary"}, "'kinds' that are not a tuple"),
        ({"knowledge": "rxcui_atc3"}, "'knowledge' that is not a tuple of names"),
        ({"settings": dict}, "'settings' that are neither"),
        ({"description": ""}, "no description"),
        ({"predict": None}, "no function 'predict'"),
    ],
)
def test_a_wrong_declaration_of_a_system_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlmError, match=f"the system 'frequency' declares {words}"):
        replace(FREQUENCY, **changes)


def test_settings_that_cannot_be_found_are_named() -> None:
    with pytest.raises(PlmError, match="the settings 'nowhere:S' of the system 'frequency' cannot be found"):
        replace(FREQUENCY, settings="nowhere:S").settings_of(None)


def test_one_odd_system_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(task: Any) -> bool:
        raise ValueError("boom")

    odd = replace(FREQUENCY, name="odd", suits=fails, description="reads [1, 2] and [/bold]")
    monkeypatch.setattr(registry, "all_systems", lambda: {"frequency": FREQUENCY, "odd": odd})
    with pytest.warns(LeftOutWarning, match="'odd' cannot tell whether the task .* suits it .ValueError: boom."):
        systems()
    assert "reads [1, 2] and [/bold]" in capsys.readouterr().out


def _relabelled(change: Callable[[pl.DataFrame], Any], task: str = "readmission") -> Any:
    known = find_task(task)
    return replace(known, labeller=lambda cohort, settings: change(known.labeller(cohort, settings)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: pl.concat([frame, frame]), "a visit twice"),
        (lambda frame: frame.drop("label"), "no columns 'visit' and 'label'"),
        (lambda frame: frame.with_columns(label=pl.lit(2)), "labels beyond its 2 classes"),
        (lambda frame: frame.with_columns(label=pl.lit(None, pl.Int64)), "visits without a label"),
        (lambda frame: frame.with_columns(label=pl.lit(1.7)), "neither whole numbers nor words"),
        (lambda frame: frame.with_columns(visit=pl.col("visit") + 10**6), "does not have"),
        (lambda frame: frame.with_columns(visit=pl.col("visit").cast(pl.String)), "visits that are not whole numbers"),
        (lambda frame: None, "is a NoneType, not a DataFrame"),
        (lambda frame: frame.lazy(), "is a LazyFrame, not a DataFrame"),
        (lambda frame: frame.with_columns(label=pl.lit("Maybe")), "labels outside its classes, such as a value of"),
    ],
)
def test_a_task_that_labels_nonsense_is_refused(
    change: Callable[[pl.DataFrame], Any], words: str, cohort_folder: Path
) -> None:
    with pytest.raises(PlmError, match=words):
        build_instances(Cohort.load(cohort_folder), _relabelled(change))


def test_a_missing_code_in_a_set_is_refused_and_an_empty_set_is_not(cohort_folder: Path) -> None:
    def ending_with(last: list[str | None]) -> Any:
        values = pl.Series("label", [["A10A"], last], dtype=pl.List(pl.String))
        return _relabelled(lambda frame: frame.head(2).with_columns(values), "drug_recommendation")

    cohort = Cohort.load(cohort_folder)
    assert len(build_instances(cohort, ending_with([]))) == 2
    with pytest.raises(PlmError, match="has lists with a missing code"):
        build_instances(cohort, ending_with(["A10A", None]))


def test_further_columns_of_a_labeller_change_nothing(cohort_folder: Path) -> None:
    cohort = Cohort.load(cohort_folder)
    found = build_instances(cohort, _relabelled(lambda frame: frame.with_columns(split=pl.lit("train"))))
    assert found.frame.equals(build_instances(cohort, find_task("readmission")).frame)


def test_visits_whose_class_no_training_patient_has_are_in_the_notes_of_the_run(
    cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort = Cohort.load(cohort_folder)
    known = build_instances(cohort, find_task("length_of_stay"))
    rare = known.frame["visit"].to_numpy()[known.rows_of("test")].tolist()
    word = pl.when(pl.col("visit").is_in(rare)).then(pl.lit("rare")).otherwise((pl.col("visit") % 2).cast(pl.String))
    task = replace(_relabelled(lambda frame: frame.with_columns(word.alias("label")), "length_of_stay"), classes=())
    monkeypatch.setattr(training, "find_task", lambda name, cohort: task)
    run = training.train(cohort_folder, "length_of_stay", tmp_path / "run", system="frequency")
    assert [note for note in run.results.notes if "have a label that no training patient has, and are left out" in note]


def test_declared_classes_keep_their_order_where_labels_are_words(cohort_folder: Path) -> None:
    words = {"0": "stays away", "1": "comes back"}
    task = _relabelled(lambda frame: frame.with_columns(pl.col("label").cast(pl.String).replace(words)))
    declared = replace(task, classes=("stays away", "comes back"))
    found = build_instances(Cohort.load(cohort_folder), declared)
    expected = build_instances(Cohort.load(cohort_folder), find_task("readmission"))
    assert found.task.classes == declared.classes
    np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.parametrize(
    ("predict", "words"),
    [
        # One row would be broadcast to all instances of a fold, without a word.
        (lambda fitted, instances: np.zeros((1, 1)), r"shape \(1, 1\)"),
        (lambda fitted, instances: np.full((len(instances), 1), np.nan), "not numbers"),
    ],
)
def test_a_part_of_an_own_path_and_a_tuned_system_are_checked_like_any_other(
    predict: Any, words: str, cohort_folder: Path, tmp_path: Path
) -> None:
    problem = problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))
    odd, settings = replace(FREQUENCY, predict=predict, choices={"seed": (0, 1)}), FREQUENCY.settings_of(None)
    with pytest.raises(PlmError, match=words):
        people = subject_ids_of(problem.instances)
        cross_fit_parts(problem, [odd], lambda _: settings, people, RunContext(settings), folds=2, seed=0)
    with pytest.raises(PlmError, match=words):
        tune(odd, problem, settings, tmp_path / "tuning", identity={}, minutes=1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": lambda problem, settings: int("x")}, r"the system 'frequency' failed while planning \(ValueError: "),
        ({"plan": lambda problem, settings: {}}, "plan of the system 'frequency' returned a dict, not a CostPlan"),
        (
            {"fit": lambda problem, run: int("x"), "capabilities": Capabilities(epochs=True)},
            "failed while being measured",
        ),
    ],
)
def test_a_plan_that_fails_is_said_in_a_sentence(
    changes: dict[str, Any], words: str, cohort_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "find_system", lambda name: replace(FREQUENCY, **changes))
    task = find_task("readmission")
    with pytest.raises(PlmError, match=words):
        plan_training(cohort_folder, "readmission", "frequency", FREQUENCY.settings_of(None), task.settings())


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (lambda settings: {}["x"], r"the system 'frequency' failed while naming its stages \(KeyError: "),
        (lambda settings: {}, "the stages of the system 'frequency' are not numbers of epochs by name"),
        (lambda settings: [("first", 3)], "are not numbers of epochs by name"),
        (lambda settings: {"first": "three"}, "are not numbers of epochs by name"),
    ],
)
def test_stages_that_are_none_are_said_in_a_sentence(stages: Any, words: str) -> None:
    system = replace(FREQUENCY, stages=stages)
    with pytest.raises(PlmError, match=words):
        system.epochs_of_stages(FREQUENCY.settings_of(None))


@pytest.mark.parametrize(
    ("explain", "words"),
    [
        (lambda *given: int("x"), r"the system 'frequency' failed while explaining \(ValueError: "),
        (lambda *given: "because", "returned a str, not a SelfExplanation"),
    ],
)
def test_an_explanation_that_fails_is_said_in_a_sentence(
    explain: Any, words: str, cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = training.train(cohort_folder, "readmission", tmp_path / "run", system="frequency")
    monkeypatch.setattr(self_page, "find_system", lambda name: replace(FREQUENCY, explain=explain))
    with pytest.raises(PlmError, match=words):
        self_page.self_page_of(run, example=1)


def test_a_part_of_an_own_path_overwrites_its_own_copy(cohort_folder: Path) -> None:
    problem = problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))
    labels, validation = problem.instances.labels.copy(), problem.validation.copy()

    def overwriting(problem: Problem, run: RunContext) -> Fitted:
        problem.instances.labels[:], problem.validation[:] = 1, 0
        return FREQUENCY.fit(problem, run)

    def renaming(fitted: Fitted, instances: Any) -> Any:
        instances.cohort.visits.replace_column(0, pl.Series("visit", [0] * instances.cohort.visits.height))
        return FREQUENCY.predict(fitted, instances)

    settings, people = FREQUENCY.settings_of(None), subject_ids_of(problem.instances)
    odd = replace(FREQUENCY, fit=overwriting, predict=renaming)
    cross_fit_parts(problem, [odd], lambda _: settings, people, RunContext(settings), folds=2, seed=0)
    assert np.array_equal(problem.instances.labels, labels)
    assert np.array_equal(problem.validation, validation)
    assert problem.instances.cohort.visits["visit"].n_unique() == problem.instances.cohort.visits.height


def test_a_network_of_another_package_is_not_ours_though_our_code_fits_it() -> None:
    from patients_like_me.systems.retain import NETWORK

    assert is_ours(NETWORK.fit)
    assert not is_ours(replace(NETWORK, build=lambda settings, facts: None).fit)  # type: ignore[arg-type,return-value]


def test_an_explanation_is_given_no_label_of_validation_and_test(
    cohort_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def explain(fitted: Fitted, instances: Any, row: int, output: int | None) -> SelfExplanation:
        seen.append(instances)
        return SelfExplanation("t", "s", ())

    run = training.train(cohort_folder, "readmission", tmp_path / "run", system="frequency")
    monkeypatch.setattr(self_page, "find_system", lambda name: replace(FREQUENCY, explain=explain))
    self_page.self_page_of(run, example=1)
    assert run.instances.labels[run.rows_of("test")].any()
    assert not seen[0].labels[run.rows_of("test")].any()
    assert seen[0].labels[run.rows_of("train")].any()
