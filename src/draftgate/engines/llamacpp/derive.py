"""GGUF files: see that one is whole, and make new models out of it, requantised or with fewer layers.

A derivation writes one tensor at a time, so memory holds the largest tensor and not the model, and gives the same bytes
each time for the same input and `gguf` version. The new file appears whole under its name or not at all.
"""

import itertools
import math
import mmap
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftgate.engines.llamacpp.fetch import Progress, replacing, silent
from draftgate.errors import ModelError, require

__all__ = ["check_gguf", "drop_layers", "requantise"]

_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9  # arrays of arrays are allowed on paper; llama.cpp refuses them, and so does this
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to be written: `shape` in elements and row-major (the file stores it reversed), `data` made when due."""

    name: str
    shape: tuple[int, ...]
    kind: int
    size_bytes: int
    data: Callable[[], NDArray[Any]]


def requantise(src: Path, dst: Path, progress: Progress = silent) -> Path:
    """Write `src` to `dst` with each quantised or half-precision tensor as Q8_0; F32 and Q8_0 tensors stay as they are.

    Q8_0 has 32 weights and one half-precision scale in 34 bytes (`block_q8_0`, ggml-common.h). Going up from 4 bits
    adds bytes and no quality; it buys a cheaper decode of several tokens at once, which is what verification does.

    Raises:
        ModelError: `src` is not a whole GGUF file, has a tensor that cannot become Q8_0, or `dst` cannot be written.
    """
    gguf = require("gguf", "llamacpp")
    reader = _read(src)
    tensors = [_as_q8_0(gguf, tensor, src) for tensor in reader.tensors]
    return _write(dst, reader, {"general.file_type": int(gguf.LlamaFileType.MOSTLY_Q8_0)}, tensors, progress)


def drop_layers(src: Path, dst: Path, keep: Sequence[int], progress: Progress = silent) -> Path:
    """Write `src` to `dst` with only the layers `keep` (0-based, rising), renumbered from 0; their bytes do not change.

    Embeddings, output head and vocabulary stay, so that the result can draft for `src`. Metadata lists with one entry
    per layer are cut to the same layers.

    Raises:
        ModelError: `src` is not a whole GGUF file, `keep` does not fit its layers, or `dst` cannot be written.
    """
    reader = _read(src)
    arch = reader.fields["general.architecture"].contents()
    layers = int(_field(reader, f"{arch}.block_count", src))
    _check_keep(keep, layers)
    new_index = {old: new for new, old in enumerate(keep)}
    tensors = [_as_is(tensor, name) for tensor in reader.tensors if (name := _renumbered(tensor.name, new_index))]
    per_layer = {
        name: [values[layer] for layer in keep]
        for name, field in reader.fields.items()
        if name.startswith(f"{arch}.") and isinstance(values := field.contents(), list) and len(values) == layers
    }
    return _write(dst, reader, {**per_layer, f"{arch}.block_count": len(keep)}, tensors, progress)


def _read(src: Path) -> Any:
    check_gguf(src)
    reader = require("gguf", "llamacpp").GGUFReader(src)
    _field(reader, "general.architecture", src)
    return reader


def _field(reader: Any, name: str, src: Path) -> Any:
    if name not in reader.fields:
        raise ModelError(f"{src}: no {name} in its metadata; this needs a language model in GGUF form")
    return reader.fields[name].contents()


def _check_keep(keep: Sequence[int], layers: int) -> None:
    rising = all(a < b for a, b in itertools.pairwise(keep))
    if not keep or not rising or keep[0] < 0 or keep[-1] >= layers:
        raise ModelError(f"layers to keep must rise and lie in 0..{layers - 1}, but got {list(keep)}")


def _renumbered(name: str, new_index: Mapping[int, int]) -> str | None:
    """The tensor's new name, or None when its layer goes.

    >>> _renumbered("blk.5.attn_q.weight", {0: 0, 5: 1})
    'blk.1.attn_q.weight'
    >>> _renumbered("blk.4.attn_q.weight", {0: 0, 5: 1})
    >>> _renumbered("token_embd.weight", {0: 0, 5: 1})
    'token_embd.weight'
    """
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return name
    new = new_index.get(int(layer[1]))
    return None if new is None else f"blk.{new}.{layer[2]}"


def _as_is(tensor: Any, name: str) -> _Tensor:
    shape = tuple(int(size) for size in reversed(tensor.shape))
    return _Tensor(name, shape, int(tensor.tensor_type), int(tensor.n_bytes), lambda: tensor.data)


def _as_q8_0(gguf: Any, tensor: Any, src: Path) -> _Tensor:
    kinds = gguf.GGMLQuantizationType
    kept = _as_is(tensor, tensor.name)
    if tensor.tensor_type in (kinds.F32, kinds.Q8_0):
        return kept

    def quantised() -> NDArray[Any]:
        try:
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            return np.asarray(gguf.quants.quantize(weights, kinds.Q8_0))
        except (NotImplementedError, ValueError, gguf.quants.QuantError) as error:
            raise ModelError(f"{src}: {tensor.name} ({tensor.tensor_type.name}) cannot become Q8_0: {error}") from error

    block_weights, block_bytes = gguf.GGML_QUANT_SIZES[kinds.Q8_0]
    size_bytes = int(tensor.n_elements) // block_weights * block_bytes
    return _Tensor(kept.name, kept.shape, int(kinds.Q8_0), size_bytes, quantised)


def _write(dst: Path, reader: Any, changes: Mapping[str, Any], tensors: Sequence[_Tensor], progress: Progress) -> Path:
    """Copy the metadata with `changes`, then the tensors in their order, each padded to the file's alignment."""
    gguf = require("gguf", "llamacpp")
    total_bytes = sum(tensor.size_bytes for tensor in tensors)
    with replacing(dst) as part:
        writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
        writer.data_alignment = int(reader.alignment)
        _copy_metadata(gguf, reader, writer, changes)
        for tensor in tensors:
            # A float dtype tells the writer that `shape` counts elements; with uint8 it would take them for bytes.
            kind = gguf.GGMLQuantizationType(tensor.kind)
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.size_bytes, kind)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            done_bytes = 0
            for tensor in tensors:
                writer.write_tensor_data(tensor.data())
                done_bytes += tensor.size_bytes
                progress(done_bytes, total_bytes)
        finally:
            writer.close()
    return dst


def _copy_metadata(gguf: Any, reader: Any, writer: Any, changes: Mapping[str, Any]) -> None:
    array = gguf.GGUFValueType.ARRAY
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":  # the writer makes these
            continue
        kind = field.types[0]
        value = changes[name] if name in changes else field.contents()
        if kind == array and not value:  # the writer refuses an empty list; a reader takes an absent one as empty
            continue
        writer.add_key_value(name, value, kind, sub_type=field.types[-1] if kind == array else None)


def check_gguf(path: Path) -> None:
    """Refuse a file that is not GGUF or is shorter than its own tensor list says.

    Walks the header (ggml/docs/gguf.md) by itself: gguf.GGUFReader takes two seconds to make a numpy view of each
    vocabulary entry, and fails on a short file with an error about reshaping.

    Raises:
        ModelError: wrong magic or version, a damaged header, or a truncated file.
    """
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            magic = file.read(8)
            if len(magic) < 8 or magic[:4] != b"GGUF":
                raise ModelError(f"{path}: not a GGUF file (starts with {magic[:4]!r}, {size_bytes} bytes)")
            version = int.from_bytes(magic[4:], "little")
            if version not in _VERSIONS:
                raise ModelError(f"{path}: GGUF version must be 2 or 3, little-endian, but got {version}")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                expected_bytes = _expected_bytes(data)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (struct.error, ArithmeticError) as error:
        raise ModelError(
            f"{path}: truncated or damaged inside its header ({size_bytes} bytes); fetch it again"
        ) from error
    except KeyError as error:
        raise ModelError(f"{path}: its header is damaged, or has a type that is not known here ({error})") from error
    if size_bytes < expected_bytes:
        raise ModelError(f"{path}: truncated: expected >= {expected_bytes} bytes, found {size_bytes}; fetch it again")


def _expected_bytes(data: mmap.mmap) -> int:
    """Where the last tensor ends: the aligned end of the header plus the largest offset + size in the tensor list."""
    quant_sizes = require("gguf", "llamacpp").GGML_QUANT_SIZES
    tensors, pairs = struct.unpack_from("<QQ", data, 8)
    at, alignment, end = 24, 32, 0
    for _ in range(pairs):
        key, at = _string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        if key == b"general.alignment":
            (alignment,) = struct.unpack_from("<I", data, at + 4)
        at = _after_value(data, at + 4, kind)
    for _ in range(tensors):
        _, at = _string(data, at)
        (rank,) = struct.unpack_from("<I", data, at)
        *shape, kind, offset = struct.unpack_from(f"<{rank}QIQ", data, at + 4)
        block_weights, block_bytes = quant_sizes[kind]
        end = max(end, offset + math.prod(shape) // block_weights * block_bytes)
        at += 4 + 8 * rank + 12
    return int(at + -at % alignment + end)


def _string(data: mmap.mmap, at: int) -> tuple[bytes, int]:
    """The length-prefixed string at `at`, and where the next thing starts."""
    (length,) = struct.unpack_from("<Q", data, at)
    return data[at + 8 : at + 8 + length], at + 8 + length


def _after_value(data: mmap.mmap, at: int, kind: int) -> int:
    if kind == _STRING:
        return _string(data, at)[1]
    if kind != _ARRAY:
        return at + _SCALAR_BYTES[kind]
    inner, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if inner != _STRING:
        return at + int(count) * _SCALAR_BYTES[inner]
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, at)
        at += 8 + int(length)
    return at
