"""A user's table of indications: which drug treats which disease, in the codes of a cohort.

Read are comma- or tab-separated tables, also gzipped, with one column of drugs (``atc3``, ``rxcui`` or ``rxcui_in``,
``drug``) and one of diseases (``ccs``, ``icd9``, ``icd10``, ``disease``). Codes go through the installed code maps. A
disease that is a name stands for the diagnoses whose names have all its words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import polars as pl

from patients_like_me.codes.registry import map_codes
from patients_like_me.codes.store import CodeStore
from patients_like_me.codes.table_files import clean_column
from patients_like_me.errors import PlmError
from patients_like_me.systems.triples import Triple, code_entity

#: Column names, cleaned, and the code system of their values.
_DRUGS: Final = {"atc3": "atc", "atc": "atc", "rxcui": "rxnorm", "rxcuiin": "rxnorm", "drug": "name"}
_DISEASES: Final = {"ccs": "own", "icd9": "icd9", "icd10": "icd10"}
_NAME: Final = "disease"


def read_indications(path: str | Path, names: Mapping[str, str]) -> tuple[tuple[Triple, ...], str]:
    """Return the indications as triples ``D treated_by M``, and a sentence on how many rows could be mapped.

    ``names`` are the cohort's diagnoses by code.
    """
    file = Path(path)
    separator = "\t" if ".tsv" in file.name else ","
    try:
        table = pl.read_csv(file, separator=separator, infer_schema=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise PlmError(f"the indications '{file}' cannot be read ({error})", remedy="give a CSV or TSV file") from None
    columns = {clean_column(name): name for name in table.columns}
    drug = next((name for name in _DRUGS if name in columns), None)
    disease = next((name for name in (*_DISEASES, _NAME) if name in columns), None)
    if drug is None or disease is None:
        raise PlmError(
            f"'{file}' has no column of {'drugs' if drug is None else 'diseases'}; it has {', '.join(table.columns)}",
            remedy=f"name the columns one of {', '.join(_DRUGS)} and one of {', '.join((*_DISEASES, _NAME))}",
        )
    store = CodeStore.default()
    rows = table.select(pl.col(columns[drug]).alias("drug"), pl.col(columns[disease]).alias("disease")).drop_nulls()
    drugs = _mapped(rows.select("drug").unique(), "medication", "drug", _DRUGS[drug], store)
    if disease == _NAME:
        wanted = rows["disease"].unique().to_list()
        diseases = {name: codes_by_words(name, names) for name in wanted}
    else:
        diseases = _mapped(rows.select("disease").unique(), "diagnosis", "disease", _DISEASES[disease], store)
    found = [
        Triple(code_entity("diagnosis", one), "treated_by", code_entity("medication", other))
        for other_key, key in rows.iter_rows()
        for one in diseases.get(key, ())
        for other in drugs.get(other_key, ())
    ]
    used = sum(bool(diseases.get(key)) and bool(drugs.get(other)) for other, key in rows.iter_rows())
    if not found:
        raise PlmError(
            f"no row of '{file}' names a disease and a drug that can be mapped",
            remedy="install the code maps it needs (plm codes status), or give ccs and atc3",
        )
    sentence = f"{used:,} of {rows.height:,} indications could be mapped to codes"
    return tuple(dict.fromkeys(found)), sentence


def codes_by_words(disease: str, names: Mapping[str, str]) -> list[str]:
    """Return the codes whose names have all words of a disease's name.

    >>> codes_by_words("hypertension", {"98": "Essential hypertension", "49": "Diabetes"})
    ['98']
    """
    wanted = _words(disease)
    return sorted(code for code, name in names.items() if wanted and wanted <= _words(name))


def _words(text: str) -> set[str]:
    return {word.removesuffix("s") for word in re.findall("[a-z]{3,}", text.lower())} - {"disease", "disorder", "and"}


def _mapped(keys: pl.DataFrame, kind: str, column: str, system: str, store: CodeStore) -> dict[str, list[str]]:
    answered = map_codes(kind, keys, {column: system}, store)  # type: ignore[arg-type]
    return {str(key): list(codes) for key, codes in answered.select(column, "codes").iter_rows()}
