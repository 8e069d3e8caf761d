"""A chat server on loopback that answers as it is told to and keeps what it got, for tests of alerts."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Reply:
    status: int = 200
    body: str = '{"errcode":0,"errmsg":"ok","code":0}'
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False


@dataclass(frozen=True)
class Got:
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)


@dataclass
class ChatServer:
    url: str = ""
    """Of this server, without a path."""
    replies: list[Reply] = field(default_factory=list)
    """Given one after the other; afterwards all is well."""
    got: list[Got] = field(default_factory=list)
    _hanging: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        self.got.append(Got(request.path, dict(request.query), dict(request.headers), await request.read()))
        reply = self.replies.pop(0) if self.replies else Reply()
        if reply.hangs:
            await self._hanging.wait()
        return web.Response(status=reply.status, text=reply.body, headers=reply.headers)

    def release(self) -> None:
        self._hanging.set()


@asynccontextmanager
async def chat_server(*replies: Reply, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[ChatServer]:
    server = ChatServer(replies=list(replies))
    app = web.Application()
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        server.url = f"http://{host}:{runner.addresses[0][1]}"
        yield server
    finally:
        server.release()
        await runner.cleanup()


@contextmanager
def chat_server_aside(*replies: Reply, host: str = "127.0.0.1") -> Iterator[ChatServer]:
    """In a thread of its own, for tests that block. `host` is an address of this machine that the operator reaches."""
    made: list[ChatServer] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with chat_server(*replies, host=host) as server:
            made.append(server)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(10), f"no chat server at {host}"
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()
