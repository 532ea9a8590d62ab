"""The display of a training: on a terminal a count replaces the one before, in a log it is written now and then."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from patients_like_me.cli import progress


@pytest.mark.parametrize("terminal", [True, False])
def test_running_counts_do_not_fill_the_screen(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=written, force_terminal=terminal))
    with progress.TrainingDisplay(1, "readmission") as display:
        display.report("loading the backbone")
        for done in range(100):
            display.report(f"frozen layers: {done} of 100 prompts")
        counting = [task.description for task in display.progress.tasks]
        display.report("fitting the first weights")
        assert display.progress.tasks == []
    assert counting == (["frozen layers: 99 of 100 prompts"] if terminal else [])
    assert "loading the backbone" in written.getvalue()
    assert "fitting the first weights" in written.getvalue()
    assert ("frozen layers" in written.getvalue()) is terminal
