"""Products in blocks, as on a graphics card; the CPU takes the card's place, since the code knows no difference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_backbones import tiny_backbone

from patients_like_me.graph import GraphSettings, build_graph
from patients_like_me.graph.drawn_sets import drawn_sets
from patients_like_me.model import devices
from patients_like_me.model.count_product import CountMatrix
from patients_like_me.model.device_product import RowBlocks
from patients_like_me.model.devices import graph_device
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.propagation import FixedPropagation
from patients_like_me.model.settings import GraphNetworkSettings, ModelSettings

GRAPH = build_graph(drawn_sets(70), GraphSettings(tau=6))


@pytest.mark.parametrize("free", [0, 1 << 40], ids=["sent", "kept"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_blocks_of_rows_give_the_whole_product(free: int, kind: type) -> None:
    values = GRAPH.weights.astype(kind)
    states = torch.randn(70, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    blocks = RowBlocks(GRAPH.indptr, GRAPH.neighbors, values, "cpu", free=free, entries_at_once=100)
    assert len(blocks.bounds) > 4
    assert blocks.are_kept == bool(free)
    expected = torch.from_numpy(GRAPH.to_scipy().astype(np.float64) @ states.numpy())
    for _ in range(2):
        torch.testing.assert_close(blocks.product(states), expected)
    some = np.array([3, 4, 5, 60, 9])
    chosen = RowBlocks(GRAPH.indptr, GRAPH.neighbors, values, "cpu", nodes=some, free=free, entries_at_once=100)
    torch.testing.assert_close(chosen.product(states), expected[torch.from_numpy(some)])


def test_the_form_of_a_card_is_that_of_the_cpu() -> None:
    numbers = FixedPropagation.of_graph(GRAPH).matrix
    counts = CountMatrix(GRAPH.indptr, GRAPH.neighbors, GRAPH.weights, GRAPH.self_loop_weights(), symmetric=True)
    states = torch.randn(70, 5, generator=torch.Generator().manual_seed(0))
    expected = numbers.product(states)
    torch.testing.assert_close(counts._product_on_device(states), expected)
    torch.testing.assert_close(numbers._on(states.device, states.dtype).product(states), expected)  # type: ignore[union-attr]


def test_a_card_is_used_where_the_states_fit_next_to_the_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    card = torch.device("cuda")
    monkeypatch.setattr(devices, "free_bytes", lambda device: 1000)
    assert graph_device("auto", card, 299) == card
    assert graph_device("auto", card, 301).type == "cpu"
    assert graph_device("auto", torch.device("mps"), 0).type == "cpu"
    assert graph_device("cpu", card, 0).type == "cpu"


def test_embeddings_go_to_the_device_of_the_graph_network_and_logits_come_back() -> None:
    settings = ModelSettings(outputs=1, embedding_width=4, graph_network=GraphNetworkSettings(layers=1, width=4))
    model = PatientsLikeMeModel(tiny_backbone("bert"), settings)
    model.graph_network.to("meta")
    seen: list[str] = []

    class Noted:
        def propagate(self, states: torch.Tensor) -> torch.Tensor:
            seen.append(states.device.type)
            return states

    # A tensor without data cannot come back: that it is asked to shows where the logits go.
    with pytest.raises(NotImplementedError, match="meta tensor"):
        model.graph_logits(torch.zeros(3, 4), Noted())
    assert seen == ["meta"]
