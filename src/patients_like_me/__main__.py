"""Let ``python -m patients_like_me`` be the command ``plm``."""

from __future__ import annotations

from patients_like_me.cli import main

if __name__ == "__main__":
    main()
