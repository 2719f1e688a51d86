"""Starting a vLLM server of one's own, and waiting until it answers."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftgate.engines.vllm.client import Client
from draftgate.errors import EngineError

__all__ = ["command", "serve"]

_POLL_S = 0.5
_TAIL_LINES = 12


def command(target: str, speculative: Mapping[str, Any] | None, options: Sequence[str] = ()) -> list[str]:
    """Words that start a server whose responses hold what draftgate reads.

    The module is started and not the script `vllm`, which looks for a distribution of that name: the CPU build has
    another.

    >>> command("model", {"method": "ngram"})[1:4]
    ['-m', 'vllm.entrypoints.openai.api_server', '--model']
    """
    words = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", target]
    if speculative is not None:
        words += ["--speculative-config", json.dumps(speculative), "--per-request-spec-decode-metrics", "detailed"]
    return [*words, "--enable-per-request-metrics", *options]


@contextmanager
def serve(
    target: str,
    speculative: Mapping[str, Any] | None,
    log: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> Iterator[str]:
    """Run a server on this machine while the context is open.

    Args:
        target: folder of a model, or its name.
        speculative: as `config.checked` gives it; None starts without speculation.
        log: file that gets the server's output.
        options: more words for the command line.
        environment: more variables.
        timeout_s: how long it may take to start.

    Yields:
        Its URL.

    Raises:
        EngineError: it ended or did not answer in time; the message has the end of its log.
    """
    port = _free_port()
    words = [*command(target, speculative, options), "--host", "127.0.0.1", "--port", str(port)]
    variables = os.environ | {"VLLM_PLUGINS": "draftgate"} | dict(environment or {})
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env=variables, start_new_session=True)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(process, url, log, timeout_s)
            yield url
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path, timeout_s: float) -> None:
    client = Client(url, timeout_s=5.0)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise EngineError(f"the server ended with code {process.returncode} while starting; {_tail(log)}")
        if client.answers("/health"):
            return
        time.sleep(_POLL_S)
    raise EngineError(f"the server did not answer within {timeout_s:g} s; {_tail(log)}")


def _tail(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]
    return f"the end of {log}:\n" + "\n".join(lines)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask it to end, and its whole session to end when it does not."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
