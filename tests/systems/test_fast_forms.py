"""The fast forms of the networks equal the plain ones, in what they answer and in how they learn."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from drug_networks import SIZES as DRUG_SIZES
from drug_networks import make_batch, seeded
from small_molecules import CODES, SMILES
from tiny_visits import SIZES, random_batch
from torch import Tensor, nn
from torch.nn import functional

from patients_like_me.codes.molecules import drug_structures
from patients_like_me.systems.deepr import Deepr, DeeprSettings
from patients_like_me.systems.drug_visits import CodeSums
from patients_like_me.systems.g_bert import GBERT, GBERTSettings
from patients_like_me.systems.graph_isomorphism import GraphVectors
from patients_like_me.systems.hypergraph import AttendedSum
from patients_like_me.systems.molerec import MoleRec, MoleRecSettings
from patients_like_me.systems.ontology_attention import ancestor_numbers
from patients_like_me.systems.safedrug import MoleculeVectors
from patients_like_me.systems.set_block import Packing, SetBlock
from patients_like_me.systems.stagenet import StageNet, StageNetSettings
from patients_like_me.systems.visit_layers import Dropout, at_last_visit, last_visits, log_gaps, masked_softmax

KINDS = ("diagnosis", "procedure", "medication")
BLOCKS = GBERTSettings(width=12, graph_heads=3, heads=2, feed_forward=10, dropout=0.0, attention_dropout=0.0)


def hold_equal(network: nn.Module, fast: Callable[[], Tensor], plain: Callable[[], Tensor]) -> None:
    """Compare answers and the gradients of all parameters, for a loss in which every answer has a weight."""
    answers, gradients = [], []
    for form in (fast, plain):
        network.zero_grad()
        answer = form()
        (answer * torch.linspace(-1, 2, answer.numel()).view(answer.shape)).sum().backward()
        answers.append(answer.detach())
        gradients.append({name: weight.grad for name, weight in network.named_parameters()})
    torch.testing.assert_close(answers[0], answers[1], atol=1e-5, rtol=1e-5)
    for name, gradient in gradients[1].items():
        found = gradients[0][name]
        assert (found is None) == (gradient is None), name
        if found is not None and gradient is not None:
            scale = max(1.0, float(gradient.abs().max()))
            torch.testing.assert_close(found / scale, gradient / scale, atol=1e-5, rtol=0, msg=name)


def larger_weights(network: nn.Module) -> None:
    """First weights are small; larger ones let no difference hide below the tolerance."""
    with seeded(5), torch.no_grad():
        for weight in network.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)


def test_packed_sets_in_a_transformer() -> None:
    with seeded():
        block, states = SetBlock(BLOCKS), torch.randn(5, 4, 12)
    larger_weights(block)
    seen = torch.arange(4) < torch.tensor([4, 1, 3, 2, 1])[:, None]
    packing = Packing.of(seen)
    hold_equal(
        block, lambda: block.packed(packing.packed(states), packing), lambda: packing.packed(block(states, seen))
    )
    hold_equal(
        block,
        lambda: block.packed(packing.packed(states), packing, first_only=True),
        lambda: block(states, seen)[:, 0],
    )


def test_all_kinds_of_codes_in_one_pass_of_g_bert() -> None:
    trees = {kind: ancestor_numbers([str(at) for at in range(DRUG_SIZES.codes[kind])], {"0": ("a",)}) for kind in KINDS}
    with seeded():
        network = GBERT(DRUG_SIZES, BLOCKS, ancestors=trees, current=KINDS[:2])
    larger_weights(network)
    batch = make_batch()
    codes = {kind: batch.codes[kind][batch.visit_mask] for kind in KINDS}

    def plain() -> Tensor:
        found = []
        for kind, numbers in codes.items():
            padding = torch.zeros(1, 12)
            table = torch.cat([padding, network.ontologies[kind](), network.hidden_token[None]])
            tokens = torch.cat([network.first_token.expand(len(numbers), 1, -1), table[numbers]], dim=1)
            tokens = tokens + network.types[kind]
            for block in network.blocks:
                tokens = block(tokens, functional.pad(numbers > 0, (1, 0), value=True))
            found.append(tokens[:, 0])
        return torch.cat(found)

    hold_equal(network, lambda: torch.cat(list(network.encode(codes).values())), plain)


@pytest.mark.parametrize("window", [2, 10])
def test_steps_and_window_of_stagenet(window: int) -> None:
    settings = StageNetSettings(
        embedding=6, chunk=4, window=window, dropout=0.0, connection_dropout=0.0, residual_dropout=0.0
    )
    with seeded():
        network, batch = StageNet(settings, SIZES), random_batch(6)
    larger_weights(network)

    def plain() -> Tensor:
        vectors, gaps = network.embedding(batch.codes), log_gaps(batch.gaps)
        memory, state, states, kept = torch.zeros(6, 3, 4), torch.zeros(6, 12), [], []
        for place in range(vectors.shape[1]):
            gap = gaps[:, place]
            from_input = network.cell.of_input(torch.cat([vectors[:, place], gap], dim=1))
            memory, state, gate = network.cell(from_input, gap, memory, state)
            states.append(state)
            kept.append(gate)
        all_states, movement = torch.stack(states, dim=1), 1 - torch.stack(kept, dim=1).mean(2)
        places = last_visits(batch.visit_mask)[:, None] + torch.arange(1 - window, 1)
        real, places = places >= 0, places.clamp(min=0)
        weights = masked_softmax((movement.gather(1, places) * real).cumsum(1), real)
        chosen = all_states[torch.arange(6)[:, None], places] * weights[:, :, None]
        weighted = chosen.transpose(1, 2)
        theme = torch.sigmoid(network.stretch(torch.relu(network.squeeze(weighted.mean(2)))))
        pattern = theme * network.convolution(weighted).squeeze(2)
        return network.head(pattern + at_last_visit(all_states, batch.visit_mask), batch.demographics)

    hold_equal(network, lambda: network(batch), plain)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_the_convolution_of_deepr(reach: int) -> None:
    with seeded():
        network, batch = Deepr(DeeprSettings(embedding=6, motifs=5, reach=reach, dropout=0.0), SIZES), random_batch(6)
    larger_weights(network)
    sentences = network.eval().sentences(batch)

    def plain() -> Tensor:
        is_word = sentences > 0
        embedded = functional.embedding(sentences, network.words) * is_word.unsqueeze(-1)
        answers = torch.relu(network.motifs(embedded.transpose(1, 2)))
        return answers.masked_fill(~is_word.unsqueeze(1), -torch.inf).amax(2).clamp(min=0)

    hold_equal(network, lambda: network.pooled_motifs(sentences), plain)


def test_the_sums_of_codes_in_drug_systems() -> None:
    with seeded():
        for mean in (False, True):
            sums, codes = CodeSums(9, 5, 0.0, mean=mean), make_batch().codes["diagnosis"]
            counts = (codes > 0).sum(2, keepdim=True).clamp(min=1) if mean else 1
            hold_equal(
                sums,
                lambda sums=sums, codes=codes: sums(codes),
                lambda sums=sums, codes=codes, counts=counts: sums.embedding(codes).sum(2) / counts,
            )


def test_the_scores_of_molerec() -> None:
    pytest.importorskip("rdkit", reason="the molecules need rdkit")
    settings = MoleRecSettings(width=8, dropout=0.0, graph_layers=2, graph_dropout=0.0)
    with seeded():
        structures = drug_structures(SMILES, CODES)
        network = MoleRec(DRUG_SIZES, settings, structures=structures, interactions=None)
        relevance = torch.rand(8, network.mask.shape[1])

    def graph_vectors(graphs: GraphVectors) -> Tensor:
        states = sum(table(graphs.atoms[:, at]) for at, table in enumerate(graphs.tables))
        for number, layer in enumerate(graphs.layers, start=1):
            bond = sum(table(graphs.bonds[:, at]) for at, table in enumerate(layer.bonds))
            received = torch.zeros_like(states).index_add(
                0, graphs.edges[1], torch.relu(states[graphs.edges[0]] + bond)
            )
            states = layer.norm(layer.mix((1 + layer.loop) * states + received))
            states = torch.relu(states) if number < len(graphs.layers) else states
        return torch.stack([states[graphs.molecule == at].mean(0) for at in range(graphs.count)])

    def plain() -> Tensor:
        pieces = network.among_pieces(torch.cat([graph_vectors(network.pieces), network.own_pieces]))
        molecules = network.averages @ graph_vectors(network.molecules)
        scores = network.molecule_query(molecules) @ network.piece_key(pieces).T / 8**0.5
        attention = torch.softmax(scores.masked_fill(~network.mask, -torch.inf), dim=1)
        return network.score((attention * relevance[:, None]) @ pieces)[:, :, 0]

    hold_equal(network.train(), lambda: network.scores(relevance), plain)
    # In evaluation the running means count, which the fast form has to move as the plain one does.
    moved = [copy.deepcopy(network), copy.deepcopy(network)]
    moved[0].scores(relevance)
    network.load_state_dict(moved[1].state_dict())
    plain()
    for name, value in network.state_dict().items():
        torch.testing.assert_close(moved[0].state_dict()[name], value, atol=1e-5, rtol=1e-5, msg=name)


def test_the_molecules_of_safedrug() -> None:
    pytest.importorskip("rdkit", reason="the molecules need rdkit")
    for layers in (1, 2, 3):
        with seeded():
            vectors = MoleculeVectors(drug_structures(SMILES, CODES), width=5, layers=layers, radius=1)

        def plain(vectors: MoleculeVectors = vectors) -> Tensor:
            atoms = vectors.embedding(vectors.fingerprints)
            for layer in vectors.layers:
                states = torch.relu(layer(atoms))
                atoms = states.index_add(0, vectors.edges[1], states[vectors.edges[0]])
            sums = torch.stack([atoms[vectors.molecule == at].sum(0) for at in range(vectors.molecules)])
            return (vectors.averages @ sums).index_add(0, vectors.without, vectors.own)

        hold_equal(vectors, vectors, plain)


def test_hyperedges_from_rows_of_a_table() -> None:
    with seeded():
        attended = AttendedSum(5)
        table = nn.Parameter(torch.randn(10, 5))
    rows = make_batch().codes["diagnosis"]
    holder = nn.ModuleList([attended, nn.ParameterList([table])])
    hold_equal(holder, lambda: attended.of_rows(table, rows), lambda: attended(table[rows], rows > 0))


def test_dropout_keeps_the_mean_and_the_share_and_repeats_with_the_seed() -> None:
    dropout, values = Dropout(0.3), torch.ones(3, 100_001)
    with seeded(1):
        first, second = dropout(values), dropout(values)
    with seeded(1):
        again = dropout(values)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert float((first == 0).float().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(first.mean()) == pytest.approx(1.0, abs=0.01)
    assert float(((first[0] == 0) & (first[1] == 0)).float().mean()) == pytest.approx(0.09, abs=0.005)
    assert torch.equal(dropout.eval()(values), values)
    assert torch.equal(Dropout(0.0)(values), values)
