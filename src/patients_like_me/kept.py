"""What is slow to make and always comes out the same: made once on a machine, and kept in the user's cache.

Kept are machine code and tables that are derived from the files of installed packages; never records of patients. A
kept file is named by what it was made from and begins with the digest of its content, so one that is out of date is
not found, and a damaged one is made again. The folder may be removed at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from patients_like_me.files import atomic_file
from patients_like_me.folders import user_folder

_BYTES_OF_DIGEST: Final = 32


def kept(name: str, made_from: Iterable[str | bytes], make: Callable[[], bytes]) -> bytes:
    """Return what ``make`` makes, or what it made before from the same; the content of ``made_from`` tells the same.

    A place that cannot be written to only means that the next process makes it again.

    >>> import os, tempfile
    >>> os.environ["PLM_KEPT"] = tempfile.mkdtemp()
    >>> kept("greeting.txt", ["version 1"], lambda: b"hello"), kept("greeting.txt", ["version 1"], lambda: b"other")
    (b'hello', b'hello')
    >>> kept("greeting.txt", ["version 2"], lambda: b"other")
    b'other'
    >>> del os.environ["PLM_KEPT"]
    """
    digest = hashlib.sha256()
    for part in made_from:
        content = part.encode() if isinstance(part, str) else part
        digest.update(f"{len(content)}:".encode() + content)
    stem, ending = Path(name).stem, Path(name).suffix
    path = user_folder("kept", "PLM_KEPT", "cache") / f"{stem}-{digest.hexdigest()[:24]}{ending}"
    with suppress(OSError):
        found = path.read_bytes()
        content = found[_BYTES_OF_DIGEST:]
        if hashlib.sha256(content).digest() == found[:_BYTES_OF_DIGEST]:
            return content
    content = make()
    with suppress(OSError), atomic_file(path) as temporary:
        temporary.write_bytes(hashlib.sha256(content).digest() + content)
    return content


def stamp_of(path: Path) -> str:
    """Return what tells that a file of an installed package is still the same: its place, size and time of change."""
    about = path.stat()
    return f"{path}:{about.st_size}:{about.st_mtime_ns}"
