"""Let ``python -m patients_like_me`` be the command ``plm``, and let Ctrl-C end it with a sentence from the start."""

from __future__ import annotations

import gc
import signal
import sys
from threading import Timer, main_thread
from typing import Any


def main() -> None:
    """Run ``plm``; loading it takes a moment in which it can be interrupted, too."""
    sys.unraisablehook = deliver_again
    try:
        from patients_like_me.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("plm: stopped before anything was done\n")
        sys.exit(130)
    try:
        run()
    finally:
        # The process ends: to look for garbage among all objects of all libraries would take longer than what is left.
        gc.freeze()


def deliver_again(lost: Any) -> None:
    """Let Ctrl-C interrupt that came while Python cleaned up (in a ``__del__``), where it would be printed and lost."""
    if isinstance(lost.exc_value, KeyboardInterrupt):
        # A moment later: here it would be lost again. To the main thread itself, so that a wait of its own ends too.
        Timer(0.05, signal.pthread_kill, (main_thread().ident, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


if __name__ == "__main__":
    main()
