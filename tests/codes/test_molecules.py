from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from small_molecules import CODES, SMILES

from patients_like_me.codes.molecules import (
    ATOM_FEATURES,
    BOND_FEATURES,
    DrugStructures,
    drug_structures,
    fingerprints,
    installed_smiles,
    molecule_graphs,
)
from patients_like_me.codes.status import status
from patients_like_me.codes.store import CodeStore
from patients_like_me.errors import PlmError


@pytest.fixture
def _rdkit() -> None:
    pytest.importorskip("rdkit", reason="the molecules need rdkit")


@pytest.mark.usefixtures("_rdkit")
def test_structures_name_what_each_code_has() -> None:
    found = drug_structures({**SMILES, "J01C": ("CCOC(=O)CN", "not a molecule")}, CODES)

    assert found.unreadable == ("not a molecule",)
    assert found.without_molecule.tolist() == [5]
    assert list(found.molecules) == sorted(found.molecules)
    assert list(found.pieces) == sorted(found.pieces)
    assert "C" not in found.molecules  # its code is not asked for
    assert found.of_code.sum(axis=1).tolist() == [2, 1, 1, 1, 2, 0]
    np.testing.assert_allclose(found.averages().sum(axis=1), [1, 1, 1, 1, 1, 0])
    assert (found.has_piece[0] >= found.has_piece[1]).all()  # A01A has the molecule of B01A
    assert found.piece_mask().any(axis=1).all()
    assert np.flatnonzero(found.piece_mask()[5]).tolist() == [len(found.pieces)]


@pytest.mark.usefixtures("_rdkit")
def test_the_order_of_the_file_changes_nothing() -> None:
    turned = {code: tuple(reversed(smiles)) for code, smiles in reversed(SMILES.items())}
    first, second = drug_structures(SMILES, CODES), drug_structures(turned, CODES)
    assert first.molecules == second.molecules
    assert first.pieces == second.pieces
    assert np.array_equal(first.has_piece, second.has_piece)


@pytest.mark.usefixtures("_rdkit")
def test_graphs_have_atoms_bonds_and_features_in_range() -> None:
    graphs = molecule_graphs(("CCO", "[F-].[Na+]", "c1ccccc1", "[4*]CC"))

    assert graphs.atoms[:, 0].tolist() == [6, 6, 8, 9, 11, 6, 6, 6, 6, 6, 6, 0, 6, 6]
    assert graphs.molecule.tolist() == [0] * 3 + [1] * 2 + [2] * 6 + [3] * 3
    assert graphs.edges.shape == (2, 2 * (2 + 0 + 6 + 2))
    assert (graphs.molecule[graphs.edges[0]] == graphs.molecule[graphs.edges[1]]).all()
    assert (graphs.atoms < ATOM_FEATURES).all()
    assert (graphs.bonds < BOND_FEATURES).all()
    assert set(graphs.bonds[4:16, 0].tolist()) == {3}  # aromatic


@pytest.mark.usefixtures("_rdkit")
def test_fingerprints_tell_surroundings_apart() -> None:
    graphs = molecule_graphs(("CCO", "OCC"))
    for radius, different in ((0, 2), (1, 3)):
        numbers, count = fingerprints(graphs, radius)
        assert count == different
        assert numbers[:3].tolist() == numbers[3:][::-1].tolist()


def test_without_rdkit_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rdkit.Chem", None)
    with pytest.raises(PlmError, match=r"pip install 'patients-like-me\[molecules\]'"):
        drug_structures(SMILES, CODES)
    assert molecule_graphs(()).count == 0
    assert DrugStructures.none(CODES).piece_mask().tolist() == np.eye(6, dtype=bool).tolist()


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(tmp_path / "codes")


def test_files_are_read_or_refused_with_a_sentence(tmp_path: Path, store: CodeStore) -> None:
    (tmp_path / "good.json").write_text(json.dumps({"b01a": ["CCO", "CCO"], "A01A": ["C"], "decoder_point": []}))
    assert [part.table for part in store.add(tmp_path / "good.json").added] == ["atc3_smiles"]
    (tmp_path / "good.csv").write_text("atc3,smiles\nA01A05,CC\n")
    store.add(tmp_path / "good.csv")
    assert installed_smiles(store) == {"A01A": ("C", "CC"), "B01A": ("CCO",)}
    row = next(row for row in status(store) if row.table == "atc3_smiles")
    assert row.installed
    assert row.entries == 3
    for name, text, problem in (
        ("list.json", '["CCO"]', "no columns atc3 and smiles; it has atc3"),
        ("text.json", '{"A01A": "CCO"}', "list of SMILES per code"),
        ("other.csv", "code,smiles\nA01A,C\n", "no columns atc3 and smiles; it has code, smiles"),
        ("empty.csv", "atc3,smiles\n", "holds no molecule"),
        ("torn.json", '{"A01A": ', "is not readable JSON"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(PlmError, match=problem):
            store.add(tmp_path / name, table="atc3_smiles")


@pytest.mark.usefixtures("_rdkit")
def test_a_public_file_of_molecules(shared_data: Path, store: CodeStore) -> None:
    store.add(shared_data / "codes" / "molerec_idx2SMILES.json")
    smiles = installed_smiles(store) or {}
    codes = tuple(smiles)[:20]
    found = drug_structures(smiles, codes)
    known = set(json.loads((shared_data / "codes" / "molerec_substructure_smiles.json").read_text()))

    assert not found.unreadable
    assert not len(found.without_molecule)
    assert found.has_piece.any(axis=1).all()
    # The published list comes from another version of rdkit.
    assert len(known & set(found.pieces)) > 0.8 * len(found.pieces)
