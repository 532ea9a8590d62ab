"""theta and phi in one model: what belongs to which, and what each step may touch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from tiny_backbones import hash_of, texts_of

from patients_like_me.model.backbone import Backbone
from patients_like_me.model.embedding import embed_prompts
from patients_like_me.model.embedding_store import EmbeddingStore
from patients_like_me.model.joint import PatientsLikeMeModel, projection
from patients_like_me.model.prompt_inputs import prepare_inputs
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.model.settings import ModelSettings
from patients_like_me.tasks.kinds import BINARY

TEXTS = texts_of([9, 3, 17, 1, 12, 5, 8, 8])
LABELS = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
Make = Callable[..., Backbone]


def ring(nodes: int) -> FixedPropagation:
    columns = np.concatenate([[(node - 1) % nodes, (node + 1) % nodes] for node in range(nodes)])
    return FixedPropagation(np.arange(0, 2 * nodes + 1, 2), columns, np.full(2 * nodes, 9), np.ones(nodes))


@pytest.fixture
def model(make_backbone: Make) -> PatientsLikeMeModel:
    backbone = make_backbone("bert")
    settings = ModelSettings(
        backbone=backbone.settings, outputs=1, embedding_width=16, graph_network={"skip": "concat"}
    )
    return PatientsLikeMeModel(backbone, settings, seed=3)


def test_theta_and_phi_share_nothing_and_cover_all_that_learns(model: PatientsLikeMeModel) -> None:
    theta, phi = model.theta_parameters(), model.phi_parameters()
    learning = {id(value) for value in model.parameters() if value.requires_grad}
    assert {id(value) for value in theta.values()} | {id(value) for value in phi.values()} == learning
    assert not {id(value) for value in theta.values()} & {id(value) for value in phi.values()}
    assert set(model.backbone_parameters()) | set(model.language_head_parameters()) == set(theta)
    assert {name.split(".")[0] for name in theta} == {"backbone", "projection", "language_head"}
    assert {name.split(".")[0] for name in phi} == {"graph_network"}


def test_the_gradient_through_the_frozen_graph_reaches_theta_only(model: PatientsLikeMeModel) -> None:
    inputs = prepare_inputs(model.backbone, TEXTS)
    store = EmbeddingStore(embed_prompts(model, inputs, precision="float32"))
    for value in model.phi_parameters().values():
        value.requires_grad_(False)
    batch = inputs.batch(np.array([1, 4]))
    embeddings = store.values.index_copy(0, batch.rows, model.embed(batch))
    BINARY.loss(model.graph_logits(embeddings, ring(8)), LABELS).sum().backward()
    assert all(value.grad is None for value in model.phi_parameters().values())
    assert all(
        value.grad is not None for name, value in model.theta_parameters().items() if "language_head" not in name
    )


def test_the_sum_of_batch_gradients_is_the_full_gradient(model: PatientsLikeMeModel) -> None:
    inputs = prepare_inputs(model.backbone, TEXTS)
    store = EmbeddingStore(embed_prompts(model, inputs, precision="float32"))
    theta = [value for name, value in model.theta_parameters().items() if "language_head" not in name]

    def gradient(rows: list[int]) -> list[torch.Tensor]:
        batch = inputs.batch(np.array(rows))
        embeddings = store.values.index_copy(0, batch.rows, model.embed(batch))
        loss = BINARY.loss(model.graph_logits(embeddings, ring(8)), LABELS).sum()
        return list(torch.autograd.grad(loss, theta))

    whole = gradient(list(range(8)))
    parts = [gradient(rows) for rows in ([0, 5], [1, 2, 7], [3, 4, 6])]
    for place, expected in enumerate(whole):
        total = torch.stack([part[place] for part in parts]).sum(dim=0)
        assert torch.linalg.norm(total - expected) <= 1e-4 * torch.linalg.norm(expected).clamp_min(1e-3)


def test_embeddings_do_not_depend_on_the_batches(model: PatientsLikeMeModel) -> None:
    inputs = prepare_inputs(model.backbone, TEXTS)
    once = embed_prompts(model, inputs, tokens_per_batch=10_000, precision="float32")
    assert torch.allclose(embed_prompts(model, inputs, tokens_per_batch=1, precision="float32"), once, atol=1e-5)
    assert once.shape == (8, 16)


def test_embedding_all_leaves_the_mode_as_it_was(model: PatientsLikeMeModel) -> None:
    inputs = prepare_inputs(model.backbone, TEXTS)
    for language, graph in ((True, False), (False, True), (True, True), (False, False)):
        model.set_training(language=language, graph=graph)
        seen: list[int] = []
        first = embed_prompts(model, inputs, progress=seen.append, precision="float32")
        assert torch.equal(first, embed_prompts(model, inputs, precision="float32"))
        assert (model.backbone.training, model.graph_network.training) == (language, graph)
        assert sum(seen) == 8


def test_hashes_follow_the_values(model: PatientsLikeMeModel) -> None:
    before = hash_of(model, "theta"), hash_of(model, "phi"), hash_of(model, "frozen")
    with torch.no_grad():
        model.graph_network.classifier.bias.add_(1e-6)
    assert (hash_of(model, "theta"), hash_of(model, "frozen")) == (before[0], before[2])
    assert hash_of(model, "phi") != before[1]


def test_logits_have_one_column_per_output(make_backbone: Make) -> None:
    backbone = make_backbone("bert")
    model = PatientsLikeMeModel(backbone, ModelSettings(backbone=backbone.settings, outputs=10))
    embeddings = embed_prompts(model, prepare_inputs(backbone, TEXTS), precision="float32")
    assert embeddings.shape == (8, 128)
    assert model.language_logits(embeddings).shape == model.graph_logits(embeddings, ring(8)).shape == (8, 10)


def test_an_unknown_setting_is_an_error() -> None:
    with pytest.raises(ValidationError, match="layer_count"):
        ModelSettings(outputs=1, graph_network={"layer_count": 2})


def test_embeddings_are_plain_tensors_that_training_can_use(model: PatientsLikeMeModel) -> None:
    embeddings = embed_prompts(model, prepare_inputs(model.backbone, TEXTS), precision="float32")
    assert not embeddings.is_inference()
    model.graph_logits(embeddings, ring(8)).sum().backward()
    assert model.graph_network.convolutions[0].weight.grad is not None


def test_both_projections_reach_the_width_of_the_graph() -> None:
    for kind in ("linear", "mlp"):
        assert projection(kind, 32, 128)(torch.zeros(2, 32)).shape == (2, 128)  # type: ignore[arg-type]
