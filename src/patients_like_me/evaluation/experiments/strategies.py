"""The five strategies as rows, in the paper's order and by its names."""

from __future__ import annotations

from typing import Final

from patients_like_me.evaluation.experiments.design import Variant

STRATEGY_ROWS: Final = (
    Variant("VEM", {"strategy": "vem"}),
    Variant("Alternating", {"strategy": "alternating"}),
    Variant("E2E", {"strategy": "end_to_end"}),
    Variant("2-stage", {"strategy": "two_stage"}),
    Variant("LM-only", {"strategy": "lm_only"}),
)
VEM_ROW: Final = STRATEGY_ROWS[0]
LM_ONLY_ROW: Final = STRATEGY_ROWS[-1]
