"""Where policies are written: a file that engines watch, or the policy route of a vLLM server with draftgate."""

import json
from pathlib import Path

from draftgate.control.channel import Channel
from draftgate.control.fetch import SourceError, fetch, own_route
from draftgate.errors import ConfigError
from draftgate.policy.policyset import PolicySet, dump, load

__all__ = ["NO_POLICIES", "FileChannel", "HttpChannel"]

NO_POLICIES = "nothing"  # in place of a digest, which is in hex: what is known to be missing is written again


class FileChannel:
    """A policy file; what it holds is what its readers will have in force."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._channel = Channel(path)

    def write(self, policies: PolicySet) -> None:
        """Replace the file.

        Raises:
            InputError: the place cannot be written.
        """
        self._channel.write(policies)

    def in_force(self) -> str:
        """Digest of what the file holds; `NO_POLICIES` when it is missing or not valid."""
        try:
            return load(self._path).digest()
        except ConfigError:
            return NO_POLICIES


class HttpChannel:
    """`/draftgate/policy` of a server (see engines/vllm/endpoint.py)."""

    def __init__(self, url: str, key: str | None = None, timeout_s: float = 5.0) -> None:
        """Name a server by its root URL.

        Args:
            key: the server's API key.

        Raises:
            ConfigError: it is no HTTP URL.
        """
        self._route = own_route(url, "policy")
        self._key, self._timeout_s = key, timeout_s

    def write(self, policies: PolicySet) -> None:
        """Put the set in force.

        Raises:
            SourceError: the server refused it, cannot be reached, or says that other policies are in force.
        """
        digest = self._digest("PUT", json.dumps(dump(policies)).encode())
        if digest != policies.digest():
            raise SourceError(f"{self._route}: {digest} is in force after writing {policies.digest()}")

    def in_force(self) -> str:
        """Digest of what the server has in force; `NO_POLICIES` when it has none, as after a restart.

        Raises:
            SourceError: it cannot be reached, or its answer is not what this route gives.
        """
        return self._digest("GET", None) or NO_POLICIES

    def _digest(self, method: str, body: bytes | None) -> str | None:
        text = fetch(self._route, self._timeout_s, method, body, self._key)
        try:
            digest = json.loads(text)["digest"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise SourceError(f"{self._route}: answers without a digest; does draftgate run there?") from error
        if not isinstance(digest, str | None):
            raise SourceError(f"{self._route}: the digest is no text")
        return digest
