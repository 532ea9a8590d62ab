"""ColaCare: the consultation, guidelines by BM25, fusion of experts and reports, no label in any prompt, resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model.llm.fake_server import FakeServer, fake_server
from systems.leak_checks import check_blind_to_test, with_a_leak

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.client import Answer, LLMClient
from patients_like_me.model.llm.endpoint import Endpoint
from patients_like_me.model.llm.settings import LLMSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.colacare import SYSTEM, ColaCareSettings, Fusion
from patients_like_me.systems.consultation import Consultation, Consulted
from patients_like_me.systems.contract import Fitted, RunContext
from patients_like_me.systems.expert_views import EXPERTS, View, views_of
from patients_like_me.systems.features import VisitFeatures, Vocabularies
from patients_like_me.systems.guidelines import Guidelines, words_of
from patients_like_me.systems.patient_context import PatientContext, contexts_of
from patients_like_me.systems.planning import plan_training
from patients_like_me.systems.problem import Problem, only, problem_of
from patients_like_me.systems.train import train
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task, task_settings_of

SMALL: dict[str, Any] = {
    "adacare": {"filters": 4, "hidden": 8, "epochs": 1},
    "mc_gru": {"group": 4, "hidden": 8, "epochs": 1},
    "retain": {"embedding": 8, "visit_hidden": 8, "code_hidden": 8, "epochs": 1},
    "epochs": 2,
    "merged": 8,
    "max_rounds": 1,
    "most_reports": 20,
}
RECORD = PatientContext("Patient: age 60.", ("Current visit: diagnoses: sepsis.",))


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_LLM_CACHE", str(tmp_path / "answers"))


@pytest.fixture(scope="module")
def problem(cohort_folder: Path) -> Problem:
    return problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))


@pytest.fixture(scope="module")
def settings_of(tiny_folder: Path) -> Callable[..., ColaCareSettings]:
    return lambda **more: SYSTEM.settings_of(None, **{**SMALL, "backbone": {"name": str(tiny_folder)}, **more})


class Scripted:
    """Doctors who disagree for some rounds, then agree; what they are asked is remembered."""

    identity = "scripted"

    def __init__(self, disagreements: int) -> None:
        self.left, self.prompts = disagreements, list[str]()

    def complete(self, prompt: str, new_tokens: int) -> Answer:
        del new_tokens
        self.prompts.append(prompt)
        if "Do you agree" in prompt:
            self.left -= 1
            opinion = "disagree" if self.left >= 0 else "agree"
            return Answer(f"opinion: {opinion}\nconfidence: 3\nreason: reason number {self.left}")
        if "You lead" in prompt:
            return Answer(f"estimate: 0.4\nreport: report after {len(self.prompts)} questions")
        expert = prompt.partition("estimate of the model ")[2][:1]
        return Answer(f"estimate: 0.3\nanalysis: analysis of {expert}\nevidence: a page")


def view(name: str) -> View:
    return View(name, np.zeros((1, 2), np.float32), np.array([[0.371]]), (("sepsis", "fever"),))


def consulted(backend: Scripted, rounds: int, guidelines: Guidelines | None = None) -> Consulted:
    client = LLMClient(LLMSettings(), backend, None)  # type: ignore[arg-type]
    task = find_task("readmission")
    room = Consultation(task, client, guidelines or Guidelines.of(()), passages=1, rounds=rounds, record_words=50)
    return room.consult(RECORD, [view("a"), view("b"), view("c")], 0)


def test_rounds_go_on_until_all_agree() -> None:
    backend = Scripted(disagreements=4)
    found = consulted(backend, rounds=3)
    # Three analyses and a report; two rounds with a revised report; one in which all agree.
    assert len(backend.prompts) == 3 + 1 + 2 * 4 + 3
    assert (found.rounds, found.agreed, found.estimate) == (3, True, 0.4)
    assert found.report == "report after 12 questions"
    revised = [prompt for prompt in backend.prompts if "Doctors disagree" in prompt]
    assert "doctor 1 (3 of 3 sure): reason number 3" in revised[0]
    assert not consulted(Scripted(disagreements=99), rounds=2).agreed
    assert consulted(Scripted(0), rounds=0).rounds == 0


def test_doctors_read_record_expert_and_guideline_and_bad_answers_do_no_harm() -> None:
    backend = Scripted(0)
    consulted(backend, 1, Guidelines.of(["treat fever with rest", "sepsis needs antibiotics and fever watch"]))
    first = backend.prompts[0]
    for words in ("diagnoses: sepsis", "estimate of the model a: 0.37", "sepsis, fever", "guideline: sepsis needs"):
        assert words in first
    assert "treat fever" not in first
    backend.complete = lambda prompt, new_tokens: Answer("I do not know.")  # type: ignore[method-assign]
    found = consulted(backend, 2)
    assert "estimate of the model a: 0.37" in found.report
    assert found.estimate is None


def test_passages_score_as_bm25_says() -> None:
    passages = ["insulin lowers blood sugar", "blood pressure", "fever and blood and blood"]
    query = ["blood", "insulin", "nothing"]
    lengths = [len(words_of(passage)) for passage in passages]
    expected = []
    for passage, length in zip(passages, lengths, strict=True):
        total = 0.0
        for word in query:
            having = sum(word in words_of(each) for each in passages)
            often = words_of(passage).count(word)
            rarity = math.log(1 + (3 - having + 0.5) / (having + 0.5))
            total += rarity * often * 2.5 / (often + 1.5 * (0.25 + 0.75 * length / (sum(lengths) / 3)))
        expected.append(total)
    np.testing.assert_allclose(Guidelines.of(passages).scores(query), expected, atol=1e-9)


def test_a_folder_of_guidelines(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("Heart failure\nneeds diuretics.\n\nFever needs rest.")
    (tmp_path / "b.txt").write_text("word " * 250)
    found = Guidelines.read(str(tmp_path))
    assert (found.files, len(found.passages)) == (2, 4)
    assert found.best(["diuretics"], 3) == ["Heart failure needs diuretics."]
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlmError, match=r"c\.txt' cannot be read"):
        Guidelines.read(str(tmp_path))
    with pytest.raises(PlmError, match="has no text"):
        Guidelines.read(str(tmp_path / "nowhere"))


def test_experts_give_what_their_last_layer_reads(problem: Problem, settings_of: Any) -> None:
    settings, vocabularies = settings_of(), Vocabularies.of_training(problem.instances, problem.train)
    facts = {"vocabularies": vocabularies.as_json(), "outputs": 1}
    chosen = only(problem.instances, problem.validation)
    for expert in EXPERTS:
        own = settings.of_expert(expert)
        fitted = expert.network.fit(problem, RunContext(own))
        opened = expert.network.opened(Fitted(own, fitted.arrays, facts))
        seen = views_of([(expert, opened)], vocabularies, chosen, 3)[0]
        with torch.no_grad():
            batch = VisitFeatures.of(chosen, vocabularies).batch(np.arange(len(chosen)))
            again = opened.head(torch.from_numpy(seen.vectors), batch.demographics).double().numpy()
        np.testing.assert_allclose(problem.kind.probabilities(again), seen.probabilities, atol=1e-6)
        assert all(1 <= len(names) <= 3 for names in seen.important)


class Telling(Consultation):
    """A consultation with a leak: the doctors are told the label."""

    labels: Any = ()

    def doctor_prompt(self, record: str, view: View, row: int) -> str:
        return f"label {self.labels[row]}\n{super().doctor_prompt(record, view, row)}"


def views_of_trained(given: Problem, settings: ColaCareSettings, rows: Any) -> list[View]:
    vocabularies = Vocabularies.of_training(given.instances, given.train)
    facts = {"vocabularies": vocabularies.as_json(), "outputs": 1}
    networks = []
    for expert in EXPERTS:
        own = settings.of_expert(expert)
        fitted = expert.network.fit(given, RunContext(own))
        networks.append((expert, expert.network.opened(Fitted(own, fitted.arrays, facts))))
    return views_of(networks, vocabularies, only(given.instances, rows), 3)


def prompts_of(given: Problem, views: list[View], rows: Any, room: type[Consultation] = Consultation) -> Any:
    backend, chosen = Scripted(0), only(given.instances, rows)
    client = LLMClient(LLMSettings(), backend, None)  # type: ignore[arg-type]
    found = room(given.instances.task, client, Guidelines.of(()), passages=1, rounds=1, record_words=100)
    if isinstance(found, Telling):
        found.labels = chosen.labels
    for row, context in enumerate(contexts_of(chosen)):
        found.consult(context, views, row)
    return np.array(backend.prompts)


def test_no_test_patient_is_in_prompts_of_training(problem: Problem, settings_of: Any) -> None:
    rows = problem.train[:10]

    # Steps so large that what was learned from one patient more shows in rounded estimates.
    large = {"adacare": {**SMALL["adacare"], "rate": 0.1, "epochs": 3}}

    def asked(given: Problem) -> list[Any]:
        return [prompts_of(given, views_of_trained(given, settings_of(**large), rows), rows)]

    check_blind_to_test(problem, asked)
    with pytest.raises(AssertionError, match="records of test patients"):
        check_blind_to_test(problem, lambda given: asked(with_a_leak(given)))


def test_no_prompt_has_the_label_of_the_patient_in_question(problem: Problem, settings_of: Any) -> None:
    rows = problem.train[:10]
    views = views_of_trained(problem, settings_of(), rows)
    flipped = replace(problem, instances=replace(problem.instances, labels=1 - problem.instances.labels))

    def check(room: type[Consultation]) -> None:
        same = np.array_equal(prompts_of(problem, views, rows, room), prompts_of(flipped, views, rows, room))
        assert same, "the label of a patient is in the prompts about the patient"

    check(Consultation)
    with pytest.raises(AssertionError, match="the label of a patient"):
        check(Telling)


def test_fusion_is_two_layers_with_gelu() -> None:
    torch.manual_seed(0)
    network, read = Fusion(5, 4, 0.0, 2).double(), np.random.default_rng(0).normal(size=(3, 5))
    kept = {name: value.detach().numpy() for name, value in network.named_parameters()}
    inner = read @ kept["merge.weight"].T + kept["merge.bias"]
    gelu = np.array([[x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in row] for row in inner])
    expected = gelu @ kept["output.weight"].T + kept["output.bias"]
    np.testing.assert_allclose(network(torch.from_numpy(read)).detach().numpy(), expected, atol=1e-9)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


def test_stopped_between_calls_it_goes_on_without_asking_twice(
    make_cohort: Callable[..., Path],
    settings_of: Any,
    server: FakeServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every patient is talked about in many calls.
    cohort = make_cohort(patients=24, seed=2)
    monkeypatch.setattr(Endpoint.__init__, "__defaults__", ((0.0,),))
    (tmp_path / "manual").mkdir()
    (tmp_path / "manual" / "a.txt").write_text("Sepsis needs antibiotics.")
    llm = {"backend": "endpoint", "model": "fake", "address": server.address}
    settings = settings_of(llm=llm, guidelines=str(tmp_path / "manual"), most_reports=4)
    assert SYSTEM.title_of(settings) == "ColaCare[fake]"

    whole = train(cohort, "readmission", tmp_path / "whole", system="colacare", settings=settings)
    asked = len(server.prompts)
    # Everybody is in the count, test patients too.
    assert any(f"{asked} of them asked for now" in note for note in whole.results.notes)
    assert whole.results.seconds > sum(record["seconds"] for record in whole.epoch_records())
    assert whole.results.trained_weights is not None
    monkeypatch.setenv("PLM_LLM_CACHE", str(tmp_path / "other answers"))

    def stop(number: int) -> None:
        # Once while training patients are discussed, and once with the last test patient.
        server.failures = [500, 500] if number in (asked + 30, 2 * asked - 2) else server.failures

    server.before = stop
    for _ in range(2):
        with pytest.raises(PlmError, match="error 500"):
            train(cohort, "readmission", tmp_path / "run", system="colacare", settings=settings)
        assert len(list((tmp_path / "run" / "stages").iterdir())) == 3
    resumed = train(cohort, "readmission", tmp_path / "run", system="colacare", settings=settings)
    # A call that failed is made again, and no other one.
    assert len(set(server.prompts[asked:])) == asked
    assert len(server.prompts) == 2 * asked + 2 * 2
    assert not (resumed.folder / "stages").exists()
    assert whole.predictions().equals(resumed.predictions())
    assert resumed.results.trained_weights == whole.results.trained_weights


def test_another_language_model_or_encoder_is_refused(problem: Problem, settings_of: Any) -> None:
    fitted = SYSTEM.fit(problem, RunContext(settings_of(most_reports=4, epochs=1)))
    for name, words in (("language_model", "not the one used in training"), ("backbone_sha256", "has other weights")):
        with pytest.raises(PlmError, match=words):
            SYSTEM.predict(replace(fitted, facts={**fitted.facts, name: "another"}), problem.instances)
        # Runs from before lack what tells models apart.
        without = {key: value for key, value in fitted.facts.items() if key != name}
        with pytest.raises(PlmError, match=r"must be trained again|has other weights"):
            SYSTEM.predict(replace(fitted, facts=without), problem.instances)


def test_a_plan_says_how_many_calls_and_asks_once(cohort_folder: Path, settings_of: Any, server: FakeServer) -> None:
    llm = {"backend": "endpoint", "model": "fake", "address": server.address}
    task = task_settings_of("readmission", "quick")
    words = plan_training(cohort_folder, "readmission", "colacare", settings_of(llm=llm), task).words
    assert words["calls in all"].startswith("at most ")
    calls = int(words["calls in all"].split()[2].replace(",", ""))
    assert calls % 8 == 0
    # The first expert is measured, with its own epochs, and nothing is said of the others' time.
    assert "at most 1 epochs of the stage 'AdaCare'" in words
    assert words["not measured"].endswith("at most 2 epochs of the stage 'fusion'")
    assert "for one measured answer" in words["time of calls"]
    assert len(server.asked) == 1
    assert "statement number 1" in server.prompts[0]
