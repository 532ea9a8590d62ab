"""Molecules of drug codes: SMILES per ATC-3 code from a file of the user, molecule graphs, BRICS pieces, fingerprints.

A code may have several molecules, and some codes have none. Everything is in a stable order (molecules and pieces
sorted by their SMILES), so that weights that were learned on one machine fit on another. rdkit reads the SMILES; it is
the optional extra ``patients-like-me[molecules]`` and is imported only where a SMILES is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl

from patients_like_me.codes.drug_tables import ParsedTable, normalised_atc3
from patients_like_me.codes.hierarchy import named_without
from patients_like_me.codes.table_files import clean_column
from patients_like_me.errors import PlmError

if TYPE_CHECKING:
    from patients_like_me.codes.store import CodeStore

SMILES_TABLE: Final = "atc3_smiles"

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: Number of values of each atom feature: atomic number (0: attachment point of a piece), chirality, degree, charge + 5,
#: hydrogens, radical electrons, hybridisation, aromatic, in a ring. Larger values count as the largest.
ATOM_FEATURES: Final = (119, 4, 11, 11, 9, 5, 9, 2, 2)
#: Number of values of each bond feature: single, double, triple, aromatic or other; stereo; conjugated.
BOND_FEATURES: Final = (5, 8, 2)
_BOND_TYPES: Final = {"SINGLE": 0, "DOUBLE": 1, "TRIPLE": 2, "AROMATIC": 3}


@dataclass(frozen=True)
class MoleculeGraphs:
    """Several molecules as one graph without edges between them; each bond is in it in both directions.

    ``atoms`` [A, 9] and ``bonds`` [E, 3] are category numbers, ``edges`` [2, E] lead from atom to atom, and
    ``molecule`` [A] is the number of each atom's molecule.
    """

    atoms: Whole
    edges: Whole
    bonds: Whole
    molecule: Whole
    count: int


@dataclass(frozen=True)
class DrugStructures:
    """Which molecules and which BRICS pieces each of ``codes`` has.

    ``of_code`` [codes, molecules] and ``has_piece`` [codes, pieces]; ``unreadable`` are SMILES that rdkit refused.
    """

    codes: tuple[str, ...]
    molecules: tuple[str, ...]
    of_code: Flags
    pieces: tuple[str, ...]
    has_piece: Flags
    unreadable: tuple[str, ...] = ()

    @classmethod
    def none(cls, codes: tuple[str, ...]) -> DrugStructures:
        """Return structures of which nothing is known.

        >>> DrugStructures.none(("A01A",)).piece_mask().tolist()
        [[True]]
        """
        nothing = np.zeros((len(codes), 0), dtype=bool)
        return cls(codes, (), nothing, (), nothing)

    def as_json(self) -> dict[str, Any]:
        """Return the structures as plain data, with the columns that are true in each row."""
        return {
            "codes": list(self.codes),
            "molecules": list(self.molecules),
            "of_code": [np.flatnonzero(row).tolist() for row in self.of_code],
            "pieces": list(self.pieces),
            "has_piece": [np.flatnonzero(row).tolist() for row in self.has_piece],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> DrugStructures:
        """Read what :meth:`as_json` returned.

        >>> DrugStructures.from_json(DrugStructures.none(("A01A",)).as_json()).piece_mask().tolist()
        [[True]]
        """
        codes, molecules, pieces = (tuple(content[name]) for name in ("codes", "molecules", "pieces"))
        of_code = np.zeros((len(codes), len(molecules)), dtype=bool)
        has_piece = np.zeros((len(codes), len(pieces)), dtype=bool)
        for row in range(len(codes)):
            of_code[row, content["of_code"][row]] = True
            has_piece[row, content["has_piece"][row]] = True
        return cls(codes, molecules, of_code, pieces, has_piece)

    def sentence(self) -> str:
        """Say how many codes have a molecule, and name those that have none.

        >>> DrugStructures.none(("A01A",)).sentence()
        '0 of 1 drug codes have a molecule; without: A01A'
        """
        without = [self.codes[row] for row in self.without_molecule]
        counted = f"{len(self.codes) - len(without)} of {len(self.codes)} drug codes have a molecule"
        unreadable = f"; {len(self.unreadable)} SMILES are not readable" if self.unreadable else ""
        return counted + named_without(without) + unreadable

    @property
    def without_molecule(self) -> Whole:
        """The rows of the codes that have no molecule."""
        return np.flatnonzero(~self.of_code.any(axis=1)).astype(np.int64)

    def averages(self) -> npt.NDArray[np.float32]:
        """Return [codes, molecules]: the share of each molecule in the mean of a code; zeros without a molecule."""
        sizes = np.maximum(self.of_code.sum(axis=1, keepdims=True), 1)
        shares: npt.NDArray[np.float32] = (self.of_code / sizes).astype(np.float32)
        return shares

    def piece_mask(self) -> Flags:
        """Return ``has_piece`` with one piece more for each code without a molecule, which only that code has.

        Such a code is neither dropped nor treated as a drug without effect: it keeps a learned structure of its own.
        """
        own = np.zeros((len(self.codes), len(self.without_molecule)), dtype=bool)
        own[self.without_molecule, np.arange(len(self.without_molecule))] = True
        return np.concatenate([self.has_piece, own], axis=1)


def parse_smiles(raw: pl.DataFrame, *, source: Path, wanted: bool = False) -> list[ParsedTable] | None:
    """Recognise a table of molecules: the columns atc3 and smiles, one molecule per row.

    >>> raw = pl.DataFrame({"atc3": ["a01a", "A01A", "B"], "smiles": ["CCO", "C", "C"]})
    >>> parse_smiles(raw, source=Path("own.csv"))[0].frame.rows()
    [('A01A', 'C'), ('A01A', 'CCO')]
    """
    names = {clean_column(name): name for name in raw.columns}
    if not {"atc3", "smiles"} <= set(names):
        if not wanted:
            return None
        raise PlmError(
            f"'{source}' has no columns atc3 and smiles; it has {', '.join(raw.columns) or 'none'}",
            remedy="name the columns atc3 and smiles, with one molecule per row",
        )
    pairs = raw.select(
        normalised_atc3(pl.col(names["atc3"])).alias("atc3"),
        pl.col(names["smiles"]).cast(pl.String).str.strip_chars().alias("smiles"),
    )
    usable = pairs.drop_nulls().filter(pl.col("smiles") != "")
    if usable.is_empty():
        raise PlmError(f"'{source}' holds no molecule", remedy="give one or more SMILES per ATC-3 code")
    return [ParsedTable(SMILES_TABLE, usable.unique().sort("atc3", "smiles"), raw.height - usable.height)]


def smiles_of_json(text: str, *, source: Path) -> pl.DataFrame | None:
    """Read a JSON object with a list of SMILES per code; None where the text is not a JSON object.

    >>> smiles_of_json('{"A01A": ["CCO"], "decoder_point": []}', source=Path("own.json")).rows()
    [('A01A', 'CCO')]
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise PlmError(f"'{source}' is not readable JSON ({error})", remedy="write it again") from None
    # Published files have an empty entry for words that are not codes; it holds no molecule.
    lists = [found for found in content.values() if found]
    if not all(isinstance(found, list) and all(isinstance(smiles, str) for smiles in found) for found in lists):
        raise PlmError(
            f"'{source}' is not an object with a list of SMILES per code", remedy='write it as {"A01A": ["CCO"]}'
        )
    pairs = [(code, smiles) for code, found in content.items() for smiles in found or ()]
    return pl.DataFrame(pairs, schema={"atc3": pl.String, "smiles": pl.String}, orient="row")


def installed_smiles(store: CodeStore | None = None) -> dict[str, tuple[str, ...]] | None:
    """Return the installed SMILES per code, None where there are none."""
    from patients_like_me.codes.store import CodeStore

    frame = (store or CodeStore.default()).table(SMILES_TABLE)
    if frame is None:
        return None
    return {str(code): tuple(part["smiles"]) for (code,), part in frame.group_by("atc3", maintain_order=True)}


def drug_structures(smiles_of_code: Mapping[str, Sequence[str]], codes: tuple[str, ...]) -> DrugStructures:
    """Find the molecules and the BRICS pieces of these codes; other codes of the file are left out."""
    chem, brics = _rdkit("Chem"), _rdkit("Chem.BRICS")
    pieces_of: dict[str, list[str]] = {}
    unreadable: list[str] = []
    with _rdkit("rdBase").BlockLogs():
        for smiles in sorted({smiles for code in codes for smiles in smiles_of_code.get(code, ())}):
            molecule = chem.MolFromSmiles(smiles)
            if molecule is None or not molecule.GetNumAtoms():
                unreadable.append(smiles)
            else:
                pieces_of[smiles] = sorted(brics.BRICSDecompose(molecule))
    pieces = sorted({piece for found in pieces_of.values() for piece in found})
    molecule_at = {smiles: at for at, smiles in enumerate(pieces_of)}
    piece_at = {piece: at for at, piece in enumerate(pieces)}
    of_code = np.zeros((len(codes), len(pieces_of)), dtype=bool)
    has_piece = np.zeros((len(codes), len(pieces)), dtype=bool)
    for row, code in enumerate(codes):
        for smiles in smiles_of_code.get(code, ()):
            if smiles in pieces_of:
                of_code[row, molecule_at[smiles]] = True
                has_piece[row, [piece_at[piece] for piece in pieces_of[smiles]]] = True
    return DrugStructures(codes, tuple(pieces_of), of_code, tuple(pieces), has_piece, tuple(unreadable))


def molecule_graphs(molecules: Sequence[str]) -> MoleculeGraphs:
    """Return the graphs of these SMILES, of molecules or of pieces; no SMILES give an empty graph without rdkit."""
    atoms: list[tuple[int, ...]] = []
    edges: list[tuple[int, int]] = []
    bonds: list[tuple[int, ...]] = []
    owner: list[int] = []
    for number, smiles in enumerate(molecules):
        molecule, first = _rdkit("Chem").MolFromSmiles(smiles), len(atoms)
        if molecule is None:
            raise PlmError(f"'{smiles}' is not a readable SMILES", remedy="correct or remove it")
        atoms += [_atom_features(atom) for atom in molecule.GetAtoms()]
        owner += [number] * (len(atoms) - first)
        for bond in molecule.GetBonds():
            start, end = first + bond.GetBeginAtomIdx(), first + bond.GetEndAtomIdx()
            edges += [(start, end), (end, start)]
            bonds += [_bond_features(bond)] * 2
    return MoleculeGraphs(
        atoms=np.array(atoms, dtype=np.int64).reshape(-1, len(ATOM_FEATURES)),
        edges=np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy(),
        bonds=np.array(bonds, dtype=np.int64).reshape(-1, len(BOND_FEATURES)),
        molecule=np.array(owner, dtype=np.int64),
        count=len(molecules),
    )


def fingerprints(graphs: MoleculeGraphs, radius: int) -> tuple[Whole, int]:
    """Return the Weisfeiler-Lehman number of each atom and how many there are.

    At radius 0 an atom is its element and whether it is aromatic; every step more adds the numbers of the neighbours
    and the types of the bonds to them.

    >>> water = MoleculeGraphs(
    ...     np.array([[1, *[0] * 8], [8, *[0] * 8], [1, *[0] * 8]]), np.array([[0, 1, 1, 2], [1, 0, 2, 1]]),
    ...     np.zeros((4, 3), dtype=np.int64), np.zeros(3, dtype=np.int64), 1)
    >>> fingerprints(water, 1)[0].tolist()
    [0, 1, 0]
    """
    aromatic = len(ATOM_FEATURES) - 2
    numbers = np.array(_numbered([(int(atom[0]), int(atom[aromatic])) for atom in graphs.atoms]), dtype=np.int64)
    for _ in range(radius):
        numbers = refined(numbers, graphs.edges, graphs.bonds[:, 0])
    return numbers, int(numbers.max(initial=-1)) + 1


def refined(numbers: Whole, edges: Whole, bonds: Whole) -> Whole:
    """Number atoms [A] again by their own number, the numbers of their neighbours and the bonds [E] to them.

    Atoms with equal numbers then look alike one bond further.

    >>> refined(np.array([0, 1, 0]), np.array([[0, 1], [1, 0]]), np.array([0, 0])).tolist()
    [0, 1, 2]
    """
    around: list[list[tuple[int, int]]] = [[] for _ in numbers]
    for start, end, bond in zip(*edges.tolist(), bonds.tolist(), strict=True):
        around[end].append((int(numbers[start]), bond))
    keys = [(own, *sorted(near)) for own, near in zip(numbers.tolist(), around, strict=True)]
    return np.array(_numbered(keys), dtype=np.int64)


def _numbered(keys: Sequence[tuple[Any, ...]]) -> list[int]:
    known: dict[tuple[Any, ...], int] = {}
    return [known.setdefault(key, len(known)) for key in keys]


def _atom_features(atom: Any) -> tuple[int, ...]:
    values = (
        atom.GetAtomicNum(),
        int(atom.GetChiralTag()),
        atom.GetTotalDegree(),
        atom.GetFormalCharge() + 5,
        atom.GetTotalNumHs(),
        atom.GetNumRadicalElectrons(),
        int(atom.GetHybridization()),
        int(atom.GetIsAromatic()),
        int(atom.IsInRing()),
    )
    return tuple(min(max(value, 0), size - 1) for value, size in zip(values, ATOM_FEATURES, strict=True))


def _bond_features(bond: Any) -> tuple[int, ...]:
    kind = _BOND_TYPES.get(str(bond.GetBondType()).rsplit(".", 1)[-1], len(_BOND_TYPES))
    return kind, min(int(bond.GetStereo()), BOND_FEATURES[1] - 1), int(bond.GetIsConjugated())


def _rdkit(module: str) -> Any:
    try:
        return import_module(f"rdkit.{module}")
    except ImportError:
        raise PlmError(
            "reading molecules needs rdkit, which is not installed",
            remedy="install it with: pip install 'patients-like-me[molecules]'",
        ) from None
