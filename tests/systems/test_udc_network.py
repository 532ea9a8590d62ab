"""UDC: the codebooks' averages and new starts held to plain numpy, rare diseases, and no test patient in the codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drug_networks import SIZES, check_gradients, check_padding_order_and_batch, make_batch, make_targets
from systems.leak_checks import (
    check_blind_to_test,
    with_a_leak,
    with_all_labels,
    with_other_test_labels,
    with_other_test_patients,
)
from systems.test_neural import StopAt, StoppedError

from patients_like_me.evaluation.experiments.estimate import seconds_of_stages
from patients_like_me.records.cohort import Cohort
from patients_like_me.systems.disease_codes import (
    DiseaseCodes,
    DiseaseCodesSettings,
    DiseaseKnowledge,
    train_disease_codes,
)
from patients_like_me.systems.features import Vocabularies
from patients_like_me.systems.problem import Problem
from patients_like_me.systems.residual_codebooks import ResidualCodebooks, code_alignment
from patients_like_me.systems.train import train
from patients_like_me.systems.training_visits import TrainingVisits
from patients_like_me.systems.udc import SYSTEM, Udc, UdcSettings, disease_knowledge, mean_of_logits
from patients_like_me.tasks.instances import Instances, build_instances
from patients_like_me.tasks.registry import find_task

Books = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def plain_quantised(books: np.ndarray, vectors: np.ndarray) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    residual, residuals, choices = vectors.copy(), [], []
    for book in books:
        chosen = np.array([np.argmin(((row - book) ** 2).sum(1)) for row in residual])
        residuals.append(residual)
        choices.append(chosen)
        residual = residual - book[chosen]
    return np.array(choices).T, residuals, vectors - residual


def plain_update(state: Books, views: list[np.ndarray], decay: float, patience: int, draws: np.ndarray) -> Books:
    """Move books, counts, sums and ages after one batch, element by element."""
    books, counts, sums, unused = (each.copy() for each in state)
    read = [plain_quantised(state[0], vectors) for vectors in views]
    for level in range(len(books)):
        used = set()
        for own, other in ((0, 1), (1, 0)):
            chosen, residual = read[own][0][:, level], read[own][1][level]
            taught = read[other][1][level]
            for code in range(books.shape[1]):
                who = chosen == code
                counts[level, code] = decay * counts[level, code] + (1 - decay) * who.sum()
                pulled = (0.5 * residual[who] + 0.5 * taught[who]).sum(0)
                sums[level, code] = decay * sums[level, code] + (1 - decay) * pulled
            used |= set(chosen.tolist())
        pool = np.concatenate([read[0][1][level], read[1][1][level]])
        for code in range(books.shape[1]):
            unused[level, code] = 0 if code in used else unused[level, code] + 1
            if unused[level, code] >= patience:
                sums[level, code] = pool[int(draws[level, code] * len(pool))]
                counts[level, code], unused[level, code] = 1.0, 0
            books[level, code] = sums[level, code] / counts[level, code]
    return books, counts, sums, unused


def test_codebook_update_with_averages_and_new_starts_equals_plain_numpy() -> None:
    torch.manual_seed(0)
    books = ResidualCodebooks(3, 5, 4, decay=0.8, patience=3).double()
    draw = np.random.default_rng(0)
    state: Books = tuple(getattr(books, name).numpy().copy() for name in ("books", "counts", "sums", "unused"))  # type: ignore[assignment]
    started = 0
    for _ in range(8):
        views = [draw.normal(size=(6, 4)) + 0.5, draw.normal(size=(6, 4))]
        draws = draw.random((3, 5))
        read = [books(torch.from_numpy(vectors)) for vectors in views]
        for found, vectors in zip(read, views, strict=True):
            choices, residuals, total = plain_quantised(state[0], vectors)
            assert np.array_equal(found.choices, choices)
            np.testing.assert_allclose(found.plain, total, atol=1e-5)
            np.testing.assert_allclose(np.array([each.numpy() for each in found.residuals]), residuals, atol=1e-5)
        books.follow(read[0], read[1], torch.from_numpy(draws))
        started += int((state[3] == 2).sum())
        state = plain_update(state, views, 0.8, 3, draws)
        for name, expected in zip(("books", "counts", "sums", "unused"), state, strict=True):
            np.testing.assert_allclose(getattr(books, name).numpy(), expected, atol=1e-5)
    assert started, "some code must have waited long enough to start again"


def test_code_alignment_equals_plain_numpy() -> None:
    torch.manual_seed(1)
    books = ResidualCodebooks(2, 4, 3, decay=0.9, patience=9).double()
    one, other = (books(torch.randn(5, 3, dtype=torch.float64)) for _ in range(2))
    expected = np.zeros(5)
    for level in range(2):
        first, second = (each.distributions[level].exp().numpy() for each in (one, other))
        scores = np.array([[(p * np.log(q) + q * np.log(p)).sum() for q in second] for p in first])
        expected += (np.log(np.exp(scores).sum(1)) - np.diag(scores)) / 2
    np.testing.assert_allclose(code_alignment(one, other), expected, atol=1e-5)


def small_network(reads_decoded: bool = True) -> Udc:
    torch.manual_seed(0)
    settings = UdcSettings(width=8, heads=2, layers=1, feed_forward=8, dropout=0.0, attention_dropout=0.0)
    network = Udc(settings, SIZES, reads_decoded=reads_decoded)
    network.decoded[1:] = torch.randn(network.decoded[1:].shape)
    return network


def test_the_probability_is_the_mean_of_both_readings() -> None:
    network, batch = small_network(), make_batch()
    with torch.no_grad():
        own, decoded = (network.eval().read(batch, table) for table in (network.tables["diagnosis"], network.decoded))
        expected = (torch.sigmoid(own) + torch.sigmoid(decoded)) / 2
        torch.testing.assert_close(torch.sigmoid(network(batch)), expected, atol=1e-6, rtol=0)
    far = mean_of_logits(torch.tensor([60.0]), torch.tensor([-60.0]))
    assert far.tolist() == pytest.approx([0.0], abs=1e-5)


def test_named_checks() -> None:
    check_padding_order_and_batch(small_network())
    batch, targets = make_batch(), make_targets()
    network = small_network(reads_decoded=False)
    check_gradients(network, lambda: torch.nn.functional.binary_cross_entropy_with_logits(network(batch), targets))


def made_up_diseases(rare: int) -> DiseaseKnowledge:
    """Forty diseases of four families: the name tells the family, and so do the vectors, except of rare ones."""
    draw = np.random.default_rng(0)
    family = np.arange(40) % 4
    co = draw.normal(size=(4, 8))[family] + 0.05 * draw.normal(size=(40, 8))
    text = draw.normal(size=(4, 12))[family] + 0.05 * draw.normal(size=(40, 12))
    common = np.arange(40) < 40 - rare
    co[~common] = draw.normal(size=(rare, 8))
    drugs = draw.normal(size=(4, 8))
    return DiseaseKnowledge(
        vectors={"co": torch.tensor(co, dtype=torch.float32), "text": torch.tensor(text, dtype=torch.float32)},
        companions=torch.tensor(drugs, dtype=torch.float32),
        condition=torch.from_numpy(family[:, None].copy()),
        drugs={"co": torch.tensor(drugs, dtype=torch.float32), "text": torch.randn(4, 12)},
        next_drugs=torch.from_numpy(family[:, None].copy()),
        common=torch.from_numpy(common),
    )


def test_rare_diseases_are_decoded_from_their_names() -> None:
    torch.manual_seed(0)
    known = made_up_diseases(rare=8)
    settings = DiseaseCodesSettings(width=16, books=2, codes=8, epochs=80, batch_size=40, reseed_after=20, rate=0.01)
    table = train_disease_codes(known, settings, seed=0).table(known).numpy()
    co = known.vectors["co"].numpy()
    family = np.arange(40) % 4
    centres = np.array([co[:32][family[:32] == number].mean(0) for number in range(4)])
    nearest = ((table[:, None] - centres[None]) ** 2).sum(2).argmin(1)
    assert (nearest[32:] == family[32:]).mean() > 0.8
    # Their own vectors, which mean nothing, would not tell.
    assert (((co[32:, None] - centres[None]) ** 2).sum(2).argmin(1) == family[32:]).mean() < 0.7


def test_a_gradient_reaches_every_weight_of_the_second_stage() -> None:
    torch.manual_seed(0)
    known = made_up_diseases(rare=8)
    known = replace(known, condition=torch.stack([torch.arange(40) % 4, torch.arange(40) // 10], dim=1))
    network = DiseaseCodes(DiseaseCodesSettings(width=16, books=2, codes=4), {"co": 8, "text": 12})
    network.loss(known, torch.arange(40))[0].backward()
    assert [name for name, weight in network.named_parameters() if weight.grad is None or not weight.grad.any()] == []


@pytest.fixture(scope="module")
def drug_instances(make_cohort: Callable[..., Path]) -> Instances:
    return build_instances(Cohort.load(make_cohort(patients=30, seed=3)), find_task("drug_recommendation"))


def test_no_test_patient_is_in_the_codes(drug_instances: Instances, tiny_folder: Path) -> None:
    settings = UdcSettings(
        backbone={"name": str(tiny_folder)},
        width=8,
        codes={"width": 8, "books": 2, "codes": 4, "epochs": 3},
    )

    def codes(given: Problem) -> list[Any]:
        vocabularies = Vocabularies.of_training(given.instances, given.train)
        torch.manual_seed(0)
        weights = {
            f"tables.{kind}": torch.randn(len(found) + 1, 8).numpy()
            for kind, found in vocabularies.codes.items()
            if found
        }
        known = disease_knowledge(given, settings, vocabularies, weights)
        network = train_disease_codes(known, settings.codes, seed=0)
        counts = TrainingVisits.of(given, vocabularies).counts("diagnosis")
        return [network.codebooks.books.numpy(), network.table(known).numpy(), known.condition.numpy(), counts]

    knowing = with_all_labels(drug_instances)
    for change in (with_other_test_patients, with_other_test_labels):
        check_blind_to_test(knowing, codes, change)
        with pytest.raises(AssertionError, match="records of test patients"):
            check_blind_to_test(knowing, lambda given: codes(with_a_leak(given)), change)


def test_a_training_that_was_stopped_in_its_last_stage_goes_on(
    cohort_folder: Path, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"width": 8, "layers": 1, "heads": 2, "feed_forward": 8, "epochs": 1, "tuning_epochs": 2, "batch_size": 32}
    codes = {"width": 8, "books": 2, "codes": 4, "epochs": 3}
    wanted = {**small, "codes": codes, "backbone": {"name": str(tiny_folder)}}
    whole = train(cohort_folder, "drug_recommendation", tmp_path / "whole", system="udc", settings=wanted)
    batches = -(-len(whole.rows_of("train")) // 32)
    with pytest.raises(StoppedError):
        train(
            cohort_folder,
            "drug_recommendation",
            tmp_path / "parts",
            system="udc",
            settings=wanted,
            watcher=StopAt(2 * batches + 1),
            save_every=0.0,
        )
    assert {path.name for path in (tmp_path / "parts" / "stages").iterdir()} == {"collaborative", "codes"}
    again = train(cohort_folder, "drug_recommendation", tmp_path / "parts", system="udc", settings=wanted)
    assert again.predictions().equals(whole.predictions())
    assert [record["stage"] for record in again.epoch_records()] == ["collaborative", "fine-tuning", "fine-tuning"]
    assert not (again.folder / "stages").exists()
    # Stages count apart: one epoch of the first, two of the last, and what is beside them once.
    costs = seconds_of_stages(again)
    records = again.epoch_records()
    assert costs["collaborative"] == pytest.approx(records[0]["seconds"])
    assert costs["fine-tuning"] == pytest.approx((records[1]["seconds"] + records[2]["seconds"]) / 2)
    # Nobody has to say the seconds of an epoch: it then has its share of the run.
    untimed = [{"stage": record["stage"]} for record in records]
    monkeypatch.setattr(type(again), "epoch_records", lambda run: untimed)
    assert seconds_of_stages(again)["collaborative"] == pytest.approx(again.results.seconds / 3)
    assert SYSTEM.epochs_of_stages(SYSTEM.settings_of(None, **wanted)) == {"collaborative": 1, "fine-tuning": 2}
