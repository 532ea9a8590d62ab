"""A scene whose instances were changed after the training."""

from __future__ import annotations

from dataclasses import replace

from patients_like_me.explanation.scene import Scene
from patients_like_me.tasks.instances import Instances
from patients_like_me.training.opened_run import OpenedRun


def with_instances(scene: Scene, instances: Instances) -> Scene:
    """Return the scene as if its run had had these instances, and their cohort."""
    run = replace(scene.opened.run)
    # Both are computed once and kept in the object: what is kept first is what is used.
    run.__dict__.update(instances=instances, cohort=instances.cohort)
    return replace(scene, opened=OpenedRun(run))
