"""Patients-like-me: clinical prediction that shows which earlier patients it leans on.

    import patients_like_me as plm

    cohort = plm.prepare("mimic4", "mimic-iv-3.1", out="cohort")
    run = plm.train(cohort, task="readmission", preset="quick", out="runs/vem")
    run.evaluate().table
    run.explain(example=3).html()

These names are those of :mod:`patients_like_me.face`; each loads what it needs when it is first used. The rooms behind
them follow the way of the data; docs/architecture.md draws them, and each reads only from the rooms before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from patients_like_me.face import Cohort, compare, evaluate, explain, load_run, prepare, train

__version__ = "0.1.0"
__all__ = ["Cohort", "compare", "evaluate", "explain", "load_run", "prepare", "train"]


def __getattr__(name: str) -> Any:
    """Load the public names when they are first asked for, so that the import costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'patients_like_me' has no attribute '{name}'")
    from patients_like_me import face

    return getattr(face, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
