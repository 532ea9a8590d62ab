"""Interactions between drugs, and the codes that the table covers."""

from __future__ import annotations

from patients_like_me.codes.code_tables import CodeTable, GivenFile
from patients_like_me.codes.drug_tables import ParsedTable
from patients_like_me.codes.interactions import (
    COLUMNS,
    HEADER_WORDS,
    INTERACTION_TABLES,
    codes_of_json,
    parse_interactions,
)


def recognise(file: GivenFile, table: str | None) -> list[ParsedTable] | None:
    """Read interacting pairs, or covered codes."""
    wanted = next((name for name in INTERACTION_TABLES if name == table), None)
    return parse_interactions(file.columns, source=file.path, table=wanted)


CODE_TABLE = (
    CodeTable(
        name="atc3_interactions",
        title="ATC-3 drug interactions",
        needed_for="the drug-drug-interaction rate of recommended sets; GAMENet, SafeDrug, MICRON, MoleRec, KEHGCN",
        columns=COLUMNS["atc3_interactions"],
        recognise=recognise,
        header_words=HEADER_WORDS,
        of_json=codes_of_json,
        place=30,
        tried=40,
        how_to_get=(
            "Optional: a table of interacting pairs with the header atc3_a,atc3_b, made from a source such as "
            "TWOSIDES; research code for drug recommendation often has one. Then: plm codes add FILE. Without it the "
            "interaction rate is not available."
        ),
        optional=True,
    ),
    CodeTable(
        name="atc3_covered",
        title="ATC-3 codes that the interactions cover",
        needed_for="telling a pair without interaction from an unknown one",
        columns=COLUMNS["atc3_covered"],
        recognise=recognise,
        header_words=HEADER_WORDS,
        of_json=codes_of_json,
        place=30,
        tried=40,
        how_to_get=(
            "Optional: the codes that the interaction table was made for, as a CSV with the one column atc3 or a JSON "
            "list. Then: plm codes add FILE. Without it a code that has no interaction at all counts as unknown."
        ),
        optional=True,
    ),
)
