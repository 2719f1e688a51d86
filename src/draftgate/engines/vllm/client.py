"""HTTP to a vLLM server with the standard library: JSON, streams of events, and errors that say what to do."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from draftgate.errors import ConfigError, EngineError

__all__ = ["Client", "NotThere"]

_SHOWN = 300


class NotThere(EngineError):
    """The server has no such route."""


class Client:
    """One server."""

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 300.0) -> None:
        """Name a server; nothing is sent yet.

        Args:
            url: its root, such as http://127.0.0.1:8000; a trailing /v1 is taken off.
            key: sent as "Authorization: Bearer KEY".
            timeout_s: longest silence.

        Raises:
            ConfigError: it is no HTTP URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url must be an HTTP address such as http://127.0.0.1:8000 but got {url!r}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str) -> Any:
        """GET a JSON value; see `_opened` for what is raised."""
        return self._json(path, self.text(path))

    def text(self, path: str) -> str:
        """GET a text."""
        with self._opened("GET", path, None) as response:
            return response.read().decode("utf-8", "replace")

    def send(self, method: str, path: str, body: Any) -> Any:
        """POST or PUT a JSON value and return the answer."""
        with self._opened(method, path, body) as response:
            return self._json(path, response.read().decode("utf-8", "replace"))

    def events(self, path: str, body: Any) -> Iterator[Mapping[str, Any]]:
        """POST and read the answer's server-sent events as they come, up to [DONE]."""
        with self._opened("POST", path, body) as response:
            for line in response:
                field, _, data = line.decode("utf-8", "replace").strip().partition(":")
                if field != "data":  # a comment that keeps the connection open, or the blank line after an event
                    continue
                if data.strip() == "[DONE]":
                    return
                event = self._json(path, data)
                if "error" in event:
                    raise EngineError(f"{self.url}{path}: {_message(data)}")
                yield event
        raise EngineError(f"{self.url}{path}: the stream broke off; see the server's log")

    def answers(self, path: str) -> bool:
        """Whether a GET succeeds."""
        try:
            self.text(path)
        except EngineError:
            return False
        return True

    def _json(self, path: str, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineError(f"{self.url}{path}: the answer is not JSON: {text[:_SHOWN]!r}") from error

    @contextmanager
    def _opened(self, method: str, path: str, body: Any) -> Iterator[http.client.HTTPResponse]:
        """An open response.

        Raises:
            NotThere: the server has no such route.
            ConfigError: the server refused the request.
            EngineError: the server cannot be reached, failed, or fell silent.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                yield response
        except urllib.error.HTTPError as error:
            raise self._refusal(path, error) from error
        except TimeoutError as error:
            raise EngineError(
                f"{self.url}{path}: silent for {self._timeout_s:g} s; is the server overloaded?"
            ) from error
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            raise EngineError(
                f"{self.url} cannot be reached ({reason}); is the server up, and the address right?"
            ) from error

    def _refusal(self, path: str, error: urllib.error.HTTPError) -> EngineError | ConfigError:
        said = _message(error.read().decode("utf-8", "replace"))
        where = f"{self.url}{path}: HTTP {error.code}: {said}"
        if error.code == 404:
            return NotThere(where)
        if error.code in (401, 403):
            return ConfigError(f"{where}; give the server's API key in DRAFTGATE_API_KEY")
        return ConfigError(where) if error.code < 500 else EngineError(where)


def _message(body: str) -> str:
    """What an error body says, in the shapes that vLLM and FastAPI give it."""
    try:
        data = json.loads(body)
    except ValueError:
        return body[:_SHOWN]
    for key in ("error", "message", "detail"):
        if isinstance(data, dict) and key in data:
            data = data[key]
    return str(data)[:_SHOWN]
