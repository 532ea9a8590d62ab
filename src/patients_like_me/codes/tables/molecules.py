"""The molecules of ATC-3 codes."""

from __future__ import annotations

from patients_like_me.codes.code_tables import CodeTable, GivenFile
from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.codes.molecules import SMILES_TABLE, parse_smiles, smiles_of_json


def recognise(file: GivenFile, table: str | None) -> list[ParsedTable] | None:
    """Read SMILES per code."""
    return parse_smiles(file.columns, source=file.path, wanted=table is not None)


CODE_TABLE = (
    CodeTable(
        name=SMILES_TABLE,
        title="ATC-3 codes and their molecules (SMILES)",
        needed_for="SafeDrug and MoleRec",
        columns=("atc3", "smiles"),
        recognise=recognise,
        of_json=smiles_of_json,
        place=50,
        tried=20,
        how_to_get=(
            "Optional: the molecules of each ATC-3 code, as a CSV with the header atc3,smiles or a JSON object such as "
            '{"A01A": ["CCO"]}; research code for drug recommendation often has one. Then: plm codes add FILE. Reading '
            "molecules needs rdkit: pip install 'patients-like-me[molecules]'."
        ),
        optional=True,
    ),
)
