"""docs/systems.md has a row for every compared system in each of its two tables, and no row for another one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from patients_like_me.systems.registry import all_systems

PAGE = Path(__file__).parents[2] / "docs" / "systems.md"
#: Systems of this house and plain models; everything else is published.
OWN = {"patients_like_me", "references", "frequency", "repeat", "neighbors", "logistic", "boosting", "linear"}


@pytest.mark.parametrize("heading", ["the paper says", "needs"])
def test_every_compared_system_has_a_row(heading: str) -> None:
    found = [part for part in PAGE.read_text().split("\n\n") if part.startswith(f"| system | {heading} |")]
    assert len(found) == 1
    rows = re.findall(r"^\| (\w[\w-]*)(?: \(\d{4}\))? \|", found[0], flags=re.MULTILINE)
    published = [system for name, system in all_systems().items() if name not in OWN]
    titles = [system.title_of(system.settings_of(None)).partition("[")[0] for system in published]
    assert sorted(row for row in rows if row != "system") == sorted(titles)
    assert len(titles) == 18
