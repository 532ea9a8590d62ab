"""NDC, RxNorm and ATC-3: tables of two columns, or an RxNorm release."""

from __future__ import annotations

from patients_like_me.codes.code_tables import CodeTable, GivenFile
from patients_like_me.codes.drug_tables import DRUG_TABLES, HEADER_WORDS, ParsedTable, parse_drug_table

_FROM_NLM = (
    "On NLM's site, www.nlm.nih.gov/research/umls/rxnorm, download the RxNorm Full Monthly Release "
    "(RxNorm_full_MMDDYYYY.zip); it needs a free UMLS licence. Then: plm codes add RxNorm_full_MMDDYYYY.zip. "
    "Tables of your own with the headers ndc,rxcui and rxcui,atc3 serve as well. Without both, the NDC "
    "cannot be mapped and the drug's name is used."
)


def recognise(file: GivenFile, table: str | None) -> list[ParsedTable] | None:
    """Read the columns of NDC, RxCUI and ATC codes."""
    wanted = next((name for name in DRUG_TABLES if name == table), None)
    return parse_drug_table(file.columns, source=file.path, table=wanted)


CODE_TABLE = (
    CodeTable(
        name="ndc_rxcui",
        title="NDC to RxCUI",
        needed_for="medications by NDC, first step",
        columns=("ndc", "rxcui"),
        recognise=recognise,
        header_words=HEADER_WORDS,
        place=20,
        tried=50,
        how_to_get=_FROM_NLM,
    ),
    CodeTable(
        name="rxcui_atc3",
        title="RxCUI to ATC-3",
        needed_for="medications by NDC, second step",
        columns=("rxcui", "atc3"),
        recognise=recognise,
        header_words=HEADER_WORDS,
        place=20,
        tried=50,
        how_to_get=_FROM_NLM,
    ),
    CodeTable(
        name="ndc_atc3",
        title="NDC to ATC-3, directly",
        needed_for="medications by NDC where the two steps give nothing",
        columns=("ndc", "atc3"),
        recognise=recognise,
        header_words=HEADER_WORDS,
        place=20,
        tried=50,
        how_to_get="Optional: any table of your own with a header such as ndc,atc3. Then: plm codes add FILE.",
        optional=True,
    ),
)
