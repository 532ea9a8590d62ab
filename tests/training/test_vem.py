"""The mathematics of the E-step and the M-step, for encoders and decoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_backbones import hash_of, texts_of, tiny_backbone

from patients_like_me.model.embedding import embed_prompts, pool_prompts
from patients_like_me.model.embedding_store import EmbeddingStore
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.prompt_inputs import PromptInputs, prepare_inputs
from patients_like_me.model.propagation import FixedPropagation, NoEdges
from patients_like_me.model.settings import GraphNetworkSettings, ModelSettings
from patients_like_me.tasks.kinds import BINARY, kind_named
from patients_like_me.training.settings import TrainingSettings
from patients_like_me.training.vem import (
    EmProblem,
    LiveRows,
    coupling_loss,
    e_step,
    e_step_loss,
    graph_signal,
    m_step,
    start_from_head,
)

NODES = 12
KINDS: dict[str, int] = {"binary": 1, "multiclass": 4, "multilabel": 3}


def ring(nodes: int = NODES, *, isolated: int | None = None) -> FixedPropagation:
    """Return a ring of patients, each sharing 8 or 9 diagnoses with the next; one may stand alone."""
    matrix = np.zeros((nodes, nodes))
    members = [node for node in range(nodes) if node != isolated]
    for place, node in enumerate(members):
        other = members[(place + 1) % len(members)]
        matrix[node, other] = matrix[other, node] = 8 + place % 2
    indptr = np.concatenate([[0], np.cumsum((matrix > 0).sum(axis=1))])
    return FixedPropagation(indptr, np.nonzero(matrix)[1], matrix[matrix > 0], np.full(nodes, 5.0))


def labels_of(kind: str, nodes: int = NODES) -> torch.Tensor:
    generator = np.random.default_rng(1)
    if kind == "multilabel":
        return torch.from_numpy(generator.integers(0, 2, (nodes, 3)))
    return torch.from_numpy(generator.integers(0, 2 if kind == "binary" else 4, nodes))


def model_of(
    family: str, kind: str = "binary", projection: Any = "linear", **network: Any
) -> tuple[PatientsLikeMeModel, PromptInputs]:
    settings = ModelSettings(
        outputs=KINDS[kind],
        embedding_width=16,
        projection=projection,
        graph_network=GraphNetworkSettings(width=16, **network),
    )
    model = PatientsLikeMeModel(tiny_backbone(family), settings, seed=3)
    inputs = prepare_inputs(model.backbone, texts_of([5 + 3 * (row % 5) for row in range(NODES)]), max_tokens=64)
    return model, inputs


def problem_of(
    model: PatientsLikeMeModel, kind: Any = "binary", settings: TrainingSettings | None = None, **given: Any
) -> EmProblem:
    graph, labels = given.get("graph", ring()), given.get("labels", labels_of(kind))
    return EmProblem(model, graph, labels, kind_named(kind), settings or TrainingSettings())


def gradients(model: PatientsLikeMeModel) -> dict[str, torch.Tensor]:
    return {name: value.grad.clone() for name, value in model.theta_parameters().items() if value.grad is not None}


def full_gradient(
    model: PatientsLikeMeModel, inputs: PromptInputs, labels: torch.Tensor, kind: Any
) -> dict[str, torch.Tensor]:
    """Return the exact gradient: all prompts live at once, through the whole graph."""
    model.zero_grad()
    live = model.embed(inputs.batch(np.arange(NODES)))
    kind_named(kind).loss(model.graph_logits(live, ring()), labels).sum().backward()
    return gradients(model)


def relative_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    difference = sum(float((one[name] - other[name]).square().sum()) for name in one)
    return (difference / sum(float(value.square().sum()) for value in one.values())) ** 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["bert", "modernbert", "llama"])
def test_batches_of_a_fresh_store_add_up_to_the_exact_gradient(family: str, kind: Any) -> None:
    model, inputs = model_of(family, kind)
    labels, problem = labels_of(kind), problem_of(model, kind)
    exact = full_gradient(model, inputs, labels, kind)
    fresh = pool_prompts(model, inputs, precision="float32")
    summed: dict[str, torch.Tensor] = {}
    for batch in np.array_split(np.random.default_rng(0).permutation(NODES), 4):
        model.zero_grad()
        rows = torch.from_numpy(batch)
        live = LiveRows.of(model, model.pool(inputs.batch(batch)), rows)
        loss, _ = e_step(problem, EmbeddingStore(fresh), live, None, seed=0)
        (loss * len(rows)).backward()
        for name, value in gradients(model).items():
            summed[name] = summed.get(name, torch.zeros_like(value)) + value
    assert relative_difference(exact, summed) < 1e-4


@pytest.mark.parametrize("projection", ["linear", "mlp"])
@pytest.mark.parametrize("graph_loss", [1.0, 0.5])
def test_every_batch_has_the_exact_gradient_of_the_projection(projection: Any, graph_loss: float) -> None:
    """The projection learns from all rows of the store, whichever are live; the backbone from the live ones."""
    model, inputs = model_of("bert", "multilabel", projection=projection)
    problem = problem_of(model, "multilabel", TrainingSettings(graph_loss=graph_loss))
    exact = full_gradient(model, inputs, labels_of("multilabel"), "multilabel")
    store = EmbeddingStore(pool_prompts(model, inputs, precision="float32"))
    for batch in (np.array([3]), np.array([0, 7, 11])):
        model.zero_grad()
        live = LiveRows.of(model, model.pool(inputs.batch(batch)), torch.from_numpy(batch))
        loss, _ = e_step(problem, store, live, None, seed=0)
        (loss * NODES / graph_loss).backward()
        found = {name: value for name, value in gradients(model).items() if name.startswith("projection.")}
        assert found
        assert relative_difference({name: exact[name] for name in found}, found) < 1e-4


def test_a_moved_projection_moves_what_is_read_from_the_store() -> None:
    model, inputs = model_of("bert")
    store = EmbeddingStore(pool_prompts(model, inputs, precision="float32"))
    with torch.no_grad():
        for value in model.projection.parameters():
            value.add_(torch.randn(value.shape, generator=torch.Generator().manual_seed(1)))
    assert torch.allclose(model.project(store.values), embed_prompts(model, inputs, precision="float32"), atol=1e-6)


def test_end_to_end_has_the_gradients_of_the_e_step_and_those_of_the_graph_network() -> None:
    model, inputs = model_of("bert")
    labels, pooled = labels_of("binary"), pool_prompts(model, inputs, precision="float32")
    model.zero_grad()
    kind_named("binary").loss(model.graph_logits(model.project(pooled), ring()), labels).sum().backward()
    frozen, joint = (graph_signal(problem_of(model), pooled, train_graph=both) for both in (False, True))
    trained = [*model.projection.parameters(), *model.phi_parameters().values()]
    assert len(frozen.exact) == len(list(model.projection.parameters())) < len(joint.exact) == len(trained)
    for weight, (found, gradient) in zip(trained, joint.exact, strict=True):
        assert found is weight
        assert torch.allclose(gradient, weight.grad, atol=1e-5)
    assert torch.allclose(frozen.gradient, joint.gradient)


def test_it_equals_a_two_pass_gradient_cache() -> None:
    """GradCache: embed all without a gradient, take dL/dO, then embed again and push it through."""
    model, inputs = model_of("bert")
    labels = labels_of("binary")
    exact = full_gradient(model, inputs, labels, "binary")
    cached = embed_prompts(model, inputs, precision="float32").requires_grad_(True)
    BINARY.loss(model.graph_logits(cached, ring()), labels).sum().backward()
    assert cached.grad is not None
    signal = graph_signal(problem_of(model), pool_prompts(model, inputs, precision="float32"))
    assert torch.allclose(signal.gradient, cached.grad, atol=1e-7)
    model.zero_grad()
    for batch in np.array_split(np.arange(NODES), 3):
        (model.embed(inputs.batch(batch)) * cached.grad[torch.from_numpy(batch)]).sum().backward()
    assert relative_difference(exact, gradients(model)) < 1e-4


def test_a_loss_on_the_batch_alone_would_be_another_gradient() -> None:
    """Guard the point of the method: neighbours' losses reach a patient's text."""
    model, inputs = model_of("bert")
    labels = labels_of("binary")
    exact = full_gradient(model, inputs, labels, "binary")
    fresh = embed_prompts(model, inputs, precision="float32")
    summed: dict[str, torch.Tensor] = {}
    for batch in np.array_split(np.arange(NODES), 4):
        model.zero_grad()
        rows = torch.from_numpy(batch)
        everyone = fresh.index_copy(0, rows, model.embed(inputs.batch(batch)))
        BINARY.loss(model.graph_logits(everyone, ring())[rows], labels[rows]).sum().backward()
        for name, value in gradients(model).items():
            summed[name] = summed.get(name, torch.zeros_like(value)) + value
    assert relative_difference(exact, summed) > 0.1


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_e_step_changes_only_theta_and_the_m_step_only_phi(family: str) -> None:
    model, inputs = model_of(family)
    problem = problem_of(model, settings=TrainingSettings(graph_steps=3, head_loss=1.0, coupling=0.5))
    before = {part: hash_of(model, part) for part in ("theta", "phi", "frozen")}
    store = EmbeddingStore(pool_prompts(model, inputs, precision="float32"))
    optimizer = torch.optim.AdamW(list(model.theta_parameters().values()), lr=1e-2)
    live = LiveRows.of(model, model.pool(inputs.batch(np.arange(4))), torch.arange(4))
    loss, _ = e_step(problem, store, live, None, seed=0)
    loss.backward()
    assert all(value.grad is None for value in model.phi_parameters().values())
    optimizer.step()
    after_e = {part: hash_of(model, part) for part in ("theta", "phi", "frozen")}
    assert after_e["theta"] != before["theta"]
    assert (after_e["phi"], after_e["frozen"]) == (before["phi"], before["frozen"])
    scores = iter(range(100))
    m_step(problem, model.project(store.values).detach(), lambda: float(next(scores)), epoch=0)
    assert hash_of(model, "phi") != before["phi"]
    assert (hash_of(model, "theta"), hash_of(model, "frozen")) == (after_e["theta"], after_e["frozen"])


def test_the_m_step_keeps_the_weights_that_validate_best() -> None:
    model, inputs = model_of("bert")
    settings = TrainingSettings(graph_steps=40, graph_check=10, graph_patience=2)
    store, seen = embed_prompts(model, inputs, precision="float32"), {}
    scores = iter([0.1, 0.9, 0.5, 0.4, 0.3])

    def validate() -> float:
        score = next(scores)
        seen[score] = hash_of(model, "phi")
        return score

    outcome = m_step(problem_of(model, settings=settings), store, validate, epoch=0)
    assert hash_of(model, "phi") == seen[0.9]
    assert (outcome.best, outcome.steps) == (0.9, 30)


def test_the_m_step_learns_to_predict_patients_without_a_reference_from_their_own_record() -> None:
    """Labels that only an instance's own embedding tells, while its neighbours' average says the same of everybody."""

    def loss_alone(share: float) -> float:
        model, _ = model_of("bert", dropout=0.0)
        model.set_training(language=False, graph=False)
        generator = torch.Generator().manual_seed(0)
        embeddings = torch.randn(NODES, model.settings.embedding_width, generator=generator)
        settings = TrainingSettings(graph_steps=60, graph_check=60, alone_loss=share)
        problem = problem_of(model, settings=settings)
        scores = iter(range(100))
        m_step(problem, embeddings, lambda: float(next(scores)), epoch=0)
        return float(problem.losses(model.graph_logits(embeddings, NoEdges())).mean().detach())

    assert loss_alone(0.5) < 0.8 * loss_alone(0.0)


def test_an_isolated_patient_changes_nobody() -> None:
    model, inputs = model_of("bert", skip="concat")
    embeddings = embed_prompts(model, inputs, precision="float32")
    graph = ring(isolated=7)
    changed = embeddings.clone()
    changed[7] += 10
    before, after = model.graph_logits(embeddings, graph), model.graph_logits(changed, graph)
    others = [node for node in range(NODES) if node != 7]
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[7], after[7])
    pooled = pool_prompts(model, inputs, precision="float32")
    other = pooled.clone()
    other[7] += 10
    signal = graph_signal(problem_of(model, graph=graph), pooled)
    moved = graph_signal(problem_of(model, graph=graph), other)
    assert torch.allclose(signal.gradient[others], moved.gradient[others], atol=1e-7)


def test_the_order_of_patients_changes_nothing() -> None:
    model, inputs = model_of("bert")
    labels, pooled = labels_of("binary"), pool_prompts(model, inputs, precision="float32")
    order = np.random.default_rng(5).permutation(NODES)
    dense = ring().propagate(torch.eye(NODES, dtype=torch.float64))
    permuted = dense[order][:, order]

    class Dense:
        def propagate(self, states: torch.Tensor) -> torch.Tensor:
            return permuted.to(states.dtype) @ states

    plain = graph_signal(problem_of(model), pooled)
    moved = graph_signal(problem_of(model, graph=Dense(), labels=labels[order]), pooled[order])
    assert torch.allclose(moved.logits, plain.logits[order], atol=1e-5)
    assert torch.allclose(moved.gradient, plain.gradient[order], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_many_samples_come_near_the_exact_coupling(kind: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(5, KINDS[kind], generator=generator)
    graph = torch.randn(5, KINDS[kind], generator=generator)
    model = model_of("bert", kind)[0]

    def loss(samples: Any, seed: int = 0) -> float:
        problem = problem_of(model, kind, TrainingSettings(mc_samples=samples))
        return float(coupling_loss(problem, own, graph, seed=seed))

    exact, many, one = loss("exact"), loss(4000), [loss(1, seed) for seed in range(5)]
    assert many == pytest.approx(exact, rel=0.05)
    assert len(set(one)) > 1


def test_the_terms_have_their_weights() -> None:
    model, inputs = model_of("bert")
    live = LiveRows.of(model, model.pool(inputs.batch(np.arange(3))).detach(), torch.arange(3))
    signal = graph_signal(problem_of(model), pool_prompts(model, inputs, precision="float32"))

    def loss(**weights: float) -> float:
        settings = TrainingSettings(**{"strategy": "lm_only", "graph_loss": 0.0, "mc_samples": "exact", **weights})  # type: ignore[arg-type]
        return float(e_step_loss(problem_of(model, settings=settings), live, signal.about(live.rows), seed=0).detach())

    parts = [loss(graph_loss=2.0), loss(head_loss=3.0), loss(coupling=0.5)]
    assert loss(graph_loss=2.0, head_loss=3.0, coupling=0.5) == pytest.approx(sum(parts), rel=1e-5)
    assert loss() == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_can_start_from_the_heads_own_answer(kind: Any) -> None:
    model, inputs = model_of("bert", kind, skip="concat")
    embeddings, head_before = embed_prompts(model, inputs, precision="float32"), hash_of(model, "theta")
    wanted = model.language_logits(embeddings)

    def closeness() -> float:
        with torch.no_grad():
            return -float((model.graph_logits(embeddings, ring()) - wanted).square().mean())

    assert start_from_head(model, closeness)
    assert torch.allclose(model.graph_logits(embeddings, ring()), wanted, atol=1e-6)
    assert hash_of(model, "theta") == head_before


def test_a_head_that_validates_worse_changes_nothing() -> None:
    model, inputs = model_of("bert", "binary", skip="concat")
    before = hash_of(model, "phi")
    embeddings = embed_prompts(model, inputs, precision="float32")
    now = model.graph_logits(embeddings, ring()).detach()

    def closeness() -> float:
        with torch.no_grad():
            return -float((model.graph_logits(embeddings, ring()) - now).square().mean())

    assert not start_from_head(model, closeness)
    assert hash_of(model, "phi") == before
