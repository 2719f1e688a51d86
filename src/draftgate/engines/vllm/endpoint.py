"""HTTP routes on vLLM's own server: what is in force, and orders to change it.

    GET /draftgate/status        everything: policies, speculation, the watched file, each rank
    GET /draftgate/metrics       its counts in Prometheus' text format
    GET /draftgate/policy        {"digest", "policy"}: what the ranks have in force
    PUT /draftgate/policy        a policy set or a single policy, YAML or JSON; answers like GET
    PUT /draftgate/speculation   {"on": true|false, "k": longest draft or null}

A wrong body gives 400 and leaves the last good policies in force; what this server cannot do gives 409 with the reason.
vLLM guards only its own prefixes with `--api-key`; these routes ask for the same keys.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import HTTPException
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

from draftgate.control.channel import LIMIT_BYTES
from draftgate.engines.vllm.control import METHOD
from draftgate.engines.vllm.exposition import exposition
from draftgate.engines.vllm.source import SOURCE
from draftgate.errors import ConfigError, nearest
from draftgate.policy.policyset import dump, loads
from vllm import envs

__all__ = ["Endpoint"]

_STATUS_CODES = {"refused": 400, "cannot": 409, "failed": 500}


class Endpoint:
    """The entry point of group `vllm.endpoint_plugins`; vLLM makes one for each API server."""

    name = "draftgate"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._engine: Any = None
        self._guard: AuthenticationMiddleware | None = None

    def attach_router(self, app: Any) -> None:
        """Add the routes."""
        for path, methods, answer in (
            ("/draftgate/status", ["GET"], self._status),
            ("/draftgate/metrics", ["GET"], self._metrics),
            ("/draftgate/policy", ["GET"], self._policy),
            ("/draftgate/policy", ["PUT"], self._put_policy),
            ("/draftgate/speculation", ["PUT"], self._put_speculation),
        ):
            app.router.add_route(path, self._route(answer), methods=methods)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Keep the way to the engine, and the server's API keys, found as vLLM finds them."""
        self._engine = engine_client
        keys = [key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]
        self._guard = AuthenticationMiddleware(None, keys) if keys else None

    def _route(self, answer: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Response]]:
        async def handle(request: Any) -> Response:
            if self._guard is not None and not self._guard.verify_token(request.headers):
                raise HTTPException(401, "this needs the server's API key: Authorization: Bearer KEY")
            try:
                reply = await answer(request)
            except ConfigError as error:
                raise _error(400, str(error)) from None
            if isinstance(reply, Response):
                return reply
            # ASCII also where a name in an error message is no valid text.
            return Response(json.dumps(reply) + "\n", media_type="application/json")

        return handle

    async def _status(self, request: Any) -> Any:
        return await self._order("status", None)

    async def _metrics(self, request: Any) -> Response:
        return Response(exposition(await self._order("status", None)), media_type=CONTENT_TYPE_LATEST)

    async def _policy(self, request: Any) -> Any:
        return _policy(await self._order("status", None))

    async def _put_policy(self, request: Any) -> Any:
        body = await _body(request)
        # Reading YAML takes a while: requests are served meanwhile.
        policies = await asyncio.to_thread(loads, body, "body")
        reply = await self._order("policy", dump(policies))
        SOURCE.set(policies, SOURCE.limit_tok)  # this process refuses requests for policies that are not in force
        return _policy(reply)

    async def _put_speculation(self, request: Any) -> Any:
        limit_tok = _limit(await _body(request))
        return (await self._order("limit", limit_tok))["speculation"]

    async def _order(self, verb: str, value: Any) -> dict[str, Any]:
        try:
            (reply, *_) = await self._engine.collective_rpc(METHOD, args=(verb, value))
        except Exception as error:  # the edge to another process; how it fails depends on vLLM's executor
            raise _error(503, f"the engine gave draftgate no answer: {error}") from error
        for key, code in _STATUS_CODES.items():
            if key in reply:
                raise _error(code, reply[key])
        if any(rank["digest"] != reply["digest"] for rank in reply["ranks"]):
            raise _error(500, f"ranks have different policies in force: {reply['ranks']}")
        answer: dict[str, Any] = reply
        return answer


def _policy(reply: dict[str, Any]) -> dict[str, Any]:
    return {"digest": reply["digest"], "policy": reply["policy"]}


def _error(code: int, message: str) -> HTTPException:
    return HTTPException(code, message.encode("ascii", "backslashreplace").decode())


async def _body(request: Any) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LIMIT_BYTES:
            raise _error(413, f"body: larger than {LIMIT_BYTES} bytes; a policy set needs a few thousand")
    return body


def _limit(body: bytes) -> int | None:
    """The longest draft that a body asks for: 0 is off, None no limit."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"body: is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError('body: must be an object such as {"on": true, "k": 3}')
    for key in data:
        if key not in ("on", "k"):
            raise ConfigError(f"body: unknown key '{key}'; {nearest(key, ('on', 'k'))}")
    on, k = data.get("on"), data.get("k")
    if not isinstance(on, bool):
        raise ConfigError(f"body.on: must be true or false but got {json.dumps(on):.40}")
    if k is not None and (type(k) is not int or k < 1 or not on):
        raise ConfigError("body.k: must be a whole number of 1 or more, or null; and null when speculation is off")
    return k if on else 0
