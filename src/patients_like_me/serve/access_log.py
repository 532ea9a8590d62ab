"""The access log: who looked at which pseudonym when; a file of its own, apart from ordinary logs.

One JSON object per line: ``time`` (UTC), ``who`` (the name of the token), ``what`` (page, predict, explain, ...),
``pseudonym``, ``run`` (folder name), ``cohort`` (the first digits of its hash) and ``status``. P3 is the third patient
of that cohort, so whoever has it knows who was looked at; N3 is the third newcomer since the last line ``start``. The
file is readable by its owner only and is added to, never rewritten.
"""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from patients_like_me.errors import PlmError


class AccessLog:
    """A file to which one line per look at a patient is added; without a path nothing is written."""

    def __init__(self, path: Path | None, run: str = "", cohort: str | None = None) -> None:
        self.path = path
        self.run = run
        self.cohort = cohort
        self._lock = threading.Lock()
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(self._opened(path))
            except OSError as error:
                raise PlmError(
                    f"the access log '{path}' cannot be written ({error.strerror})",
                    remedy="choose another place with --access-log",
                ) from None

    def add(self, who: str, what: str, pseudonym: str | None, status: int = 200) -> None:
        """Add a line; it is on its way to the disk before the answer leaves."""
        if self.path is None:
            return
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "who": who,
            "what": what,
            "pseudonym": pseudonym,
            "run": self.run,
            "cohort": self.cohort,
            "status": status,
        }
        text = json.dumps(line, ensure_ascii=False) + "\n"
        with self._lock:
            number = self._opened(self.path)
            try:
                os.write(number, text.encode())
            finally:
                os.close(number)

    @staticmethod
    def _opened(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
