"""Each of the simple systems does what it says, shown against a plain computation by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patients_like_me.errors import PlmError
from patients_like_me.records.cohort import Cohort
from patients_like_me.records.small import cohort_of
from patients_like_me.systems.bags import Bag, bag_of
from patients_like_me.systems.boosting import BoostingSettings, labels_to_boost, most_frequent_features
from patients_like_me.systems.contract import Candidate, Fitted, RunContext, choose
from patients_like_me.systems.problem import Probabilities, Problem, only, problem_of
from patients_like_me.systems.registry import find_system, require_service
from patients_like_me.systems.repeat import earlier_answers
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import all_tasks, find_task
from patients_like_me.tasks.task import TaskSettings

TASKS = all_tasks()


def day(number: float) -> datetime:
    return datetime(2150, 1, 1, 10) + timedelta(days=number)


def problem(cohort: Path, task: str) -> Problem:
    return problem_of(build_instances(Cohort.load(cohort), TASKS[task]))


def fit(name: str, given: Problem, **changes: Any) -> Fitted:
    system = find_system(name)
    return system.fit(given, RunContext(system.settings_of(None, **changes)))


def predicted(name: str, given: Problem, **changes: Any) -> Probabilities:
    """Fit a system and return its probabilities of the evaluated instances."""
    fitted = fit(name, given, **changes)
    logits = find_system(name).predict(fitted, only(given.instances, given.evaluated))
    return given.kind.probabilities(logits)


def test_a_logistic_regression_without_features_is_refused(cohort_folder: Path) -> None:
    with pytest.raises(PlmError, match="no feature is left for the logistic regression"):
        fit("logistic", problem(cohort_folder, "readmission"), bag={"minimum_instances": 10**9})


def one_patient(task: str, **settings: Any) -> Instances:
    """Return the instances of a patient with four visits: stays of 1, 3, 5 and 9 days, the last two close together."""
    starts, stays, drugs = (0, 40, 80, 90), (1, 3, 5, 9), (["a"], [], ["b", "c"], ["d"])
    visits = [
        {
            "subject_id": "p",
            "visit_id": f"v{n}",
            "admission_time": day(starts[n]),
            "discharge_time": day(starts[n] + stays[n]),
            "medications": drugs[n],
        }
        for n in range(4)
    ]
    return build_instances(cohort_of(visits), TASKS[task], find_task(task).settings(settings))


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_frequency_predicts_the_rates_of_training(task: str, cohort_folder: Path) -> None:
    given = problem(cohort_folder, task)
    probabilities = predicted("frequency", given)
    labels = given.instances.labels[given.train]
    rates = np.bincount(labels, minlength=10) / len(labels) if task == "length_of_stay" else labels.mean(axis=0)
    assert np.allclose(probabilities, np.reshape(rates, (1, -1)))


def test_earlier_answers_are_those_of_the_visit_before() -> None:
    stays = earlier_answers(one_patient("length_of_stay"), 10)
    assert np.isnan(stays[0]).all()
    assert stays[1:].argmax(axis=1).tolist() == [1, 3, 5]
    assert stays[1:].sum(axis=1).tolist() == [1, 1, 1]
    readmissions = earlier_answers(one_patient("readmission", population="discharged_alive"), 1)
    assert np.isnan(readmissions[0, 0])
    assert readmissions[1:, 0].tolist() == [0, 0, 1]


def test_earlier_drugs_are_those_of_the_last_visit_that_has_any() -> None:
    instances = one_patient("drug_recommendation", split_shares=(1, 0, 0))
    assert instances.label_vocabulary == ("a", "b", "c", "d")
    answers = earlier_answers(instances, 4)
    assert instances.instance_ids == ["v0", "v2", "v3"]
    assert np.isnan(answers[0]).all()
    assert answers[1:].tolist() == [[1, 0, 0, 0], [0, 1, 1, 0]]


def test_an_earlier_visit_that_still_went_on_gives_no_answer_where_only_the_known_is_seen() -> None:
    visits = [
        {"subject_id": "p", "visit_id": f"v{n}", "admission_time": day(n), "discharge_time": day(end)}
        for n, end in enumerate((20, 3))
    ]
    for inputs, known in (("known", False), ("retrospective", True)):
        instances = build_instances(cohort_of(visits), TASKS["length_of_stay"], TaskSettings(inputs=inputs))
        assert np.isnan(earlier_answers(instances, 10)[1]).all() != known


def test_repeat_does_not_depend_on_the_answer_itself() -> None:
    """Change the stay of the current visit: the earlier answer of that instance stays as it was."""

    def answers(last_stay: int) -> np.ndarray:
        visits = [
            {
                "subject_id": "p",
                "visit_id": f"v{n}",
                "admission_time": day(40 * n),
                "discharge_time": day(40 * n + stay),
            }
            for n, stay in enumerate((2, 4, last_stay))
        ]
        return earlier_answers(build_instances(cohort_of(visits), TASKS["length_of_stay"]), 10)

    assert np.array_equal(answers(1), answers(12), equal_nan=True)


def test_repeat_ranks_earlier_drugs_first_and_then_by_rate(cohort_folder: Path) -> None:
    given = problem(cohort_folder, "drug_recommendation")
    probabilities = predicted("repeat", given, weight=0.9)
    answers = earlier_answers(given.instances, probabilities.shape[1])[given.evaluated]
    alone = np.isnan(answers[:, 0])
    assert alone.any()
    assert np.allclose(probabilities[alone], given.rates)
    assert (probabilities[~alone][answers[~alone] == 1] >= 0.9).all()
    assert np.allclose(probabilities[~alone], 0.9 * answers[~alone] + 0.1 * given.rates)


def test_repeat_refuses_a_task_whose_earlier_answers_may_lie_in_the_future() -> None:
    visits = [{"subject_id": f"p{n}", "visit_id": f"v{n}", "order": 0} for n in range(10)]
    cohort = cohort_of(visits, labels=[(f"v{n}", "died_within_a_year", str(n % 2)) for n in range(10)])
    instances = build_instances(cohort, find_task("died_within_a_year", cohort))
    with pytest.raises(PlmError, match=r"'repeat' does not serve the task 'died_within_a_year'.*'frequency'"):
        require_service(find_system("repeat"), instances.task)


def test_repeat_serves_what_is_known_by_the_next_visit() -> None:
    repeat = find_system("repeat")
    assert all(repeat.serves(task) for task in TASKS.values())
    for task in TASKS.values():
        assert not repeat.serves(replace(task, known_by_next_visit=False))
    # The history shows no earlier answer where a set is not one of recorded codes.
    assert not repeat.serves(replace(TASKS["drug_recommendation"], label_codes=None))


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_neighbors_vote_by_the_diagnoses_they_share(task: str, cohort_folder: Path) -> None:
    given = problem(cohort_folder, task)
    probabilities = predicted("neighbors", given, tau=[3], max_neighbors=[None], prior=[5.0])
    sets = given.instances.diagnosis_sets
    for place, row in enumerate(given.evaluated):
        shared = np.array([len(set(sets.of(row)) & set(sets.of(other))) for other in given.train], dtype=float)
        shared[shared < 3] = 0
        expected = (shared @ given.targets + 5 * given.rates) / (shared.sum() + 5)
        assert np.allclose(probabilities[place], expected)
    evaluated = set(given.instances.frame["subject"].to_numpy()[given.evaluated])
    assert not evaluated & set(given.instances.frame["subject"].to_numpy()[given.train])


def test_an_instance_without_neighbors_gets_the_rate(cohort_folder: Path) -> None:
    given = problem(cohort_folder, "readmission")
    assert np.allclose(predicted("neighbors", given, tau=[99]), given.rates)
    chosen = fit("neighbors", given, tau=[99]).account.chosen
    assert chosen["instances_without_neighbors"] == len(given.validation)


def test_logistic_is_what_scikit_learn_fits(cohort_folder: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    for task in ("readmission", "length_of_stay", "drug_recommendation"):
        given = problem(cohort_folder, task)
        probabilities = predicted("logistic", given, inverse_penalty=[0.3])
        bag = bag_of(given.instances, given.train)
        inputs, wanted = bag.values[given.train], bag.values[given.evaluated]
        if task == "length_of_stay":
            labels = given.targets.argmax(axis=1)
            plain = LogisticRegression(C=0.3, max_iter=1000).fit(inputs, labels)
            assert np.allclose(probabilities[:, plain.classes_], plain.predict_proba(wanted), atol=1e-6)
            assert np.delete(probabilities, plain.classes_, axis=1).max() < 1e-15
        else:
            for column, labels in enumerate(given.targets.T):
                plain = LogisticRegression(C=0.3, max_iter=1000).fit(inputs, labels)
                assert np.allclose(probabilities[:, column], plain.predict_proba(wanted)[:, 1], atol=1e-6)


def small_problem(
    targets: list[list[int]], judge: Any = lambda probabilities: None, kind: str = "multilabel"
) -> Problem:
    """Return eight instances, the diagnosis 'x' in every second; six of them train with the given labels."""
    visits = [
        {"subject_id": f"p{n}", "visit_id": f"v{n}", "order": 0, "diagnoses": ["x"] if n % 2 else ["y"]}
        for n in range(8)
    ]
    labels = [(f"v{n}", "own", str(n % 3 if kind == "multiclass" else n % 2)) for n in range(8)]
    cohort = cohort_of(visits, labels=labels)
    task = find_task("own", cohort)
    if kind == "multilabel":
        task = TASKS["drug_recommendation"]
        cohort = cohort_of([entry | {"medications": ["a"]} for entry in visits])
    instances = build_instances(cohort, task, TaskSettings(split_shares=(1, 0, 0)))
    columns = np.array(targets, dtype=float)
    rows = np.arange(6), np.array([6, 7]), np.array([], dtype=np.int64)
    return Problem(instances, *rows, columns, judge, lambda: instances)


@pytest.mark.parametrize("model", ["logistic", "boosting"])
def test_a_label_that_all_or_none_have_gets_its_rate(model: str) -> None:
    given = small_problem([[0, 1, n % 2] for n in range(6)])
    changes = {"leaf_instances": 1, "minimum_positives": 1, "trees": [20]} if model == "boosting" else {}
    probabilities = predicted(model, given, **changes)
    assert np.allclose(probabilities[:, :2], [[0, 1], [0, 1]], atol=1e-8)
    assert probabilities[1, 2] > probabilities[0, 2]


@pytest.mark.parametrize("model", ["logistic", "boosting"])
def test_classes_that_do_not_occur_in_training_have_no_chance(model: str) -> None:
    changes: dict[str, Any] = {"leaf_instances": 1} if model == "boosting" else {"inverse_penalty": [10.0]}
    two = small_problem([[1, 0, 0] if n % 2 else [0, 0, 1] for n in range(6)], kind="multiclass")
    probabilities = predicted(model, two, **changes)
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert probabilities[:, 1].max() < 1e-15
    assert probabilities.argmax(axis=1).tolist() == [2, 0]
    one = small_problem([[0, 1, 0]] * 6, kind="multiclass")
    assert np.allclose(predicted(model, one, **changes), [[0, 1, 0]] * 2)


def test_boosting_leaves_rare_codes_and_rare_features_out() -> None:
    targets = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 0, 1], [1, 0, 1, 0]], dtype=float)
    assert labels_to_boost(targets, BoostingSettings(minimum_positives=2)).tolist() == [1, 3]
    assert labels_to_boost(targets, BoostingSettings(minimum_positives=1, most_labels=2)).tolist() == [1, 3]
    assert labels_to_boost(targets[:, :1], BoostingSettings()).tolist() == []
    assert labels_to_boost(targets[:, 2:3], BoostingSettings()).tolist() == [0]
    from scipy.sparse import csr_array

    bag = Bag(csr_array(np.array([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 0]], dtype=float)), ("a", "b", "c", "d"))
    assert most_frequent_features(bag, np.arange(2), 2).tolist() == [1, 3]
    assert bag.dense(np.array([2]), np.array([1, 3])).tolist() == [[1, 0]]


def test_boosting_reads_all_numbers_of_trees_off_one_fit(cohort_folder: Path) -> None:
    given = problem(cohort_folder, "readmission")
    many = fit("boosting", given, trees=[3, 9], leaf_instances=5)
    alone = [fit("boosting", given, trees=[number], leaf_instances=5).account.tried[0] for number in (3, 9)]
    assert many.account.tried == alone


@pytest.mark.parametrize("task", ["readmission", "length_of_stay", "drug_recommendation"])
def test_trees_kept_as_arrays_predict_as_scikit_learn(task: str, cohort_folder: Path) -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    given = problem(cohort_folder, task)
    changes = {"trees": [12], "leaf_instances": 5, "minimum_positives": 5}
    probabilities = predicted("boosting", given, **changes)
    settings = BoostingSettings.model_validate(changes)
    bag = bag_of(given.instances, given.train)
    columns = most_frequent_features(bag, given.train, settings.most_features)
    inputs, wanted = bag.dense(given.train, columns), bag.dense(given.evaluated, columns)

    def plain(labels: np.ndarray) -> Any:
        return HistGradientBoostingClassifier(
            max_iter=12, max_leaf_nodes=15, min_samples_leaf=5, max_bins=15, l2_regularization=1.0,
            early_stopping=False, random_state=0,
        ).fit(inputs, labels)  # fmt: skip

    if task == "length_of_stay":
        model = plain(given.targets.argmax(axis=1))
        assert len(model.classes_) > 2
        assert np.abs(probabilities[:, model.classes_] - model.predict_proba(wanted)).max() < 1e-12
        return
    boosted = labels_to_boost(given.targets, settings)
    assert len(boosted)
    for label in boosted:
        model = plain(given.targets[:, label].astype(int))
        assert np.abs(probabilities[:, label] - model.predict_proba(wanted)[:, 1]).max() < 1e-12


def test_neighbors_vote_in_blocks_as_they_do_at_once(cohort_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from patients_like_me.systems import neighbors

    given = problem(cohort_folder, "drug_recommendation")
    at_once = predicted("neighbors", given, tau=[1], max_neighbors=[None])
    monkeypatch.setattr(neighbors, "_ROWS_PER_BLOCK", 3)
    assert np.array_equal(predicted("neighbors", given, tau=[1], max_neighbors=[None]), at_once)


def test_the_best_on_validation_is_chosen_and_the_first_of_equals() -> None:
    scores = iter([0.3, 0.8, 0.8, None])
    given = small_problem([[0]] * 6, judge=lambda probabilities: next(scores))
    best, account = choose(given, [Candidate({"n": n}, np.zeros((2, 1))) for n in range(4)])
    assert best.choice == account.chosen == {"n": 1}
    assert [entry["validation_score"] for entry in account.tried] == [0.3, 0.8, 0.8, None]
    blind, account = choose(small_problem([[0]] * 6), [Candidate({"n": n}, np.zeros((2, 1))) for n in range(2)])
    assert blind.choice == {"n": 0}
    assert "no score can choose" in account.notes[0]


@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    [
        ("magic", {}, "there is no system 'magic'; choose one of adacare, boosting"),
        ("logistic", {"inverse_penalty": []}, "inverse_penalty"),
        ("logistic", {"trees": [3]}, "trees"),
        ("repeat", {"weight": 2}, "weight=2 is not possible"),
        ("neighbors", {"tau": [0]}, "tau"),
    ],
)
def test_settings_that_make_no_sense_are_refused(model: str, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlmError, match=sentence):
        find_system(model).settings_of(None, **changes)
