"""The frozen-layer cache: what the layers below the trained ones say about a prompt, computed once and kept on disk.

One folder per backbone, cut and number format; in it segments, each a safetensors file with the states of some prompts
(real tokens only, one after another), their lengths and their keys. A key is the SHA-256 of the prompt's token ids, so
any run, strategy or seed finds what an earlier one computed. A segment appears whole or not at all: a killed run loses
at most the segment it was writing, and two runs that write at once do no harm. The name of a segment ends in a digest
of its content; a segment that was damaged is removed and computed again.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, digest_of_file, write_json
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.batching import Integers, TokenizedPrompts, mask_of, reading_batches
from patients_like_me.model.layer_stack import mean_over_real_tokens

logger = logging.getLogger("patients_like_me")
_FORMAT = 2
#: The states that are written as one file; while they are, memory holds them twice.
SEGMENT_BYTES = 64 << 20
StoredNumber = Literal["float32", "float16"]
#: Hidden states of some tokens, [tokens, width].
States = npt.NDArray[np.floating]


@dataclass(frozen=True)
class CachedStates:
    """The kept states of a list of prompts, memory-mapped: rows are read when they are needed.

    ``segments`` are slices of safetensors files: ``segment[first:last]`` is an array [tokens, width].
    """

    segments: list[Any]
    segment_of: Integers
    start_of: Integers
    length_of: Integers

    def gather(self, rows: Integers) -> tuple[Tensor, Tensor]:
        """Return the states [B, L, W] of some prompts as float32, zero after their end, and the mask [B, L]."""
        lengths = self.length_of[rows]
        width = self.segments[0].get_shape()[1]
        # Half-precision numbers become float32 on the way in.
        states = np.zeros((len(rows), int(lengths.max()), width), dtype=np.float32)
        for place, row in enumerate(rows):
            start, length = int(self.start_of[row]), int(self.length_of[row])
            states[place, :length] = self.segments[self.segment_of[row]][start : start + length]
        return torch.from_numpy(states), mask_of(lengths)


class HiddenStateCache:
    """A folder of kept hidden states.

    ``float16`` halves the disk space and rounds each value to about three digits; ``float32`` keeps results equal.
    """

    def __init__(self, folder: Path, *, dtype: StoredNumber = "float32", segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self.dtype = np.dtype(dtype)
        self.segment_bytes = segment_bytes
        self._verified: set[Path] = set()

    def folder_of(self, backbone: Backbone) -> Path:
        """Return the folder for one backbone, its cut and the number format."""
        identity = f"{_FORMAT} {backbone.weights_sha256} {backbone.frozen_layers} {backbone.level} {self.dtype.name}"
        return self.folder / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def missing(self, backbone: Backbone, prompts: TokenizedPrompts) -> Integers:
        """Return the rows of the prompts that are not kept yet, equal prompts once."""
        seen = set(self._index(backbone)[1])
        rows: list[int] = []
        for row, key in enumerate(prompts.keys()):
            if key not in seen:
                seen.add(key)
                rows.append(row)
        return np.array(rows, dtype=np.int64)

    def bytes_for(self, backbone: Backbone, prompts: TokenizedPrompts) -> int:
        """Return how many bytes of disk ``fill`` will add."""
        rows = self.missing(backbone, prompts)
        tokens = len(rows) if backbone.level == "pooled" else int(prompts.lengths[rows].sum())
        return tokens * backbone.width * self.dtype.itemsize

    def fill(
        self,
        backbone: Backbone,
        prompts: TokenizedPrompts,
        *,
        tokens_per_batch: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> CachedStates:
        """Compute what is missing, keep it, and return the states of all prompts.

        ``progress`` is called with the number of prompts done since its last call.
        """
        if backbone.level == "tokens":
            raise ValueError("a backbone that is trained from its first layer on has nothing to keep")
        rows = self.missing(backbone, prompts)
        needed = self.bytes_for(backbone, prompts)
        folder = self.folder_of(backbone)
        self._prepare(folder, backbone, needed)
        keys = prompts.keys()
        finished: list[tuple[bytes, States]] = []
        size = 0
        for batch in reading_batches(prompts.lengths[rows], tokens_per_batch=tokens_per_batch, device=backbone.device):
            for row, states in zip(rows[batch], self._compute(backbone, prompts, rows[batch]), strict=True):
                finished.append((keys[row], states))
                size += states.nbytes
            if progress is not None:
                progress(len(batch))
            if size >= self.segment_bytes:
                self._write_segment(folder, finished, needed)
                size = 0
        if finished:
            self._write_segment(folder, finished, needed)
        return self._states_of(backbone, keys)

    def _compute(self, backbone: Backbone, prompts: TokenizedPrompts, rows: Integers) -> list[States]:
        ids, mask = (tensor.to(backbone.device) for tensor in prompts.padded(rows))
        with torch.inference_mode():
            hidden = backbone.lower(ids, mask)
            if backbone.level == "pooled":
                hidden = mean_over_real_tokens(backbone.upper(hidden, mask), mask).unsqueeze(1)
        plain = hidden.float().cpu().numpy().astype(self.dtype, copy=False)
        if not np.isfinite(plain).all():
            raise PlmError(
                f"hidden states of '{backbone.name}' are too large for {self.dtype.name}", remedy="keep them as float32"
            )
        lengths = [1] * len(rows) if backbone.level == "pooled" else prompts.lengths[rows].tolist()
        return [plain[place, :length].copy() for place, length in enumerate(lengths)]

    def _prepare(self, folder: Path, backbone: Backbone, needed: int) -> None:
        if not needed:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PlmError(
                f"the cache folder '{folder}' cannot be made ({error.strerror})", remedy="choose another cache folder"
            ) from None
        free = shutil.disk_usage(folder).free
        if needed > free:
            raise self._no_space(needed, free)
        write_json(
            folder / "about.json",
            {
                "backbone": backbone.name,
                "weights_sha256": backbone.weights_sha256,
                "frozen_layers": backbone.frozen_layers,
                "level": backbone.level,
                "width": backbone.width,
                "dtype": self.dtype.name,
            },
        )

    def _write_segment(self, folder: Path, finished: list[tuple[bytes, States]], needed: int) -> None:
        """Write a segment and empty the list: its states are held at most twice."""
        from safetensors.numpy import save
        from xxhash import xxh3_128_hexdigest

        keys = np.frombuffer(b"".join(key for key, _ in finished), dtype=np.uint8).reshape(-1, 32)
        tensors: dict[str, npt.NDArray[Any]] = {
            "keys": keys,
            "lengths": np.array([len(states) for _, states in finished], dtype=np.int64),
            "states": np.concatenate([states for _, states in finished]),
        }
        finished.clear()
        name = hashlib.sha256(keys.tobytes()).hexdigest()[:32]
        try:
            content = save(tensors)
            del tensors
            with atomic_file(folder / f"{name}-{xxh3_128_hexdigest(content)}.safetensors") as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise self._no_space(needed, shutil.disk_usage(folder).free) from None
            raise

    def _no_space(self, needed: int, free: int) -> PlmError:
        return PlmError(
            f"the cache folder '{self.folder}' needs {needed / 1e9:.1f} GB more and has {free / 1e9:.1f} GB free",
            remedy="free some space, choose another cache folder, keep float16 numbers, or run without the cache",
        )

    def _index(self, backbone: Backbone) -> tuple[list[Any], dict[bytes, tuple[int, int, int]]]:
        """Return the mapped segments, and segment, start and length of every key."""
        segments: list[Any] = []
        places: dict[bytes, tuple[int, int, int]] = {}
        for path in sorted(self.folder_of(backbone).glob("*.safetensors")):
            if path not in self._verified and digest_of_file(path) != path.stem.rpartition("-")[2]:
                logger.warning("a damaged file of the cache of hidden states is removed and computed again")
                path.unlink(missing_ok=True)
                continue
            self._verified.add(path)
            file = _opened(path)
            if file is None:
                continue
            lengths = file.get_tensor("lengths")
            starts = np.cumsum(lengths) - lengths
            for key, start, length in zip(file.get_tensor("keys"), starts.tolist(), lengths.tolist(), strict=True):
                places[key.tobytes()] = (len(segments), start, length)
            segments.append(file.get_slice("states"))
        return segments, places

    def _states_of(self, backbone: Backbone, keys: list[bytes]) -> CachedStates:
        segments, places = self._index(backbone)
        table = np.array([places[key] for key in keys], dtype=np.int64).reshape(-1, 3)
        return CachedStates(segments, table[:, 0], table[:, 1], table[:, 2])


def _opened(path: Path) -> Any:
    """Map a safetensors file into memory; None for one that is damaged or cut short."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="numpy").__enter__()  # type: ignore[no-untyped-call]
    except (OSError, SafetensorError):
        return None
