"""One bounded HTTP request: no answer may hang the loop, or fill its memory."""

import http.client
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from draftgate.errors import ConfigError, DraftgateError

__all__ = ["SourceError", "checked_url", "fetch", "own_route"]

_LIMIT_BYTES = 16 << 20
_SHOWN = 200


class SourceError(DraftgateError):
    """Metrics, or an engine's endpoint, cannot be read now; the loop holds and tries again."""


def checked_url(url: str) -> str:
    """The URL without a slash at its end.

    Raises:
        ConfigError: it is no HTTP URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"must be an HTTP address such as http://127.0.0.1:8000 but got {url!r}")
    return url.rstrip("/")


def own_route(url: str, name: str) -> str:
    """A route that draftgate adds to a vLLM server (engines/vllm/endpoint.py), given the server's root or API address.

    Raises:
        ConfigError: it is no HTTP URL.

    >>> own_route("http://127.0.0.1:8000/v1/", "policy")
    'http://127.0.0.1:8000/draftgate/policy'
    """
    return f"{checked_url(url).removesuffix('/v1')}/draftgate/{name}"


def fetch(url: str, timeout_s: float, method: str = "GET", body: bytes | None = None, key: str | None = None) -> str:
    """The text of an answer that came whole within `timeout_s`.

    Args:
        key: sent as "Authorization: Bearer KEY".

    Raises:
        SourceError: refused, unreachable, too slow, too large or cut short.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(url, body, headers, method=method)
    until_s = time.monotonic() + timeout_s
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return _read(response, until_s, url).decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        said = error.read(_SHOWN).decode("utf-8", "replace")
        raise SourceError(f"{url}: HTTP {error.code}: {said}") from error
    except (http.client.HTTPException, OSError, ValueError) as error:
        raise SourceError(f"{url}: {getattr(error, 'reason', None) or error or type(error).__name__}") from error


def _read(response: http.client.HTTPResponse, until_s: float, url: str) -> bytes:
    data = bytearray()
    # The socket's timeout starts anew with each byte: a server that drips needs a deadline.
    while part := response.read1(1 << 16):
        data += part
        if len(data) > _LIMIT_BYTES or time.monotonic() > until_s:
            raise SourceError(f"{url}: the answer is too slow, or larger than {_LIMIT_BYTES >> 20} MiB")
    if response.length:
        raise SourceError(f"{url}: the answer is cut short, {response.length} bytes are missing")
    return bytes(data)
