"""Answers of language models on disk: one SQLite file per model, one committed row per answer.

A row is there whole or not at all, whenever a process is killed, and several processes may write at once. A question is
kept as a hash alone. Answers may be about patients: the file is readable by its owner only.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.folders import user_folder

_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers "
    "(key TEXT PRIMARY KEY, value TEXT NOT NULL, read INTEGER NOT NULL, written INTEGER NOT NULL)"
)


def answers_folder() -> Path:
    """Return the folder of kept answers: ``PLM_LLM_CACHE``, else one in the user cache folder."""
    return user_folder("llm-answers", "PLM_LLM_CACHE", "cache")


@dataclass(frozen=True)
class KeptAnswer:
    """An answer with the tokens that were read and written for it."""

    value: Any
    read: int
    written: int


class KeptAnswers:
    """The answers of one model.

    >>> import tempfile
    >>> kept = KeptAnswers(Path(tempfile.mkdtemp()), "tiny")
    >>> kept.find("a")
    >>> kept.keep("a", KeptAnswer("yes", 3, 1))
    >>> kept.find("a"), len(kept)
    (KeptAnswer(value='yes', read=3, written=1), 1)
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.file = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', model)}.sqlite"

    def find(self, key: str) -> KeptAnswer | None:
        """Return a kept answer; None where the question is new."""
        if not self.file.is_file():
            return None
        with self._opened() as connection:
            row = connection.execute("SELECT value, read, written FROM answers WHERE key = ?", (key,)).fetchone()
            return None if row is None else KeptAnswer(json.loads(row[0]), int(row[1]), int(row[2]))

    def keep(self, key: str, answer: KeptAnswer) -> None:
        """Write an answer; it is on disk when this returns."""
        with self._opened() as connection, connection:
            row = (key, json.dumps(answer.value), answer.read, answer.written)
            connection.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", row)

    def __len__(self) -> int:
        if not self.file.is_file():
            return 0
        with self._opened() as connection:
            return int(connection.execute("SELECT count(*) FROM answers").fetchone()[0])

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self.file.exists():
                self.file.touch(mode=0o600)
            with closing(sqlite3.connect(self.file, timeout=60)) as connection:
                connection.execute(_TABLE)
                yield connection
        except (OSError, sqlite3.Error, json.JSONDecodeError) as error:
            raise PlmError(
                f"the kept answers '{self.file}' cannot be used ({type(error).__name__}: {error})",
                remedy="make room on the disk or remove that file; or set PLM_LLM_CACHE to another folder",
            ) from None
