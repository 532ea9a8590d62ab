"""Let ``python -m patients_like_me`` be the command ``plm``, and let Ctrl-C end it with a sentence from the start."""

from __future__ import annotations

import sys


def main() -> None:
    """Run ``plm``; loading it takes a moment in which it can be interrupted, too."""
    try:
        from patients_like_me.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("plm: stopped before anything was done\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
