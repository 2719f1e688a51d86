import hashlib
import os
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from draftgate.engines.llamacpp import fetch, models
from draftgate.engines.llamacpp.models import LayersKept, Model, Requantised, WheelMember
from draftgate.errors import ModelError

LAYERS = 3


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "models"
    monkeypatch.setenv("DRAFTGATE_MODELS", str(path))
    return path


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A registry of a wheel served on this machine, its requantisation and a draft; yields the served wheel."""
    served = tmp_path / "served"
    served.mkdir()
    content = tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    wheel = served / "tiny.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/tiny.gguf", content)
    source = WheelMember("tiny==1", fetch.sha256_of(wheel), "tiny/tiny.gguf", hashlib.sha256(content).hexdigest())
    registry = [
        Model("tiny-q4", "", "Apache-2.0", "target", source, len(content), ""),
        Model("tiny", "", "Apache-2.0", "target", Requantised("tiny-q4"), 0, ""),
        Model("tiny-draft", "", "Apache-2.0", "draft", LayersKept("tiny", (0, 2)), 0, ""),
    ]
    monkeypatch.setattr(models, "MODELS", {model.name: model for model in registry})
    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=served)) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/tiny.whl"
        monkeypatch.setattr(fetch, "resolve_url", lambda requirement: url)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield wheel
        server.shutdown()
        thread.join()


def tiny_gguf(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    for layer in range(LAYERS):
        weights = np.full((32, 64), layer + 1, np.float32)
        writer.add_tensor(f"blk.{layer}.ffn_up.weight", gguf.quants.quantize(weights, Kind.Q4_1), raw_dtype=Kind.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "resolve_url", lambda requirement: pytest.fail("asked the index"))


def test_registry_is_consistent() -> None:
    for name, model in models.MODELS.items():
        assert name == model.name
        assert model.size_bytes > 0
        match model.source:
            case WheelMember(_, wheel_sha256, _, sha256):
                assert len(bytes.fromhex(wheel_sha256)) == len(bytes.fromhex(sha256)) == 32
            case Requantised(base) | LayersKept(base):
                assert base in models.MODELS
    assert {model.role for model in models.MODELS.values()} == {"target", "draft"}


@pytest.mark.parametrize(("name", "layers"), [("smollm2-135m-draft24", 24), ("smollm2-135m-draft8", 8)])
def test_draft_keeps_both_ends_of_the_target(name: str, layers: int) -> None:
    source = models.MODELS[name].source
    assert isinstance(source, LayersKept)
    assert source.keep == (*range(layers // 2), *range(30 - layers // 2, 30))


def test_model_dir_is_chosen_or_in_the_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.model_dir() == folder
    monkeypatch.delenv("DRAFTGATE_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert models.model_dir() == tmp_path / "cache" / "draftgate" / "models"


def test_pull_makes_what_the_draft_comes_from_first(tiny: Path, folder: Path) -> None:
    path = models.pull("tiny-draft")
    reader = gguf.GGUFReader(path)
    assert reader.fields["llama.block_count"].contents() == 2
    values = [gguf.quants.dequantize(tensor.data, tensor.tensor_type).mean() for tensor in reader.tensors]
    assert values == pytest.approx([1, 3], rel=1e-3)
    assert sorted(os.listdir(folder)) == [
        ".lock",
        "tiny-draft.gguf",
        "tiny-draft.gguf.sha256",
        "tiny-q4.gguf",
        "tiny.gguf",
        "tiny.gguf.sha256",
    ]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (folder / "tiny-draft.gguf.sha256").read_text() == f"{digest}  tiny-draft.gguf\n"


def test_pull_of_what_is_there_does_nothing(tiny: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models.pull("tiny-draft")
    (folder / "tiny-q4.gguf").unlink()  # not needed any more
    no_network(monkeypatch)
    seen: list[int] = []
    models.pull("tiny-draft", lambda done, total: seen.append(done))
    models.pull("tiny", lambda done, total: seen.append(done))
    assert seen == []


@pytest.mark.parametrize("name", ["tiny-q4", "tiny", "tiny-draft"])
def test_damaged_file_is_made_again(tiny: Path, name: str) -> None:
    path = models.pull(name)
    good = path.read_bytes()
    path.write_bytes(good[:-64] + bytes(64))
    assert models.pull(name).read_bytes() == good


def test_derived_file_without_its_note_is_made_again(tiny: Path, folder: Path) -> None:
    models.pull("tiny")
    note = folder / "tiny.gguf.sha256"
    note.unlink()
    models.pull("tiny")
    assert note.is_file()


def test_half_a_wheel_is_continued_or_replaced(tiny: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "tiny-q4.gguf.whl.part").write_bytes(tiny.read_bytes()[:500])
    models.check_gguf(models.pull("tiny-q4"))
    assert sorted(os.listdir(folder)) == [".lock", "tiny-q4.gguf"]


def test_other_wheel_than_registered_is_refused(tiny: Path, folder: Path) -> None:
    tiny.write_bytes(b"something else")
    with pytest.raises(ModelError, match=r"tiny\.whl: sha256 is .* these are other bytes and were not kept"):
        models.pull("tiny-q4")
    assert os.listdir(folder) == [".lock"]


def test_pull_of_unknown_name_suggests(folder: Path) -> None:
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m-draft8'"):
        models.pull("smollm2-135m-draft9")
    assert not folder.exists()


def test_pull_into_a_file_says_where(tiny: Path, folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(ModelError, match="models: cannot be written: File exists"):
        models.pull("tiny")


def test_listing_knows_what_is_there(tiny: Path, folder: Path) -> None:
    assert [(status.model.name, status.present, status.size_bytes) for status in models.listing()] == [
        ("tiny", False, None),
        ("tiny-draft", False, None),
        ("tiny-q4", False, None),
    ]
    models.pull("tiny-q4")
    status = models.listing()[2]
    assert status.present
    assert status.path == folder / "tiny-q4.gguf"
    assert status.size_bytes == status.model.size_bytes


def test_resolve_name_after_pull(tiny: Path) -> None:
    with pytest.raises(ModelError, match="tiny: not on this machine yet; run: draftgate models pull tiny"):
        models.resolve("tiny")
    assert models.pull("tiny") == models.resolve("tiny")


def test_existing_path_comes_before_a_name(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_gguf(tmp_path / "tiny")
    assert models.resolve("tiny") == Path("tiny")
    assert models.resolve(tmp_path / "tiny") == tmp_path / "tiny"


def test_resolve_refuses_truncated_and_unknown(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "cut.gguf")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(ModelError, match=r"cut\.gguf: truncated: expected >="):
        models.resolve(path)
    with pytest.raises(ModelError, match="no such file, and no model has that name; did you mean 'smollm2-135m'"):
        models.resolve("smollm-135m")


def test_hub_name_needs_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match="pip install huggingface_hub; the path of a local GGUF file works without it"):
        models.resolve("org/repo:sub/file.gguf")


def test_hub_name_downloads_with_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hf_hub_download(repo_id: str, filename: str) -> str:
        assert (repo_id, filename) == ("org/repo", "sub/file.gguf")
        return str(tiny_gguf(tmp_path / "file.gguf"))

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    assert models.resolve("org/repo:sub/file.gguf") == tmp_path / "file.gguf"


def test_unreachable_hub_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def hf_hub_download(repo_id: str, filename: str) -> str:
        raise RuntimeError("offline")

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(hf_hub_download=hf_hub_download))
    with pytest.raises(ModelError, match=r"org/repo:f\.gguf: hub not reached.*\(offline\); the path of a local"):
        models.resolve("org/repo:f.gguf")
