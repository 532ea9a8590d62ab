"""Every kind of LaTeX table compiles, shows what it says, and stays within the margins."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from patients_like_me.evaluation.experiments.result_table import PREAMBLE, Column, Number, ResultTable, TableRow
from patients_like_me.evaluation.intervals import SeedSpread
from patients_like_me.evaluation.tables import latex_table, latex_text
from patients_like_me.graph.edge_weights import BINS

ODD = 'a_b & 50 % of $5 #1 {x} ~ ^ \\ <3 >10 | "q" ± ≥ ≤ × − Cramér τ'
DOCUMENT = r"""\documentclass[10pt,twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs,graphicx}
\begin{document}
%s
\end{document}
"""


def tables() -> dict[str, str]:
    wide = tuple(
        Column(f"metric_{number}", ("Task", "MIMIC-IV" if number % 2 else "MIMIC-III")) for number in range(14)
    )
    rows = tuple(
        TableRow(
            (backbone, name), tuple(SeedSpread(0.1 * number, 0.01, 3) for number in range(14)), mark="chosen > all"
        )
        for backbone in ("bioclinical-modernbert", "b")
        for name in ("VEM", "LM_only")
    )
    bins = tuple(Column(name, ("Edge weight",), digits=2, best=None) for name in BINS)
    numbers = (Number(0.16, 0.01, 0.1, 0.2, 3), Number(-0.013, None, -0.03, 0.003, signed=True), None, "", 12345.0)
    paired = tuple(Column(name, scale=1.0, digits=3) for name in ("auprc", "auprc against vem", "x", "y", "parameters"))
    return {
        "wide": ResultTable(ODD, "wide_one", ("Backbone", "Training"), wide, rows, second_best=True).latex(),
        "bins": ResultTable(ODD, "bins", ("Graph",), bins, (TableRow(("train >10",), (0.1,) * len(BINS)),)).latex(),
        "paired": ResultTable(ODD, "paired", ("row",), paired, (TableRow(("vem",), numbers),) * 2).latex(),
        "metrics": latex_table(
            ["metric", "threshold", "value", ODD], [[ODD, "0.2", "1", "2"]], caption=ODD, label="m_1"
        ),
        "comparison": latex_table(
            ["run", "metric", "value", "95 % interval", "difference"],
            [
                [
                    "a run with a long name",
                    "f1_per_instance@tuned",
                    "0.1 ± 0.2",
                    "0.1 to 0.2",
                    "+0.1 (+0.0 to +0.1), p 0.1",
                ]
            ]
            * 90,
            caption=ODD,
            label="c",
        ),
    }


def test_signs_that_fonts_show_as_others_are_written_in_mathematics() -> None:
    assert latex_text(">10 <3") == "$>$10 $<$3"
    assert "$>$10" in tables()["bins"]
    assert r"\fromto{$-$0.030}{+0.003}" in tables()["paired"]


def test_a_long_table_becomes_several() -> None:
    text = tables()["comparison"]
    assert text.count(r"\begin{table}") == 3
    assert text.count("(continued)") == 2
    assert len(set(re.findall(r"\\label\{(.*?)\}", text))) == 3


@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="pdflatex is not installed (Debian: texlive-latex-recommended)"
)
@pytest.mark.parametrize("encoding", ["T1", "OT1"])
def test_all_kinds_of_tables_compile_within_the_margins(tmp_path: Path, encoding: str) -> None:
    made = tables()
    body = "\n\\clearpage\n".join(made.values())
    (tmp_path / "all.tex").write_text((DOCUMENT % body).replace("[T1]", f"[{encoding}]"), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").is_file()
    for problem in ("Overfull \\hbox", "Float too large", "Missing character", "undefined"):
        assert problem not in done.stdout, done.stdout[-3000:]


def test_the_preamble_is_written_once_and_names_what_it_needs() -> None:
    assert PREAMBLE.startswith("% needs \\usepackage{booktabs,graphicx}")
    assert tables()["wide"].count("\\providecommand{\\fittext}") == 1
