"""The names of drugs, which come with the package."""

from __future__ import annotations

from patients_like_me.codes.code_tables import CodeTable

CODE_TABLE = (
    CodeTable(
        name="drug_names",
        title="Drug name to ATC-3",
        needed_for="medications whose NDC is missing or gives nothing",
        how_to_get="Comes with plm.",
        place=60,
    ),
)
