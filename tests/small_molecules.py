"""A few small molecules for six made-up codes; the last code has none."""

from __future__ import annotations

from typing import Final

CODES: Final = ("A01A", "B01A", "C07A", "J01C", "N02B", "Z99Z")
SMILES: Final = {
    "A01A": ("CC(=O)OC1=CC=CC=C1C(O)=O", "[F-].[Na+]"),
    "B01A": ("CC(=O)OC1=CC=CC=C1C(O)=O",),
    "C07A": ("CC(C)NCC(O)COC1=CC=CC=C1",),
    "J01C": ("CCOC(=O)CN",),
    "N02B": ("CC(=O)NC1=CC=C(O)C=C1", "CCO"),
    "Q01A": ("C",),
}
