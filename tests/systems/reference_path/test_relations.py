from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from systems.reference_path.plain_search import strongest

from patients_like_me.graph.people import PersonRule
from patients_like_me.systems.reference_path.bank import ReferenceBank
from patients_like_me.systems.reference_path.described import (
    EMBEDDING,
    SHARED_DIAGNOSES,
    Described,
    feature_columns,
    similarities_of,
)
from patients_like_me.systems.reference_path.relations import (
    Relation,
    centred_embeddings,
    inverse_frequencies,
    pairs_of_names,
    relations_of,
    weighted_codes,
)

FEATURES = tuple(
    f"{place} {kind} {code}"
    for place in ("current", "earlier")
    for kind in ("diagnosis", "medication")
    for code in range(8)
)


def codes(seed: int, instances: int = 80):
    return (np.random.default_rng(seed).random((instances, len(FEATURES))) < 0.25).astype(np.float32)


class Bank:
    """A bank and queries, of which some are visits of the bank's patients, at four sites and some at none."""

    def __init__(self, seed: int, instances: int = 80):
        random = np.random.default_rng(seed)
        self.codes, self.queries = codes(seed, instances), codes(seed + 100, 30)
        self.patients, self.others = random.integers(0, 30, instances), random.integers(20, 50, 30)
        self.sites, self.other_sites = random.integers(0, 4, instances), random.integers(0, 6, 30)
        self.embeddings, self.other_embeddings = random.normal(size=(instances, 6)), random.normal(size=(30, 6))
        described = self.described(self.codes, self.patients, self.sites, self.embeddings)
        wanted = ("diagnoses", "all codes", "earlier drugs", EMBEDDING, SHARED_DIAGNOSES)
        self.bank = ReferenceBank(
            described,
            FEATURES,
            inverse_frequencies(csr_array(self.codes)),
            similarities_of(wanted, described, FEATURES),
            tuple(str(number) for number in range(instances)),
            np.zeros((instances, 1), np.int8),
            np.zeros((instances, 1), np.float32),
            tau=2,
            centre=self.embeddings.mean(axis=0),
        )

    @staticmethod
    def described(codes, patients, sites, embeddings):
        names = [None if site == 3 else f"site {site}" for site in sites]
        return Described(csr_array(codes), [f"p{person}" for person in patients], names, embeddings)

    def found(self, k: int, folds=None):
        queries = self.described(self.queries, self.others, self.other_sites, self.other_embeddings)
        return self.bank.lists(queries, k, folds=folds)

    def compared(self, name: str):
        """Return queries and bank as full matrices whose products are the similarity."""
        if name == EMBEDDING:
            centre = self.embeddings.mean(axis=0)
            return tuple(centred_embeddings(each, centre) for each in (self.other_embeddings, self.embeddings))
        columns = feature_columns("diagnoses" if name == SHARED_DIAGNOSES else name, FEATURES)
        if name == SHARED_DIAGNOSES:
            half = len(columns) // 2
            return tuple(
                np.maximum(each[:, columns[:half]], each[:, columns[half:]]) for each in (self.queries, self.codes)
            )
        weights = inverse_frequencies(self.codes)[columns]
        full = [each[:, columns] * weights for each in (self.queries, self.codes)]
        return tuple(each / np.maximum(np.linalg.norm(each, axis=1, keepdims=True), 1e-9) for each in full)


def test_products_are_the_idf_weighted_cosines_of_the_definition():
    bank = codes(0)
    weights = inverse_frequencies(csr_array(bank))
    found = weighted_codes(csr_array(bank), weights)
    rows = csr_array((found.weights, found.codes, found.indptr), shape=bank.shape)
    full = bank * weights
    lengths = np.maximum(np.linalg.norm(full, axis=1, keepdims=True), 1e-9)
    np.testing.assert_allclose((rows @ rows.T).toarray(), (full / lengths) @ (full / lengths).T, atol=1e-6)


@pytest.mark.parametrize("folded", [False, True])
def test_the_kernels_find_what_a_plain_search_finds(folded):
    made = Bank(1)
    random = np.random.default_rng(2)
    folds = (random.integers(0, 3, 30), random.integers(0, 3, 80)) if folded else None
    for name, found in made.found(7, folds).items():
        plain, within = name.removesuffix(" within site"), name.endswith("within site")
        groups = folds
        if within:
            # Site 3 stands for none: nobody is a reference there, nor at sites that the bank does not have.
            own, bank = np.where(made.other_sites >= 3, -1, made.other_sites), np.where(made.sites == 3, -2, made.sites)
            groups = (own, bank) if folds is None else (10 * own + folds[0], 10 * bank + folds[1])
        queries, rows = made.compared(plain)
        expected = strongest(
            queries,
            rows,
            7,
            patients=(made.others, made.patients),
            groups=groups,
            at_least=2 if plain == SHARED_DIAGNOSES else 0,
        )
        np.testing.assert_allclose(found.similarities, expected.similarities, atol=1e-6, err_msg=name)
        clear = np.abs(np.diff(expected.similarities, axis=1, append=0)) > 1e-5
        clear &= np.abs(np.diff(expected.similarities, axis=1, prepend=2)) > 1e-5
        np.testing.assert_array_equal(found.columns[clear], expected.columns[clear], err_msg=name)


def test_no_relation_holds_an_instance_of_the_same_patient():
    made = Bank(3)
    lists = made.bank.lists(made.bank.described, 60)
    assert len(lists) == 7
    for found in lists.values():
        used = found.similarities > 0
        assert used.any()
        assert (made.patients[found.columns] != made.patients[:, None])[used].all()


def test_every_relation_takes_the_strongest_of_those_who_fit_by_sex_and_age():
    made, random = Bank(9), np.random.default_rng(9)
    people, others = (np.stack([random.integers(-1, 2, n), random.integers(40, 90, n)], 1) for n in (80, 30))
    bank = replace(
        made.bank,
        described=replace(made.bank.described, people=people.astype(np.int16)),
        similarities=(*made.bank.similarities, "two hops"),
        rule=PersonRule(same_sex=True, max_age_difference=10),
    )
    queries = made.described(made.queries, made.others, made.other_sites, made.other_embeddings)
    folds = random.integers(0, 2, 30), random.integers(0, 2, 80)
    unknown = (others[:, None, 0] < 0) | (people[None, :, 0] < 0)
    fits = unknown | (others[:, None, 0] == people[None, :, 0])
    fits &= np.abs(others[:, None, 1] - people[None, :, 1]) <= 10
    for given in (None, folds):
        found = bank.lists(replace(queries, people=others.astype(np.int16)), 80, folds=given)
        everybody = made.bank.lists(queries, 80, folds=given)
        for name, each in found.items():
            used = each.similarities > 0
            assert used.any()
            assert np.take_along_axis(fits, each.columns.astype(np.int64), axis=1)[used].all(), name
            if name != "two hops":
                # Whoever fits and is found without the rule is found with it, equally alike.
                kept = np.take_along_axis(fits, everybody[name].columns.astype(np.int64), axis=1)
                for row in range(30):
                    expected = everybody[name].similarities[row][kept[row] & (everybody[name].similarities[row] > 0)]
                    np.testing.assert_array_equal(each.similarities[row][used[row]], expected, err_msg=name)


def test_a_bank_smaller_than_k_leaves_places_unused():
    found = Bank(4, instances=5).found(10)
    assert found["all codes"].columns.shape == (30, 10)
    assert all((each.similarities[:, 5:] == 0).all() for each in found.values())


def test_the_codes_of_queries_move_no_weight():
    """IDF weights are the bank's: whoever else is asked for, a list stays the same."""
    made = Bank(5)
    together = made.found(5)
    queries = made.described(made.queries, made.others, made.other_sites, made.other_embeddings)
    for row in (0, 7):
        alone = made.bank.lists(queries.rows(np.array([row])), 5)
        for name, found in alone.items():
            np.testing.assert_array_equal(found.similarities[0], together[name].similarities[row])
            np.testing.assert_array_equal(found.columns[0], together[name].columns[row])


def test_similarities_that_tell_nothing_new_are_left_out():
    described = Bank.described(codes(6), np.arange(80), np.zeros(80, int), None)
    wanted = ("diagnoses", "current codes", "all codes", "whole bag")
    # The bag has nothing but codes here, and there is one site.
    assert similarities_of(wanted, described, FEATURES) == ("diagnoses", "current codes", "all codes")
    assert similarities_of(("earlier drugs",), described, ("current diagnosis 1",) * len(FEATURES)) == ()


def test_a_relation_raises_the_similarities_of_the_first_k():
    found = Bank(6).found(6)["all codes"]
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
