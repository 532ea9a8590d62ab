"""KARE: retrieval against a plain reference, no leak through library, similar patients or prompts, kill and resume."""

from __future__ import annotations

import os
import subprocess
import sys
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
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.model.llm.settings import LLMSettings
from patients_like_me.records.cohort import Cohort
from patients_like_me.runs.run import load_run
from patients_like_me.systems.community_retrieval import (
    RetrievalSettings,
    Retriever,
    communities_of,
    nearest_of_each_class,
    unit,
)
from patients_like_me.systems.contract import RunContext
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.kare import _EXPLAIN, SYSTEM, KareSettings, TextReader, knowledge, reasons, written
from patients_like_me.systems.kare_library import Library, made_library
from patients_like_me.systems.problem import Problem, only, problem_of
from patients_like_me.systems.train import train
from patients_like_me.systems.tuned_decoder import TunedDecoder, prompt_ids
from patients_like_me.tasks.instances import build_instances
from patients_like_me.tasks.registry import find_task

SMALL: dict[str, Any] = {
    "threshold": 1e-5,
    "community_nodes": 4,
    "retrieval": {"chosen": 3},
    "max_tokens": 200,
    "precision": "float32",
    "epochs": 1,
    "rate": 0.01,
}


def plain_score(
    members: list[int], last: list[float], near: list[bool], hit: list[int], summary: Any, record: Any, themes: Any
) -> float:
    """The formula of the paper, one node after the other."""
    direct = [node for node in range(len(last)) if last[node] > 0]
    indirect = [node for node in range(len(last)) if near[node]]
    hits = [node for node in members if node in direct]
    near_hits = [node for node in members if node in indirect]
    value = len(hits) / len(direct) + 0.8 * len(near_hits) / len(indirect)
    for node in hits + near_hits:
        value *= 0.5 ** hit[node]

    def cosine(one: Any, other: Any) -> float:
        return float(sum(a * b for a, b in zip(one, other, strict=True)) / np.linalg.norm(one) / np.linalg.norm(other))

    value *= 1 + 0.1 * cosine(summary, record)
    value *= 1 + 0.1 * (sum(last[node] for node in hits) / len(hits) if hits else 0)
    return value * (1 + 0.1 * max(cosine(summary, theme) for theme in themes))


@pytest.fixture
def drawn() -> tuple[Retriever, Any, Any, Any, Any, Any]:
    draw = np.random.default_rng(0)
    communities = [sorted(draw.choice(30, 5, replace=False).tolist()) for _ in range(12)]
    summaries, themes = draw.normal(size=(12, 8)), draw.normal(size=(3, 8))
    last = np.where(draw.random(30) < 0.3, draw.integers(1, 5, 30), 0).astype(float)
    near = (draw.random(30) < 0.4) & (last == 0)
    retriever = Retriever.of(communities, 30, summaries, themes, RetrievalSettings())
    return retriever, communities, summaries, themes, last, near


def test_the_score_is_that_of_the_paper(drawn: Any) -> None:
    retriever, communities, summaries, themes, last, near = drawn
    record = np.random.default_rng(1).normal(size=8)
    hit = np.random.default_rng(2).integers(0, 3, 30)
    found = retriever.scores(last, near, hit.astype(float), unit(record))
    expected = [
        plain_score(members, last.tolist(), near.tolist(), hit.tolist(), summary, record, themes)
        for members, summary in zip(communities, summaries, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert max(expected) > 0.1


def test_communities_are_taken_one_after_the_other_and_hits_fade(drawn: Any) -> None:
    retriever, communities, summaries, themes, last, near = drawn
    record = np.random.default_rng(1).normal(size=8)
    hit, left, expected = [0] * 30, list(range(12)), []
    for _ in range(10):
        scores = {
            at: plain_score(communities[at], last.tolist(), near.tolist(), hit, summaries[at], record, themes)
            for at in left
        }
        best = max(left, key=lambda at: (scores[at], -at))
        if scores[best] <= 0:
            break
        expected.append(best)
        left.remove(best)
        for node in communities[best]:
            hit[node] += bool(last[node] or near[node])
    assert retriever.chosen(last, near, unit(record)) == expected
    assert len(expected) > 5


def test_communities_are_small_and_hold_every_linked_node_once() -> None:
    draw = np.random.default_rng(3)
    edges = [tuple(draw.integers(0, 60, 2).tolist()) for _ in range(150)]
    found = communities_of(edges, 61, 7, seed=0)
    members = [node for community in found for node in community]
    linked = {node for edge in edges for node in edge if edge[0] != edge[1]}
    assert sorted(members) == sorted(linked)
    assert max(map(len, found)) <= 7
    assert found == communities_of(edges[::-1], 61, 7, seed=0)


def test_similar_patients_are_of_each_class_and_never_oneself() -> None:
    draw = np.random.default_rng(4)
    bank = unit(draw.normal(size=(40, 6)))
    people = [f"p{at // 2}" for at in range(40)]
    labels = draw.integers(0, 3, 40)
    found = nearest_of_each_class(bank, people, bank, people, labels, 3, rows_per_block=7)
    for row, rows in enumerate(found):
        assert sorted(labels[rows]) == [0, 1, 2]
        assert people[row] not in [people[at] for at in rows]
        for at in rows:
            same = [k for k in range(40) if labels[k] == labels[at] and people[k] != people[row]]
            assert bank[at] @ bank[row] == pytest.approx(max(bank[k] @ bank[row] for k in same))


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLM_LLM_CACHE", str(tmp_path / "answers"))


@pytest.fixture(scope="module")
def problem(cohort_folder: Path) -> Problem:
    return problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))


@pytest.fixture(scope="module")
def settings_of(tiny_folder: Path) -> Callable[..., KareSettings]:
    return lambda **more: SYSTEM.settings_of(None, **{**SMALL, "backbone": {"name": str(tiny_folder)}, **more})


def library_of(problem: Problem, settings: KareSettings) -> Library:
    run, client = RunContext(settings), LLMClient.of(settings.llm)
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    graph, _ = knowledge(problem, run, vocabularies, client)
    return made_library(
        problem, run, vocabularies, graph, client, retrieval=settings.retrieval, most_nodes=4, shown=2, themes=()
    )


def test_no_test_patient_is_in_the_library(problem: Problem, settings_of: Callable[..., KareSettings]) -> None:
    def made(given: Problem) -> list[Any]:
        library = library_of(given, settings_of())
        told = [library.facts[name] for name in ("communities", "summary_texts", "bank", "bank_people")]
        return [*library.arrays.values(), *(np.array(str(each)) for each in told)]

    check_blind_to_test(problem, made)
    with pytest.raises(AssertionError, match="records of test patients"):
        check_blind_to_test(problem, lambda given: made(with_a_leak(given)))


def texts_of(library: Library, given: Problem, rows: Any) -> list[str]:
    looked = library.look_up(only(given.instances, rows), LLMClient.of(LLMSettings()))
    count = lambda text: len(text.split())  # noqa: E731
    return [written(each, given.instances.task, count, 10_000, asks=True) for each in looked]


def refuse_own_label(given: Problem, settings: KareSettings, made: Callable[[Problem, KareSettings], Library]) -> None:
    """Flip the labels of one training patient after the other: what is read about that patient must stay the same."""
    subjects = given.instances.frame["subject"].to_numpy()[given.train]
    library = made(given, settings)
    for subject in np.unique(subjects)[:3]:
        own = subjects == subject
        targets = given.targets.copy()
        targets[own] = 1 - targets[own]
        before = texts_of(library, given, given.train[own])
        after = texts_of(made(replace(given, targets=targets), settings), given, given.train[own])
        assert before == after, "the label of a patient is in what is read about the same patient"


def test_nobody_reads_the_own_label(problem: Problem, settings_of: Callable[..., KareSettings]) -> None:
    settings = settings_of(similar=2)
    refuse_own_label(problem, settings, library_of)

    def with_own_records(given: Problem, wanted: KareSettings) -> Library:
        library = library_of(given, wanted)
        strangers = [f"nobody {at}" for at in range(len(given.train))]
        return replace(library, facts={**library.facts, "bank_people": strangers})

    with pytest.raises(AssertionError, match="the label of a patient"):
        refuse_own_label(problem, settings, with_own_records)


class Overheard:
    """A language model that remembers what it was asked."""

    identity = "overheard"

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def complete(self, prompt: str, new_tokens: int) -> Any:
        from patients_like_me.model.llm.deterministic import Deterministic

        self.prompts.append(prompt)
        return Deterministic().complete(prompt, new_tokens)


def test_outcomes_are_told_about_training_patients_alone(
    problem: Problem, settings_of: Callable[..., KareSettings]
) -> None:
    settings = settings_of(most_reasons=1000)
    backend = Overheard()
    client = LLMClient(settings.llm, backend, None)  # type: ignore[arg-type]
    texts = [f"record {row}" for row in range(len(problem.instances))]
    told, notes = reasons(problem, RunContext(settings), texts, client)
    assert sorted(told) == problem.train.tolist()
    count = len(problem.train)
    assert notes == [f"{count} of {count} answers were complete", f"reasons of {count} training instances"]
    asked = {int(prompt.split()[1]) for prompt in backend.prompts}
    assert asked == set(problem.train.tolist())


def test_an_answer_that_is_cut_keeps_its_confidence(problem: Problem, settings_of: Callable[..., KareSettings]) -> None:
    class Cut(Overheard):
        def complete(self, prompt: str, new_tokens: int) -> Any:
            answer = super().complete(prompt, new_tokens)
            # Every other answer ends within its second field, the rest within the first.
            words = str(answer.value).split(" ")
            return replace(answer, value=" ".join(words[: 4 if len(self.prompts) % 2 else 1]))

    settings = settings_of(most_reasons=1000)
    client = LLMClient(settings.llm, Cut(), None)  # type: ignore[arg-type]
    told, notes = reasons(problem, RunContext(settings), [f"record {row}" for row in range(10_000)], client)
    count = len(problem.train)
    assert len(told) == -(-count // 2)
    assert notes[0] == f"{len(told)} of {count} answers were complete"


def test_a_decoder_reads_whole_blocks_within_its_budget_alone_as_in_a_batch(
    problem: Problem, settings_of: Callable[..., KareSettings], decoder_folder: Path
) -> None:
    settings = settings_of(decoder=str(decoder_folder), max_tokens=180)
    looked = library_of(problem, settings).look_up(
        only(problem.instances, problem.train[:12]), LLMClient.of(settings.llm)
    )
    reader = TextReader(settings, 1)
    network = reader.build()
    assert isinstance(network, TunedDecoder)
    # A chat template of its own words, as tuned models have.
    network.decoder.tokenizer.chat_template = "the " * 30 + "{{ messages[0]['content'] }}" + " the" * 10
    layers = network.decoder.model.named_modules()
    assert {layer.p for name, layer in layers if name.endswith("lora_dropout.default")} == {0.1}
    texts = reader.texts(network, looked, problem.instances.task)
    # Nothing is left for the decoder to leave out, also where it is asked for a reason.
    for text in texts + [text + _EXPLAIN for text in texts]:
        assert network.decoder.count_tokens(text) + network.decoder.frame_tokens <= 180
    assert any("Similar patient" in text for text in texts)
    for text in texts:
        starts = [line.split(":")[0] for line in text.splitlines()]
        assert starts.count("Current visit") == 1
        assert "visit" not in " ".join(starts[starts.index("Current visit") + 1 :]).lower()
    prompts = prompt_ids(network.decoder, texts, 180)
    network.eval()
    with torch.no_grad():
        together = network.logits_of(prompts, np.arange(12), at_once=12)
        alone = torch.cat([network.logits_of(prompts, np.array([row])) for row in range(12)])
    np.testing.assert_allclose(together.numpy(), alone.numpy(), rtol=0, atol=1e-5)


def test_a_decoder_learns_reasons_and_labels(
    problem: Problem, settings_of: Callable[..., KareSettings], decoder_folder: Path
) -> None:
    settings = settings_of(decoder=str(decoder_folder), most_reasons=20, batch_size=8, epochs=2)
    assert SYSTEM.title_of(settings) == "KARE[deterministic,co-occurrence,decoder=tiny-llama]"
    fitted = SYSTEM.fit(problem, RunContext(settings))
    assert "reasons of 20 training instances" in fitted.account.notes
    losses = [record["training_loss"] for record in fitted.account.epochs]
    assert losses[-1] < losses[0]
    chosen = only(problem.instances, problem.test)
    found = SYSTEM.predict(fitted, chosen)
    assert found.shape == (len(problem.test), 1)
    assert np.isfinite(found).all()
    assert np.ptp(found) > 0
    for name, words in (("decoder_digest", "decoder .* has other weights"), ("language_model", "not the one used")):
        with pytest.raises(PlmError, match=words):
            SYSTEM.predict(replace(fitted, facts={**fitted.facts, name: "another"}), chosen)
        # Runs from before lack what tells models apart.
        without = {key: value for key, value in fitted.facts.items() if key != name}
        with pytest.raises(PlmError, match=r"must be trained again|has other weights"):
            SYSTEM.predict(replace(fitted, facts=without), chosen)
    # Only adapters are kept of the decoder.
    assert all("lora" in name for name in fitted.arrays if name.startswith("reader."))


def test_the_text_keeps_its_budget(problem: Problem, settings_of: Callable[..., KareSettings]) -> None:
    settings = settings_of()
    library = library_of(problem, settings)
    looked = library.look_up(only(problem.instances, problem.train[:20]), LLMClient.of(settings.llm))
    reader = TextReader(settings.model_copy(update={"max_tokens": 64}), 1)
    assert reader.backbone is not None
    texts = reader.texts(None, looked, problem.instances.task)
    assert max(reader.backbone.count_tokens(texts)) <= 64
    longer = TextReader(settings, 1).texts(None, looked, problem.instances.task)
    assert all("Current visit" in text for text in texts)
    assert sum("Similar patient" in text for text in longer) == len(longer)
    assert any("Known:" in text for text in longer)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as found:
        yield found


def test_killed_between_calls_it_goes_on_without_asking_twice(
    cohort_folder: Path, tiny_folder: Path, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = {"backend": "endpoint", "model": "fake", "address": server.address}
    themes = ["heart", "sugar", "age", "earlier stays"]
    settings = SYSTEM.settings_of(None, **SMALL, backbone={"name": str(tiny_folder)}, llm=llm, themes=themes)
    program = (
        "import json, sys; from pathlib import Path; from patients_like_me.systems.train import train\n"
        "cohort, out, settings = sys.argv[1:]\n"
        "train(Path(cohort), 'readmission', Path(out), system='kare', settings=json.loads(settings))"
    )
    words = [sys.executable, "-c", program, str(cohort_folder), str(tmp_path / "run"), settings.model_dump_json()]
    child: subprocess.Popen[bytes] | None = None

    def kill(number: int) -> None:
        if number == 40 and child is not None:
            child.kill()

    server.before = kill
    child = subprocess.Popen(words, env=dict(os.environ), stderr=subprocess.PIPE)
    _, problems = child.communicate()
    assert child.returncode == -9, problems.decode()[-500:]
    answered = server.prompts[:39]
    resumed = train(cohort_folder, "readmission", tmp_path / "run", system="kare", settings=settings)
    # The call that the kill interrupted is the only one that may be made again.
    assert len(set(answered)) == 39
    assert not set(answered) & set(server.prompts[40:])
    assert len(server.prompts[40:]) == len(set(server.prompts[40:])) > 40
    assert any("different answers" in note for note in resumed.results.notes)
    assert resumed.results.seconds > sum(record["seconds"] for record in resumed.epoch_records())
    monkeypatch.setenv("PLM_LLM_CACHE", str(tmp_path / "other answers"))
    before = len(server.prompts)
    whole = train(cohort_folder, "readmission", tmp_path / "whole", system="kare", settings=settings)
    # The plan is what a run asks where no two records are equal.
    given = problem_of(build_instances(Cohort.load(cohort_folder), find_task("readmission")))
    assert sum(SYSTEM.llm_calls(given, settings).values()) == len(server.prompts) - before  # type: ignore[misc]
    assert whole.predictions().equals(load_run(resumed.folder).predictions())


def test_own_triples_and_ontology_are_named(settings_of: Callable[..., KareSettings]) -> None:
    assert SYSTEM.missing_knowledge(settings_of()) == {}
    assert set(SYSTEM.knowledge_under(settings_of(knowledge_from="ontology"))) == {"ccs_multi_dx", "ccs_multi_pr"}  # type: ignore[misc]
    assert SYSTEM.title_of(settings_of(knowledge_from="file", triples="a.tsv")) == "KARE[deterministic,no-reasoning]"
    with pytest.raises(PlmError, match="belong together"):
        settings_of(knowledge_from="file")
