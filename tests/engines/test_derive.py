import contextlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftgate.engines.llamacpp.derive import check_gguf, drop_layers, requantise
from draftgate.errors import ModelError

LAYERS, WIDTH = 4, 64
TOKENS = ["<s>", "def", "é", "Ġreturn"]
shared_folder = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Four layers of one tensor per storage kind, lists with one entry per layer, and an alignment of 64 (default 32).

    The last tensor ends on the alignment, so that the file has no padding at its end.
    """
    path, random = tmp_path / "model.gguf", np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_block_count(LAYERS)
    writer.add_head_count_kv([1, 2, 3, 4])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_rope_freq_base(1e5)
    writer.add_add_bos_token(False)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 1, 1, 1])  # as many as layers, and not one per layer

    def add(name: str, rows: int, kind: Kind) -> None:
        weights = random.normal(size=(rows, WIDTH)).astype(np.float32)
        data = gguf.quants.quantize(weights, kind)
        if kind == Kind.Q8_0:
            data[0, 2:34] = (
                1  # a block that Q8_0 would write otherwise, so that copying it can be told from rounding again
            )
        writer.add_tensor(name, data, raw_dtype=kind)

    add("token_embd.weight", len(TOKENS), Kind.Q8_0)
    for layer in range(LAYERS):
        add(f"blk.{layer}.ffn_up.weight", 96, Kind.Q4_1)
        add(f"blk.{layer}.attn_q.weight", 32, Kind.F16)
        add(f"blk.{layer}.attn_norm.weight", 1, Kind.F32)
    add("output_norm.weight", 1, Kind.F32)
    return written(writer, path)


def written(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def metadata(path: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(path).fields.values()
    return {field.name: field.contents() for field in fields if not field.name.startswith("GGUF.")}


def test_requantised_tensors_keep_shape_and_value(model: Path, tmp_path: Path) -> None:
    old, new = tensors(model), tensors(requantise(model, tmp_path / "q8.gguf"))
    assert list(new) == list(old)
    for name, tensor in new.items():
        kept = old[name].tensor_type == Kind.F32
        assert tensor.tensor_type == (Kind.F32 if kept else Kind.Q8_0), name
        assert tensor.shape.tolist() == old[name].shape.tolist(), name
        before = gguf.quants.dequantize(old[name].data, old[name].tensor_type).reshape(-1, 32)
        after = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(-1, 32)
        step = np.abs(before).max(axis=1, keepdims=True) / 127
        # Half a step of rounding, and up to 127 steps of a scale stored in half precision (relative error 2^-11).
        assert (np.abs(after - before) <= step * (0.5 + 127 * 2.0**-11) + 1e-7).all(), name


def test_requantise_copies_f32_and_q8_0_bit_for_bit(model: Path, tmp_path: Path) -> None:
    old, new = tensors(model), tensors(requantise(model, tmp_path / "q8.gguf"))
    for name in ("token_embd.weight", "blk.2.attn_norm.weight", "output_norm.weight"):
        assert new[name].data.tobytes() == old[name].data.tobytes()


def test_requantise_changes_only_the_file_type(model: Path, tmp_path: Path) -> None:
    expected = metadata(model) | {"general.file_type": int(gguf.LlamaFileType.MOSTLY_Q8_0)}
    assert metadata(requantise(model, tmp_path / "q8.gguf")) == expected


def test_same_bytes_each_time_and_no_part_left(model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        requantise(model, tmp_path / f"{name}.q8")
        drop_layers(model, tmp_path / f"{name}.short", [0, 3])
    assert (tmp_path / "a.q8").read_bytes() == (tmp_path / "b.q8").read_bytes()
    assert (tmp_path / "a.short").read_bytes() == (tmp_path / "b.short").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.q8", "a.short", "b.q8", "b.short", "model.gguf"]


def test_progress_counts_the_new_bytes(model: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    new = tensors(requantise(model, tmp_path / "q8.gguf", lambda *now: seen.append(now)))
    total = sum(int(tensor.n_bytes) for tensor in new.values())
    assert len(seen) == len(new)
    assert seen[-1] == (total, total)


@given(st.sets(st.integers(0, LAYERS - 1), min_size=1).map(sorted))
@shared_folder
def test_kept_layers_are_renumbered_with_the_same_bytes(model: Path, tmp_path: Path, keep: list[int]) -> None:
    short = drop_layers(model, tmp_path / "short.gguf", keep)
    check_gguf(short)
    old, new = tensors(model), tensors(short)
    expected = {
        "token_embd.weight": "token_embd.weight",
        **{
            f"blk.{at}.{part}.weight": f"blk.{layer}.{part}.weight"
            for at, layer in enumerate(keep)
            for part in ("ffn_up", "attn_q", "attn_norm")
        },
        "output_norm.weight": "output_norm.weight",
    }
    assert list(new) == list(expected)
    for name, origin in expected.items():
        assert new[name].tensor_type == old[origin].tensor_type
        assert new[name].shape.tolist() == old[origin].shape.tolist()
        assert new[name].data.tobytes() == old[origin].data.tobytes()
    heads = {"llama.block_count": len(keep), "llama.attention.head_count_kv": [layer + 1 for layer in keep]}
    assert metadata(short) == metadata(model) | heads


@pytest.mark.parametrize("keep", [[], [0, 0], [2, 1], [-1, 0], [0, LAYERS]])
def test_layers_that_do_not_fit_are_refused(model: Path, tmp_path: Path, keep: Sequence[int]) -> None:
    with pytest.raises(ModelError, match=r"must rise and lie in 0\.\.3, but got"):
        drop_layers(model, tmp_path / "short.gguf", keep)
    assert not (tmp_path / "short.gguf").exists()


def odd_model(path: Path, data: np.ndarray[Any, Any]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("odd", data)
    return written(writer, path)


@pytest.mark.parametrize("data", [np.zeros((2, 48), np.float16), np.zeros((2, 64), np.int32)], ids=["width", "kind"])
def test_tensor_that_cannot_become_q8_0_is_named(tmp_path: Path, data: np.ndarray[Any, Any]) -> None:
    source = odd_model(tmp_path / "odd.gguf", data)
    with pytest.raises(ModelError, match=r"odd \((F16|I32)\) cannot become Q8_0"):
        requantise(source, tmp_path / "q8.gguf")
    assert os.listdir(tmp_path) == ["odd.gguf"]


def test_model_without_layers_is_refused(tmp_path: Path) -> None:
    source = odd_model(tmp_path / "odd.gguf", np.zeros((2, 64), np.float32))
    with pytest.raises(ModelError, match=r"no llama\.block_count in its metadata"):
        drop_layers(source, tmp_path / "short.gguf", [0])


def test_unwritable_destination_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.gguf/q8: cannot be written"):
        requantise(model, model / "q8")


def test_whole_file_passes_with_or_without_more_behind_it(model: Path) -> None:
    check_gguf(model)
    with model.open("ab") as file:
        file.write(b"more")
    check_gguf(model)


@given(st.data())
@shared_folder
def test_every_shorter_file_is_refused(model: Path, tmp_path: Path, data: st.DataObject) -> None:
    whole = model.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ModelError, match=r"truncated|not a GGUF file"):
        check_gguf(cut)


def test_truncation_says_how_much_is_missing(model: Path, tmp_path: Path) -> None:
    whole = model.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    message = f"truncated: expected >= {len(whole)} bytes, found {len(whole) - 100}; fetch it again"
    with pytest.raises(ModelError, match=message):
        requantise(tmp_path / "cut.gguf", tmp_path / "q8.gguf")


@given(st.data())
@settings(shared_folder, max_examples=200)
def test_no_damage_to_the_header_gives_another_error(model: Path, tmp_path: Path, data: st.DataObject) -> None:
    spoilt = bytearray(model.read_bytes())
    header = int(gguf.GGUFReader(model).data_offset)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "spoilt.gguf").write_bytes(spoilt)
    with contextlib.suppress(ModelError):
        check_gguf(tmp_path / "spoilt.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"<html>not found</html>", "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version must be 2 or 3, little-endian, but got 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "little-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 2**63), "inside its header"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 32, 999, 0), "not known here"),
    ],
)
def test_what_is_not_a_usable_header(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        check_gguf(tmp_path / "f")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ModelError, match="cannot be read"):
            check_gguf(path)
