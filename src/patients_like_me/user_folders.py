"""Where things of the user lie that outlive a run: code tables, backbones, hidden states."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Purpose = Literal["data", "cache"]


def user_folder(
    name: str,
    variable: str,
    purpose: Purpose = "data",
    *,
    environment: Mapping[str, str] | None = None,
    platform: str = sys.platform,
    home: Path | None = None,
) -> Path:
    """Return the folder ``name``: what the environment variable says, else a place of the platform's own.

    >>> ada = Path("/home/ada")
    >>> user_folder("codes", "PLM_CODES", environment={"PLM_CODES": "/data"}, platform="linux", home=ada).as_posix()
    '/data'
    >>> user_folder("codes", "PLM_CODES", environment={}, platform="linux", home=ada).as_posix()
    '/home/ada/.local/share/patients-like-me/codes'
    """
    environment = os.environ if environment is None else environment
    if chosen := environment.get(variable):
        return Path(chosen)
    home = home or Path.home()
    if platform == "win32":
        base = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / ("Caches" if purpose == "cache" else "Application Support")
    elif purpose == "cache":
        base = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    else:
        base = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    return base / "patients-like-me" / name
