"""The command ``plm`` in the process of the test: a process of its own would spend seconds on its imports."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def run_plm(*words: str | Path, **environment: str) -> Finished:
    """Run ``plm`` with these words as its process would, down to the exit code; errors no user should see are raised."""
    from patients_like_me.__main__ import main

    out, error, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr(sys, "argv", ["plm", *map(str, words)])
        for name, value in {"COLUMNS": "160", "NO_COLOR": "1", **environment}.items():
            patch.setenv(name, value)
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Finished(code, out.getvalue(), error.getvalue())
