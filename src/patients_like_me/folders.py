"""The user's folders that outlive a run: code tables, backbones, hidden states."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

Purpose = Literal["data", "cache"]


def user_folder(name: str, variable: str, purpose: Purpose = "data") -> Path:
    """Return the folder ``name``: what the environment variable says, else the place that the platform provides.

    >>> os.environ["PLM_EXAMPLE"] = "/data"
    >>> user_folder("codes", "PLM_EXAMPLE").as_posix()
    '/data'
    >>> del os.environ["PLM_EXAMPLE"]
    >>> user_folder("codes", "PLM_EXAMPLE").parts[-2:]
    ('patients-like-me', 'codes')
    """
    if chosen := os.environ.get(variable):
        return Path(chosen)
    import platformdirs

    find = platformdirs.user_cache_path if purpose == "cache" else platformdirs.user_data_path
    return find("patients-like-me", appauthor=False) / name
