"""Transport against a small HTTP server: bytes in, bytes out, and the operator's own errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import pytest
from aiohttp import web
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from ciuic_operator.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    Silent,
    Unavailable,
)
from ciuic_operator.transport import Transport

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Served:
    """An HTTP server whose answer a test sets."""

    handler: Handler

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.handler(request)


@pytest.fixture
async def served() -> AsyncIterator[tuple[Served, Transport]]:
    one = Served()
    runner = web.ServerRunner(web.Server(one), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}")
    configuration.api_key["BearerToken"] = "bearer secret"
    transport = Transport(ApiClient(configuration))
    yield one, transport
    await transport.close()
    await runner.cleanup()


async def test_a_call_carries_token_query_and_body(served: tuple[Served, Transport]) -> None:
    server, transport = served

    async def answer(request: web.BaseRequest) -> web.Response:
        assert request.headers["Authorization"] == "bearer secret"
        assert request.headers["Content-Type"] == "application/json-patch+json"
        assert dict(request.query) == {"labelSelector": "ciuic.io/job", "continue": "a=b&c/d+e"}
        return web.Response(body=await request.read())

    server.handler = answer
    query = [("labelSelector", "ciuic.io/job"), ("continue", "a=b&c/d+e")]
    patch = [{"op": "add", "path": "/status", "value": {"loss": "1.0"}}]
    body = await transport.call("PATCH", "/x", query, patch, content_type="application/json-patch+json")
    assert body == b'[{"op": "add", "path": "/status", "value": {"loss": "1.0"}}]'


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", Unavailable),
        (500, "InternalError", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
async def test_refusals(served: tuple[Served, Transport], status: int, reason: str, kind: type[KubeError]) -> None:
    server, transport = served

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.json_response({"reason": reason, "message": "because"}, status=status, headers={"Retry-After": "7"})

    server.handler = answer
    with pytest.raises(KubeError) as refused:
        await transport.call("POST", "/api/v1/pods")
    assert type(refused.value) is kind and refused.value.words == "because"
    assert "POST /api/v1/pods" in str(refused.value) and str(status) in str(refused.value)
    if isinstance(refused.value, Unavailable):
        assert refused.value.retry_after == 7


async def test_an_answer_that_is_no_status_is_told(served: tuple[Served, Transport]) -> None:
    server, transport = served

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=404, text="404 page not found")

    server.handler = answer
    with pytest.raises(NotFound, match="404 page not found"):
        await transport.call("GET", "/apis/ciuic.io/v1alpha1/deepseekjobs")


async def test_a_call_that_takes_too_long_is_given_up(served: tuple[Served, Transport]) -> None:
    server, transport = served
    server.handler = never
    with pytest.raises(Unavailable):
        await transport.call("GET", "/x", seconds=0.1)


async def test_nobody_listens() -> None:
    transport = Transport(ApiClient(Configuration(host="http://127.0.0.1:1")))
    with pytest.raises(Unavailable):
        await transport.call("GET", "/x")
    with pytest.raises(Unavailable):
        await lines(transport)
    await transport.close()


async def test_lines_of_any_length_in_any_pieces(served: tuple[Served, Transport]) -> None:
    server, transport = served
    long = b"x" * 300_000

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b"one\ntw", b"o\n", long, long + b"\nlast\ncut off"):
            await response.write(piece)
        return response

    server.handler = answer
    assert await lines(transport) == [b"one", b"two", long + long, b"last"], "a line that was cut off is none"


async def test_a_silent_stream_is_given_up(served: tuple[Served, Transport]) -> None:
    server, transport = served

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        return await never(request)

    server.handler = answer
    seen: list[bytes] = []
    with pytest.raises(Silent):
        async with aclosing(transport.lines("/x", [], silence_seconds=0.2)) as stream:
            async for line in stream:
                seen.append(line)  # noqa: PERF401
    assert seen == [b"one"]


async def test_a_refused_watch(served: tuple[Served, Transport]) -> None:
    server, transport = served

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.json_response({"reason": "Expired", "message": "too old resource version"}, status=410)

    server.handler = answer
    with pytest.raises(Gone):
        await lines(transport)


async def never(_: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def lines(transport: Transport) -> list[bytes]:
    async with aclosing(transport.lines("/x", [], silence_seconds=5.0)) as stream:
        return [line async for line in stream]
