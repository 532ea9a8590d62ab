"""Seeds that leave the world alone, and half precision only where it pays."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from patients_like_me.errors import PlmError
from patients_like_me.model import devices
from patients_like_me.model.randomness import mixed_seed, seeded


def test_importing_the_room_touches_no_random_state_and_sets_no_environment() -> None:
    code = """
import os, random, sys
import numpy, torch
before = torch.random.get_rng_state(), numpy.random.get_state()[1].tolist(), random.getstate(), dict(os.environ)
import patients_like_me.model.joint, patients_like_me.model.persistence, patients_like_me.model.backbone_list
import patients_like_me.model.devices, patients_like_me.model.embedding_store
after = torch.random.get_rng_state(), numpy.random.get_state()[1].tolist(), random.getstate(), dict(os.environ)
sys.exit(not (torch.equal(before[0], after[0]) and before[1:] == after[1:]))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_generator_is_given_back_even_after_an_error() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(RuntimeError, match="stop"), seeded(3):
        torch.rand(5)
        raise RuntimeError("stop")
    assert torch.equal(before, torch.random.get_rng_state())


def test_parts_of_a_seed_do_not_collide() -> None:
    seeds = {mixed_seed(seed, epoch, step) for seed in range(5) for epoch in range(5) for step in range(5)}
    assert len(seeds) == 125
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(("native", "expected"), [(False, None), (True, torch.bfloat16)])
def test_a_cpu_computes_in_bfloat16_only_with_instructions_for_it(
    native: bool, expected: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "cpu_has_bfloat16", lambda: native)
    cpu = torch.device("cpu")
    assert devices.autocast_format(cpu) is expected
    assert devices.autocast_format(cpu, "float32") is None
    assert devices.autocast_format(cpu, "bfloat16") is torch.bfloat16
    with devices.autocast(cpu):
        assert torch.is_autocast_enabled("cpu") is native
    assert not torch.is_autocast_enabled("cpu")


def test_a_device_is_found() -> None:
    assert devices.best_device().type in ("cpu", "cuda", "mps")


@pytest.mark.parametrize("name", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(PlmError, match=f"no device '{name}' that torch can use; use device auto or cpu"):
        devices.wanted_device(name)
    assert devices.wanted_device("auto") == devices.wanted_device("cpu") == torch.device("cpu")
