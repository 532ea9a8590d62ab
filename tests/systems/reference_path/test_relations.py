from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from patients_like_me.systems.reference_path.relations import (
    Relation,
    centred_embeddings,
    inverse_frequencies,
    pairs_of_names,
    relations_of,
    strongest,
    strongest_within,
    weighted_codes,
)


def codes(seed: int, instances: int = 80):
    return (np.random.default_rng(seed).random((instances, 25)) < 0.25).astype(np.float32)


def test_products_are_the_idf_weighted_cosines_of_the_definition():
    bank = codes(0)
    weights = inverse_frequencies(csr_array(bank))
    found = weighted_codes(csr_array(bank), weights)
    full = bank * weights
    lengths = np.maximum(np.linalg.norm(full, axis=1, keepdims=True), 1e-9)
    np.testing.assert_allclose((found @ found.T).toarray(), (full / lengths) @ (full / lengths).T, atol=1e-6)


@pytest.mark.parametrize("sparse", [True, False])
def test_lists_hold_the_strongest_references_of_other_patients(sparse):
    bank, patients = codes(1), np.random.default_rng(1).integers(0, 30, 80)
    matrix = csr_array(bank) if sparse else bank
    found = strongest(matrix, matrix, 7, patients=(patients, patients), block=13)
    products = bank @ bank.T
    products[patients[:, None] == patients[None, :]] = 0
    np.testing.assert_allclose(found.similarities, -np.sort(-products, axis=1)[:, :7])
    used = found.similarities > 0
    np.testing.assert_allclose(
        np.take_along_axis(products, found.columns.astype(int), 1)[used], found.similarities[used]
    )
    assert (patients[found.columns] != patients[:, None])[used].all()


def test_counts_below_tau_are_no_references():
    bank, people = codes(2), np.arange(80)
    found = strongest(bank, bank, 40, patients=(people, people), at_least=4)
    used = found.similarities > 0
    assert used.any()
    assert found.similarities[used].min() >= 4
    products = bank @ bank.T
    np.fill_diagonal(products, 0)
    np.testing.assert_array_equal(used.sum(axis=1), np.minimum((products >= 4).sum(axis=1), 40))


def test_a_bank_smaller_than_k_leaves_places_unused():
    found = strongest(codes(3), codes(4)[:3], 10, patients=(np.arange(80), np.array([200, 201, 202])))
    assert found.columns.shape == (80, 10)
    assert (found.similarities[:, 3:] == 0).all()


def test_references_within_a_group_are_those_of_the_masked_search():
    bank, people = codes(5), np.arange(80)
    sites = np.random.default_rng(5).integers(0, 4, 80)
    found = strongest_within(bank, bank, 5, patients=(people, people), groups=(sites, sites))
    products = bank @ bank.T
    products[sites[:, None] != sites[None, :]] = 0
    np.fill_diagonal(products, 0)
    np.testing.assert_allclose(found.similarities, -np.sort(-products, axis=1)[:, :5])
    used = found.similarities > 0
    assert (sites[found.columns] == sites[:, None])[used].all()


def test_a_query_whose_group_is_not_in_the_bank_has_no_reference():
    found = strongest_within(
        np.ones((1, 1)), np.ones((3, 1)), 2, patients=(np.array([9]), np.arange(3)), groups=(np.array([7]), np.zeros(3))
    )
    assert not found.similarities.any()


def test_a_relation_raises_the_similarities_of_the_first_k():
    bank, people = codes(6), np.arange(80)
    found = strongest(bank, bank, 6, patients=(people, people))
    np.testing.assert_allclose(Relation("codes", 3, 2.0).weights(found), found.similarities[:, :3].astype(float) ** 2)
    assert len(relations_of({"codes": found}, (2, 4, 100), (1.0, 3.0))) == 6


def test_centred_embeddings_are_unit_rows_around_the_mean_of_the_bank():
    rows = np.random.default_rng(7).normal(size=(50, 4)) + 100
    found = centred_embeddings(rows, rows.mean(axis=0))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert (found @ found.T).min() < -0.5


def test_pairs_of_names_are_equal_where_both_names_are():
    first, second = np.random.default_rng(8).integers(0, 3, (2, 40))
    pair = pairs_of_names(first, second)
    together = (first[:, None] == first) & (second[:, None] == second)
    np.testing.assert_array_equal(pair[:, None] == pair, together)
