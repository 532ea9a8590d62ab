"""KARE: knowledge-graph communities and similar patients beside the record, read by a tuned model (Jiang et al. 2025).

1. A knowledge graph around the codes, its communities, and a summary of each by a language model.
2. For a patient: the record in words, the communities that matter most (:mod:`community_retrieval`), and for each class
   the most similar training patient with that outcome, never the patient's own records.
3. A language model explains training patients whose outcome it is told; where it is unsure, the reason is dropped.
4. A local decoder with low-rank adapters learns two tasks: to give those reasons, and to answer with the label. The
   score of a class is the log-probability of its label's tokens.

The public code chooses similar patients by the label of the patient in question, out of all patients, test included,
and adds validation rows to the training file; here the bank is the training split and nobody's own label is used.
Without ``decoder`` nothing can be generated in answer: a classifier reads the same text through ``backbone``, and the
system is called ``no-reasoning``. The name has the language model of the summaries, and where the graph comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.model.llm.answer_form import TEXT, AnswerForm
from patients_like_me.model.llm.client import LLMClient
from patients_like_me.model.llm.decoder import weights_digest
from patients_like_me.model.llm.settings import LLMSettings
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.randomness import mixed_seed
from patients_like_me.model.settings import BackboneSettings, Precision
from patients_like_me.records.cohort import KINDS
from patients_like_me.runs.record import Capabilities
from patients_like_me.systems.code_trees import TABLES
from patients_like_me.systems.community_retrieval import RetrievalSettings, communities_of
from patients_like_me.systems.contract import Fitted, RunContext, System, below
from patients_like_me.systems.epochs import EpochSettings, load_weights, logits_in_batches, train_network, weights_of
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.kare_library import Library, Looked, made_library, outcome_words, themes_of
from patients_like_me.systems.knowledge_graph import KnowledgeGraph, graph_of_triples
from patients_like_me.systems.known_triples import (
    KnownTriples,
    Source,
    concepts,
    triples_of_co_occurrence,
    triples_of_file,
    triples_of_language_model,
    triples_of_ontology,
    words_of_entities,
)
from patients_like_me.systems.language_reader import LanguageReader, loaded_backbone
from patients_like_me.systems.name_embeddings import name_embeddings
from patients_like_me.systems.problem import Logits, Problem
from patients_like_me.systems.tuned_decoder import TunedDecoder, longest_prompt, prompt_ids
from patients_like_me.tasks.instances import Instances, Rows
from patients_like_me.tasks.kinds import BINARY, MULTICLASS
from patients_like_me.tasks.task import Task

# The text is last: an answer that ends at its longest loses a part of it and nothing else.
_REASON = AnswerForm({"confidence": "sure | unsure", "reasoning": TEXT})
#: Two sequences each, label and reason: a decoder's gradients need about a megabyte per token.
_ROWS_AT_ONCE = 2
#: What is added to a text where the decoder learns to give a reason.
_EXPLAIN = "\nExplain step by step before you answer."


class KareSettings(EpochSettings):
    """KARE's settings; the defaults are those of its paper, sizes cut to what a processor can do."""

    llm: LLMSettings = Field(LLMSettings(), description="the language model of summaries, reasons and vectors")
    decoder: str = Field("", description="the local decoder that is tuned, such as smollm2-135m; '': no reasoning")
    backbone: BackboneSettings = Field(
        BackboneSettings(), description="reads names; without a decoder it is the classifier too"
    )
    knowledge_from: Source = Field("co-occurrence", description="where the triples of the knowledge graph come from")
    triples: str | None = Field(None, description="knowledge_from=file: TSV of triples (head, relation, tail)")
    co_occurring: int = Field(10, ge=1, description="codes per code by co-occurrence in training")
    most_triples: int = Field(10, ge=1, description="knowledge_from=llm: facts per code")
    threshold: float = Field(0.14, gt=0, le=2, description="cosine distance below which names become one node")
    community_nodes: int = Field(10, ge=2, description="most nodes of a community")
    retrieval: RetrievalSettings = RetrievalSettings()
    similar: int = Field(2, ge=0, description="similar patients shown: the nearest of as many classes, one of each")
    themes: tuple[str, ...] = Field((), description="words that the task is about; none: those of the task")
    most_reasons: int = Field(300, ge=0, description="training instances with reasons by the language model")
    reasoning: float = Field(1.0, ge=0, description="weight of the reasons in the loss")
    max_tokens: int = Field(512, ge=64, description="token budget of the text that is read")
    precision: Precision = Field("auto", description="half precision only where the device is faster with it")
    lora_rank: int = Field(8, ge=1, description="rank of the decoder's adapters")
    lora_alpha: float = Field(16, gt=0, description="scale of the decoder's adapters")
    epochs: int = Field(6, ge=1, description="most epochs")
    patience: int = Field(2, ge=1, description="epochs without a better validation score before stopping")
    batch_size: int = Field(16, ge=1, description="instances per step")
    rate: float = Field(2e-4, gt=0, le=100, description="learning rate; the paper's full tuning has 5e-6")
    weight_decay: float = Field(0.0, ge=0, le=100, description="the optimizer's weight decay")

    @model_validator(mode="after")
    def _file_has_a_name(self) -> KareSettings:
        if (self.knowledge_from == "file") != (self.triples is not None):
            raise ValueError("triples=FILE and knowledge_from=file belong together")
        return self


def knowledge(
    problem: Problem, run: RunContext, vocabularies: Vocabularies, client: LLMClient
) -> tuple[KnowledgeGraph, KnownTriples]:
    """Return the knowledge graph, and the triples that it was made of."""
    settings: KareSettings = run.settings
    if settings.knowledge_from == "file":
        known = triples_of_file(str(settings.triples))
    elif settings.knowledge_from == "llm":
        known = triples_of_language_model(problem, run, vocabularies, client, settings.most_triples)
    elif settings.knowledge_from == "ontology":
        known = triples_of_ontology(problem, vocabularies, settings.co_occurring)
    else:
        known = triples_of_co_occurrence(problem, vocabularies, settings.co_occurring)
    codes = {str(kind): vocabularies.codes[kind] for kind in KINDS if vocabularies.codes[kind]}
    graph = graph_of_triples(
        known.triples,
        codes,
        words_of_entities(problem, vocabularies, known.names),
        lambda texts: name_embeddings(texts, settings.backbone),
        threshold=settings.threshold,
        hops=1,
    )
    return graph, known


def written(looked: Looked, task: Task, count: Any, budget: int, *, asks: bool) -> str:
    """Write what is read for one patient within a budget: the record first, then similar patients, then summaries.

    A similar patient is one line, which stays whole or goes whole: visits without the words whose they are would be
    read as the patient's own. ``asks`` adds the question and the form of the answer, for a decoder.
    """
    question = f"\nQuestion: {task.question} Answer with the number of the class alone.\n" if asks else ""
    left = budget - count(question) - 4
    record = looked.context.within(count, max(16, left * 3 // 5))
    left -= count(record)
    parts = [record]
    for context, outcome in looked.similar:
        other = " ".join(context.within(count, max(8, left // 3)).split("\n"))
        shown = f"Similar patient, outcome: {outcome}. {other}"
        if (used := count(shown) + 1) <= left:
            parts.append(shown)
            left -= used
    for summary in looked.summaries:
        shown = f"Known: {summary}"
        if (used := count(shown) + 1) <= left:
            parts.append(shown)
            left -= used
    # Tokens of parts need not add up to those of the whole.
    while len(parts) > 1 and count("\n".join(parts) + question) > budget:
        parts.pop()
    return "\n".join(parts) + question


def reason_prompt(text: str, task: Task, label: int) -> str:
    """Return the question for a reason; it tells the outcome, so it is asked about training patients alone."""
    return (
        f"{text}\nThe outcome is known: {outcome_words(task, label)}.\n"
        f"- {outcome_words(task, label)}\n"
        "Explain step by step, from the record and the known facts, why this was to be expected.\n" + _REASON.words()
    )


def reasons(
    problem: Problem, run: RunContext, texts: Sequence[str], client: LLMClient
) -> tuple[dict[int, str], list[str]]:
    """Return reasons of some training instances, by row, and notes; unsure and empty ones are dropped."""
    settings: KareSettings = run.settings
    order = np.random.default_rng(mixed_seed(run.seed, 11)).permutation(len(problem.train))[: settings.most_reasons]
    found, complete = {}, 0
    for number, place in enumerate(np.sort(order).tolist(), start=1):
        run.report(f"reasons: instance {number:,} of {len(order):,}")
        row = int(problem.train[place])
        target = problem.targets[place]
        label = int(target[0]) if problem.outputs == 1 else int(target.argmax())
        answer = _REASON.read(client.complete(reason_prompt(texts[row], problem.instances.task, label)))
        complete += len(answer) == len(_REASON.fields)
        if answer.get("confidence") == "sure" and "reasoning" in answer:
            found[row] = answer["reasoning"]
    notes = [f"{complete:,} of {len(order):,} answers were complete", f"reasons of {len(found):,} training instances"]
    return found, notes


class TextReader:
    """What reads the written texts: a tuned decoder, or a classifier over an encoder."""

    def __init__(self, settings: KareSettings, outputs: int, expected_hash: str | None = None) -> None:
        self.settings, self.outputs = settings, outputs
        self.backbone = None
        if not settings.decoder:
            self.backbone = loaded_backbone(settings.backbone, settings.seed, expected_hash)

    def build(self) -> TunedDecoder | LanguageReader:
        """Return the network to train."""
        settings = self.settings
        if self.backbone is not None:
            return LanguageReader(self.backbone, self.outputs, precision=settings.precision)
        return TunedDecoder(
            settings.decoder, self.outputs, rank=settings.lora_rank, alpha=settings.lora_alpha, seed=settings.seed
        )

    def texts(self, network: TunedDecoder | LanguageReader | None, looked: Sequence[Looked], task: Task) -> list[str]:
        """Write the texts within the budget of the reader."""
        if self.backbone is not None:
            backbone = self.backbone
            budget = min(self.settings.max_tokens, backbone.max_tokens)
            count = lru_cache(maxsize=None)(lambda text: backbone.count_tokens([text])[0])
            return [written(each, task, count, budget, asks=False) for each in looked]
        assert isinstance(network, TunedDecoder)
        decoder = network.decoder
        count = lru_cache(maxsize=4096)(decoder.count_tokens)
        budget = longest_prompt(decoder, self.settings.max_tokens) - decoder.frame_tokens - count(_EXPLAIN)
        return [written(each, task, count, budget, asks=True) for each in looked]

    def logits(self, network: Any, texts: Sequence[str]) -> Any:
        """Return the function that predicts rows of texts."""
        if isinstance(network, TunedDecoder):
            prompts = prompt_ids(network.decoder, texts, self.settings.max_tokens)
            return lambda given, rows: given.logits_of(prompts, rows)
        assert self.backbone is not None
        inputs = prepare_inputs(self.backbone, list(texts), max_tokens=self.settings.max_tokens)
        return lambda given, rows: given.logits_of(inputs, rows)


def fit(problem: Problem, run: RunContext) -> Fitted:
    """Make the library of training patients, look everybody up, and train the reader."""
    settings: KareSettings = run.settings
    client = LLMClient.of(settings.llm)
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    graph, known = knowledge(problem, run, vocabularies, client)
    library = made_library(
        problem,
        run,
        vocabularies,
        graph,
        client,
        retrieval=settings.retrieval,
        most_nodes=settings.community_nodes,
        shown=settings.similar,
        themes=settings.themes,
    )
    looked = library.look_up(problem.instances, client)
    reader = TextReader(settings, problem.outputs)
    network = reader.build() if settings.decoder else None
    texts = reader.texts(network, looked, problem.instances.task)
    told: dict[int, str] = {}
    of_reasons: list[str] = []
    if settings.decoder and settings.reasoning:
        told, of_reasons = reasons(problem, run, texts, client)
    logits = reader.logits(network, texts)
    loss = None
    if isinstance(network, TunedDecoder):
        prompts = prompt_ids(network.decoder, texts, settings.max_tokens)
        loss = two_tasks(network.decoder, prompts, texts, told, settings)
    trained, account = train_network(
        problem,
        run,
        # The decoder is loaded once; its adapters are drawn from the seed of the settings.
        reader.build if network is None else lambda: network,
        logits,
        loss,
        rows_at_once=None if loss is None else _ROWS_AT_ONCE,
    )
    notes = [
        graph.sentence(),
        f"{len(library.facts['communities']):,} communities",
        *known.notes,
        *of_reasons,
        client.usage.sentence(settings.llm.name),
    ]
    facts = {**library.facts, "outputs": problem.outputs, "knowledge": dict(known.facts)}
    facts["language_model"] = client.backend.identity
    if reader.backbone is not None:
        facts["backbone_sha256"] = reader.backbone.weights_sha256
    else:
        facts["decoder_digest"] = weights_digest(settings.decoder)
    arrays = {f"reader.{name}": value for name, value in weights_of(trained).items()}
    arrays |= {f"library.{name}": np.asarray(value) for name, value in library.arrays.items()}
    seconds = (account.seconds or 0.0) + client.usage.seconds
    return Fitted(settings, arrays, facts, replace(account, notes=notes, seconds=seconds))


def two_tasks(
    decoder: Any, prompts: Sequence[list[int]], texts: Sequence[str], told: dict[int, str], settings: KareSettings
) -> Any:
    """Return the loss of both tasks: answer with the label, and, where there is one, give the reason."""
    asking = {row: f"{texts[row]}{_EXPLAIN}" for row in told}
    reasoning_prompts = {row: prompt_ids(decoder, [text], settings.max_tokens)[0] for row, text in asking.items()}
    room = {row: max(1, decoder.max_tokens - len(ids)) for row, ids in reasoning_prompts.items()}
    answers = {row: decoder.answer_ids(told[row])[: min(room[row], settings.llm.new_tokens)] for row in told}

    def loss(network: TunedDecoder, rows: Rows, targets: Tensor, _epoch: int) -> Tensor:
        total = network.losses([prompts[row] for row in rows], network.label_answers(targets)).mean()
        explained = [int(row) for row in rows if answers.get(int(row))]
        if explained:
            own = [reasoning_prompts[row] for row in explained]
            of_reasons = network.losses(own, [answers[row] for row in explained])
            total = total + settings.reasoning * of_reasons.sum() / len(rows)
        return total

    return loss


def opened(fitted: Fitted) -> tuple[Library, TextReader, TunedDecoder | LanguageReader]:
    """Return library, reader and network from what was kept."""
    settings: KareSettings = fitted.settings
    if settings.decoder and weights_digest(settings.decoder) != fitted.facts.get("decoder_digest"):
        raise PlmError(
            f"the decoder '{settings.decoder}' has other weights than in the training",
            remedy="restore the earlier weights, or train again",
        )
    kept = below(fitted.arrays, "library.")
    library = Library(fitted.facts, kept, settings.retrieval, settings.similar)
    reader = TextReader(settings, int(fitted.facts["outputs"]), fitted.facts.get("backbone_sha256"))
    network = reader.build()
    load_weights(network, below(fitted.arrays, "reader."))
    network.eval()
    return library, reader, network


def predict(fitted: Fitted, instances: Instances) -> Logits:
    """Look instances up in the library that was kept, and read what is written."""
    client = LLMClient.of(fitted.settings.llm)
    client.refuse_another(fitted.facts.get("language_model"))
    library, reader, network = opened(fitted)
    looked = library.look_up(instances, client)
    texts = reader.texts(network, looked, instances.task)
    with torch.no_grad():
        return logits_in_batches(network, reader.logits(network, texts), np.arange(len(instances)))


def llm_calls(problem: Problem, settings: KareSettings) -> dict[str, int]:
    """Return how often a run asks the language model at most; the communities are those of the real graph."""
    vocabularies = Vocabularies.of_training(problem.instances, problem.train)
    calls: dict[str, int] = {}
    planned = settings
    if settings.knowledge_from == "llm":
        # Triples are not known before they are asked for: co-occurrence gives a graph of about that size.
        calls["triples of codes"] = len(concepts(problem, vocabularies))
        planned = settings.model_copy(update={"knowledge_from": "co-occurrence"})
    graph, _ = knowledge(problem, RunContext(planned), vocabularies, LLMClient.of(LLMSettings()))
    pairs = [(int(head), int(tail)) for head, _, tail in graph.edges.tolist()]
    communities = len(communities_of(pairs, len(graph.nodes), settings.community_nodes, settings.seed))
    calls["summaries of communities"] = communities
    themes = len(themes_of(settings.themes, problem.instances.task))
    calls["vectors of records and summaries"] = len(problem.train) + len(problem.evaluated) + communities + themes
    if settings.decoder and settings.reasoning:
        calls["reasons of training instances"] = min(settings.most_reasons, len(problem.train))
    return calls


def title(settings: Any) -> str:
    """Return the name with the language model, the source of the graph, and whether there is reasoning.

    >>> title(KareSettings()), title(KareSettings(decoder="smollm2-135m", knowledge_from="ontology"))
    ('KARE[deterministic,co-occurrence,no-reasoning]', 'KARE[deterministic,ontology,decoder=smollm2-135m]')
    """
    words = [settings.llm.name, *([] if settings.knowledge_from == "file" else [settings.knowledge_from])]
    words.append(f"decoder={settings.decoder.rstrip('/').rpartition('/')[2]}" if settings.decoder else "no-reasoning")
    return f"KARE[{','.join(words)}]"


SYSTEM = System(
    name="kare",
    description="summaries of a knowledge graph and similar patients beside the record, read by a language model",
    settings=KareSettings,
    capabilities=Capabilities(random=True, epochs=True, newcomers=True),
    kinds=(BINARY, MULTICLASS),
    knowledge_under=lambda settings: tuple(TABLES.values()) if settings.knowledge_from == "ontology" else (),
    title=title,
    llm_calls=llm_calls,
    fit=fit,
    predict=predict,
)
