"""Save and load a joint model: settings as JSON, what was trained as safetensors, the backbone by its hash.

Three files: ``theta.safetensors`` (only what differs from the backbone: trained layers or adapters, projection, head),
``phi.safetensors`` and ``model.json``. The JSON is written last and names the hash of the other two, so a folder that
was left half-written does not load.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from patients_like_me.errors import PlmError
from patients_like_me.files import atomic_file, read_json, sha256_of_file, write_json
from patients_like_me.model.backbone import Backbone
from patients_like_me.model.gcn import GraphNetwork
from patients_like_me.model.joint import PatientsLikeMeModel
from patients_like_me.model.loading import load_backbone
from patients_like_me.model.randomness import seeded
from patients_like_me.model.settings import ModelSettings

_FORMAT = 1
_SETTINGS_FILE = "model.json"
_PARTS = ("theta", "phi")


def save_model(model: PatientsLikeMeModel, folder: Path) -> None:
    """Write a model into a folder, file by file, each whole or not at all."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for part in _PARTS:
        tensors = {name: value.detach().cpu().contiguous() for name, value in _parameters(model, part).items()}
        path = folder / f"{part}.safetensors"
        with atomic_file(path) as temporary:
            save_file(tensors, temporary)
        hashes[part] = sha256_of_file(path)
    backbone = model.backbone
    write_json(
        folder / _SETTINGS_FILE,
        {
            "format": _FORMAT,
            "settings": model.settings.model_dump(mode="json"),
            "backbone": {"weights_sha256": backbone.weights_sha256, "tokenizer_sha256": backbone.tokenizer_sha256},
            "sha256": hashes,
            "versions": {package: version(package) for package in ("torch", "transformers", "peft")},
        },
    )


def load_model(
    folder: Path, *, backbone: Backbone | None = None, backbone_name: str | None = None
) -> PatientsLikeMeModel:
    """Load a model; ``backbone`` saves loading it again, ``backbone_name`` says where it is now."""
    settings, expected, hashes = _read_settings(folder)
    if backbone_name is not None:
        moved = settings.backbone.model_copy(update={"name": backbone_name})
        settings = settings.model_copy(update={"backbone": moved})
    if backbone is None:
        backbone = load_backbone(settings.backbone)
    elif backbone.settings != settings.backbone:
        raise PlmError(
            f"the given backbone was loaded with other settings than the saved model in '{folder}'",
            remedy="leave the backbone out: it is then loaded as the model needs it",
        )
    _check_backbone(backbone, expected, folder)
    model = PatientsLikeMeModel(backbone, settings)
    for part in _PARTS:
        _fill(_parameters(model, part), folder / f"{part}.safetensors", hashes[part])
    return model


def load_graph_network(folder: Path) -> GraphNetwork:
    """Load phi alone, in evaluation mode: enough to predict from embeddings, without any backbone."""
    settings, _, hashes = _read_settings(folder)
    with seeded(0, 1):
        network = GraphNetwork(settings.embedding_width, settings.outputs, settings.graph_network).eval()
    parameters = {f"graph_network.{name}": value for name, value in network.named_parameters()}
    _fill(parameters, folder / "phi.safetensors", hashes["phi"])
    return network


def _read_settings(folder: Path) -> tuple[ModelSettings, dict[str, str], dict[str, str]]:
    """Return the model's settings and the hashes of its backbone and of its parts."""
    content = read_json(folder / _SETTINGS_FILE, what="saved model")
    try:
        if content["format"] != _FORMAT:
            raise PlmError(
                f"the saved model in '{folder}' has format {content['format']}, this version reads {_FORMAT}",
                remedy="load it with the version of plm that wrote it",
            )
        hashes = {part: str(content["sha256"][part]) for part in _PARTS}
        return ModelSettings.model_validate(content["settings"]), dict(content["backbone"]), hashes
    except (KeyError, TypeError, ValueError) as error:
        raise PlmError(
            f"the saved model's '{folder / _SETTINGS_FILE}' is not complete ({type(error).__name__})",
            remedy="the file is damaged: save the model again",
        ) from None


def _parameters(model: PatientsLikeMeModel, part: str) -> dict[str, nn.Parameter]:
    return model.theta_parameters() if part == "theta" else model.phi_parameters()


def _check_backbone(backbone: Backbone, expected: dict[str, str], folder: Path) -> None:
    for what, found in (("weights", backbone.weights_sha256), ("tokenizer", backbone.tokenizer_sha256)):
        if found != expected.get(f"{what}_sha256"):
            raise PlmError(
                f"the {what} of the backbone '{backbone.name}' on this machine are not those that the saved model in "
                f"'{folder}' was trained from (SHA-256 {found[:12]}... instead of "
                f"{str(expected.get(f'{what}_sha256'))[:12]}...)",
                remedy="provide the backbone that was used for training",
            )


def _fill(parameters: dict[str, nn.Parameter], path: Path, sha256: str) -> None:
    from safetensors.torch import load_file

    if not path.is_file() or sha256_of_file(path) != sha256:
        raise PlmError(
            f"the weights '{path}' are missing or damaged (their SHA-256 differs)", remedy="save the model again"
        )
    tensors: dict[str, Tensor] = load_file(path)
    if set(tensors) != set(parameters):
        first = sorted(set(tensors) ^ set(parameters))[0]
        raise PlmError(
            f"the weights '{path}' do not fit the model, first at '{first}'",
            remedy="load them with the version of plm that wrote them",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
