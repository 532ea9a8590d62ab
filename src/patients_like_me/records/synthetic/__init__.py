"""A synthetic hospital: MIMIC-IV-shaped tables from a documented generative model, for demos and scale tests.

``syndromes`` holds the clinical knowledge, ``courses`` draws patients and visits, ``contents`` their codes,
``timeline`` their times, ``tables`` lays them out as MIMIC-IV does and ``writing`` writes them block by block.
"""

from __future__ import annotations

from patients_like_me.records.synthetic.settings import SyntheticHospital, SyntheticSummary
from patients_like_me.records.synthetic.writing import write_synthetic_hospital

__all__ = ["SyntheticHospital", "SyntheticSummary", "write_synthetic_hospital"]
