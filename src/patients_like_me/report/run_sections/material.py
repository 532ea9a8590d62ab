"""What the sections of a report are made of: the run and everything computed about it, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from patients_like_me.errors import TooLargeError
from patients_like_me.evaluation.evaluate import Evaluation, evaluate
from patients_like_me.evaluation.intervals import REPLICATES
from patients_like_me.explanation.decision import Decision, decision_of_run
from patients_like_me.explanation.faithfulness import Faithfulness, assess_faithfulness
from patients_like_me.explanation.masking_experiment import Masking
from patients_like_me.explanation.methods.registry import quick_methods_of_others
from patients_like_me.explanation.reference_faithfulness import ReferenceFaithfulness, assess_references
from patients_like_me.explanation.reference_scene import set_reference_scene, shows_shares
from patients_like_me.explanation.scene import Scene, set_scene
from patients_like_me.graph.own_paths import audit_own_paths
from patients_like_me.report.run_sections.reference_use import ReferenceUse, reference_use
from patients_like_me.report.small_counts import Group
from patients_like_me.runs.run import Run, load_run
from patients_like_me.systems.reference_path.bank_audit import audit_references
from patients_like_me.tasks.audit import Audit, audit_instances

#: How many references that bring their outcomes are removed.
KS: Final = (1, 3, 10)
#: The methods of the masking experiment that a report compares: each takes seconds at most.
METHODS: Final = ("gradient", "leave_one_out", "edge_weight", "cosine", "random")


@dataclass(frozen=True, eq=False)
class Judged:
    """A run with its evaluation: enough for the sections about how good its predictions are."""

    run: Run
    evaluation: Evaluation

    def group(self, chosen: Any) -> Group:
        """Return some predicted instances, given as a mask over the evaluation's, with their patients."""
        places = np.flatnonzero(chosen)
        return Group(len(places), frozenset(self.evaluation.predictions.patients[places].tolist()))


@dataclass(frozen=True, eq=False)
class Material(Judged):
    """A run with its evaluation and audit; scene and use are None where its predictions use no reference.

    ``faithfulness`` is that of a patient graph, ``removed`` that of references that bring their outcomes. ``pages`` is
    a folder that may hold patient pages. ``too_large`` says why the effect of references could not be computed here.
    """

    audit: Audit
    scene: Scene | None
    use: ReferenceUse | None
    faithfulness: Faithfulness | None
    pages: Path | None = None
    removed: ReferenceFaithfulness | None = None
    too_large: str = ""

    @property
    def is_synthetic(self) -> bool:
        """Tell whether the hospital is made up."""
        return bool(self.run.cohort.about.get("synthetic"))

    @property
    def no_graph(self) -> str:
        """Say why the run has no references."""
        if shows_shares(self.run):
            return f"the references of the run ({self.run.name}) are left out: no prediction uses one"
        if self.run.capabilities.references and not self.run.has_patient_graph:
            return f"the references of the run ({self.run.name}) are not neighbours in a graph; plm explain shows them"
        return f"the run ({self.run.name}) predicts from each record alone, so no prediction uses a reference"

    @cached_property
    def decision(self) -> Decision:
        """How the probabilities of the task are read."""
        run = self.run
        return decision_of_run(
            run,
            names=run.cohort.names(run.task.label_codes) if run.task.label_codes else {},
        )


def gather_material(
    run: Path,
    *,
    cohort: Path | None = None,
    pages: Path | None = None,
    replicates: int = REPLICATES,
    seed: int = 0,
    report: Callable[[str], None] = lambda _: None,
) -> Material:
    """Open a run and compute everything in its report; ``pages`` is a folder that may hold patient pages."""
    report("opening the run and its cohort")
    opened = load_run(run, cohort)
    evaluation = evaluate(opened, cohort=cohort, replicates=replicates, seed=seed, report=report)
    report("auditing the instances")
    audit = audit_instances(opened.instances)
    scene: Scene | None = None
    use = faithfulness = removed = None
    too_large = ""
    if shows_shares(opened):
        report("counting references")
        set_up = set_reference_scene(opened)
        audit = replace(audit, findings=[*audit.findings, *audit_references(set_up.fitted, opened.instances)])
        if set_up.uses_graph:
            scene, use = set_up, reference_use(set_up)
            removed = assess_references(opened, Masking(KS, replicates=replicates, seed=seed), report=report)
    elif opened.uses_graph:
        report("counting references")
        check, notes = audit_own_paths(opened.graph)
        audit = replace(audit, findings=[*audit.findings, check], notes=[*notes, *audit.notes])
        scene = set_scene(opened, "test")
        use = reference_use(scene)
        if use.edges:
            try:
                faithfulness = assess_faithfulness(
                    [opened],
                    Masking(replicates=replicates, seed=seed),
                    methods=(*METHODS, *quick_methods_of_others()),
                    split="test",
                    report=report,
                )
            except TooLargeError as error:
                too_large = str(error)
                report(f"leaving out what the references do to predictions: {error}")
    return Material(opened, evaluation, audit, scene, use, faithfulness, pages, removed, too_large)
