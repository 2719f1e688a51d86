"""The llama.cpp C ABI: its structs and functions, declared for the shared object in the pinned xllamacpp wheel.

Struct layouts change between builds. Only stable prefixes are declared here; the rest is padding filled by
`*_default_params`. `library` checks that the defaults read as documented, and `capi.Context` asks the library for every
value it set, so a layout that moved is an error at load and not a wrong result later. Written against llama.h of build
b11549.
"""

import ctypes as c
import threading
from importlib import metadata
from types import SimpleNamespace

from draftgate.errors import EngineError, require

__all__ = ["Batch", "failure", "forget_failure", "library", "library_version"]

_ptr, _i32, _u32, _str = c.c_void_p, c.c_int32, c.c_uint32, c.c_char_p
_PADDING = 600  # larger than the rest of either struct in any build seen


class _ModelParams(c.Structure):
    _fields_ = (
        ("devices", _ptr),
        ("tensor_buft_overrides", _ptr),
        ("n_gpu_layers", _i32),
        ("rest", c.c_uint8 * _PADDING),
    )


class _ContextParams(c.Structure):
    _fields_ = (
        *(
            (name, _u32)
            for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq", "n_outputs_max", "n_outputs_per_seq")
        ),
        ("n_threads", _i32),
        ("n_threads_batch", _i32),
        ("rest", c.c_uint8 * _PADDING),
    )


class Batch(c.Structure):
    """`llama_batch`, whole: it is passed by value."""

    _fields_ = (
        ("n_tokens", _i32),
        ("token", c.POINTER(_i32)),
        ("embd", _ptr),
        ("pos", c.POINTER(_i32)),
        ("n_seq_id", c.POINTER(_i32)),
        ("seq_id", c.POINTER(c.POINTER(_i32))),
        ("logits", c.POINTER(c.c_int8)),
    )


_LOG = c.CFUNCTYPE(None, _i32, _str, _ptr)
_error = threading.local()


def _log(level: int, text: bytes | None, _data: object) -> None:
    """Keep the first error line of a call, its cause, for our own messages; print nothing."""
    if level == 4 and text and not getattr(_error, "text", None):  # GGML_LOG_LEVEL_ERROR
        _error.text = text.decode("utf-8", "replace").strip()


_log_callback = _LOG(_log)  # kept alive as long as the library may call it

_SIGNATURES = {
    "llama_backend_init": (None,),
    "llama_log_set": (None, _LOG, _ptr),
    "llama_model_default_params": (_ModelParams,),
    "llama_context_default_params": (_ContextParams,),
    "llama_model_load_from_file": (_ptr, _str, _ModelParams),
    "llama_model_free": (None, _ptr),
    "llama_model_get_vocab": (_ptr, _ptr),
    "llama_model_n_ctx_train": (_i32, _ptr),
    "llama_model_desc": (_i32, _ptr, _str, c.c_size_t),
    "llama_model_chat_template": (_str, _ptr, _str),
    "llama_vocab_n_tokens": (_i32, _ptr),
    "llama_vocab_is_eog": (c.c_bool, _ptr, _i32),
    "llama_vocab_get_text": (_str, _ptr, _i32),
    "llama_tokenize": (_i32, _ptr, _str, _i32, c.POINTER(_i32), _i32, c.c_bool, c.c_bool),
    "llama_token_to_piece": (_i32, _ptr, _i32, _str, _i32, _i32, c.c_bool),
    "llama_init_from_model": (_ptr, _ptr, _ContextParams),
    "llama_free": (None, _ptr),
    "llama_n_ctx_seq": (_u32, _ptr),
    "llama_n_batch": (_u32, _ptr),
    "llama_n_ubatch": (_u32, _ptr),
    "llama_n_seq_max": (_u32, _ptr),
    "llama_set_n_threads": (None, _ptr, _i32, _i32),
    "llama_n_threads": (_i32, _ptr),
    "llama_n_threads_batch": (_i32, _ptr),
    "llama_get_memory": (_ptr, _ptr),
    "llama_memory_seq_rm": (c.c_bool, _ptr, _i32, _i32, _i32),
    "llama_memory_seq_cp": (None, _ptr, _i32, _i32, _i32, _i32),
    "llama_decode": (_i32, _ptr, Batch),
    "llama_get_logits": (c.POINTER(c.c_float), _ptr),
    "llama_chat_apply_template": (_i32, _str, _ptr, c.c_size_t, c.c_bool, c.c_char_p, _i32),
}

_library: SimpleNamespace | None = None


def library_version() -> str:
    """Version of the wheel that carries the library."""
    return f"xllamacpp {metadata.version('xllamacpp')}"


def library() -> SimpleNamespace:
    """The C functions, declared once.

    Raises:
        MissingExtraError: xllamacpp is not installed.
        EngineError: this build lacks a function, or its parameter structs are not laid out as declared here.
    """
    global _library
    if _library is None:
        shared = c.CDLL(str(require("xllamacpp.xllamacpp", "llamacpp").__file__))
        functions = SimpleNamespace()
        for name, (result, *arguments) in _SIGNATURES.items():
            try:
                function = getattr(shared, name)
            except AttributeError as error:
                raise EngineError(
                    f"{library_version()} has no {name}; install the version that draftgate pins"
                ) from error
            function.restype, function.argtypes = result, arguments
            setattr(functions, name.removeprefix("llama_"), function)
        functions.log_set(_log_callback, None)
        functions.backend_init()
        _check_defaults(functions)
        _library = functions
    return _library


def _check_defaults(functions: SimpleNamespace) -> None:
    """Refuse a build whose default parameters do not read as llama.cpp documents them."""
    context = functions.context_default_params()
    seen = (context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max)
    threads = (context.n_threads, context.n_threads_batch)
    layers = functions.model_default_params().n_gpu_layers
    if seen != (512, 2048, 512, 1) or not all(0 < t <= 1024 for t in threads) or not -1 <= layers <= 999:
        raise EngineError(
            f"{library_version()}: parameter structs are not laid out as expected (context {seen}, threads {threads}, "
            f"layers {layers}); install the version that draftgate pins"
        )


def forget_failure() -> None:
    """Drop what earlier calls logged, so that `failure` tells of the next one."""
    _error.text = None


def failure() -> str:
    """The cause of the failure just seen, in llama.cpp's words."""
    text, _error.text = getattr(_error, "text", None), None
    return text or "it gives no reason"
