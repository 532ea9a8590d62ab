"""The patient graph: which instances share how many diagnoses, exactly, for a whole hospital.

``build_graph`` makes it in memory, ``blocks`` in pieces on disk; ``PatientGraph`` is what the next rooms take.
Diagnosis sets go in, compressed rows come out. The counting is in ``adders`` and ``kernels``.
"""

from __future__ import annotations

from patients_like_me.graph.build import build_graph
from patients_like_me.graph.patient_graph import PatientGraph
from patients_like_me.graph.settings import GraphSettings

__all__ = ["GraphSettings", "PatientGraph", "build_graph"]
