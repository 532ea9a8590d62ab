"""The audit of the run's own instances: does anything of the answer reach an input?"""

from __future__ import annotations

from patients_like_me.plain_text import FEW, shown_count
from patients_like_me.report.run_report import Block, Section, Table, Text
from patients_like_me.report.run_sections.material import Material


def leakage_section(material: Material) -> Section:
    """Return the verdicts of all checks, computed again for this report."""
    audit = material.audit
    unmade = len(audit.findings) - len(audit.made)
    if audit.leaks:
        blocks: list[Block] = [Text(f"{audit.sum}: the scores below cannot be trusted.", "warning")]
    elif audit.warnings:
        blocks = [Text(f"{audit.sum}: see the table before the scores.", "warning")]
    else:
        blocks = [Text(f"{audit.sum}, on the instances of this run.", "good")]
    if unmade:
        blocks.append(Text(f"{unmade} further checks do not apply or had nothing to look at.", "note"))
    # The note on labels outside the vocabulary holds a count of labels, which may be small.
    blocks += [Text(note, "note") for note in audit.notes if "no training patient has" not in note]
    outside = material.run.instances.labels_outside_vocabulary
    if outside:
        blocks.append(
            Text(
                f"{shown_count(outside).capitalize()} labels of validation and test have a code that no training "
                "patient has; they count in no metric.",
                "note",
            )
        )
    rows = tuple(
        (found.check, found.verdict, shown_count(found.looked_at), shown_count(found.found), found.meaning)
        for found in audit.findings
    )
    blocks.append(
        Table(
            "Every check holds what the model gets against the cohort's tables. Numbers of "
            f"{FEW}, but not 0, are not shown.",
            ("check", "verdict", "looked at", "found", "what was looked for"),
            rows,
            numbers=frozenset({"looked at", "found"}),
        )
    )
    return Section("audit", "Leakage audit", tuple(blocks))
