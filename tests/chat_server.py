"""A chat server on loopback that answers as it is told to and keeps what it got, for tests of alerts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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

    def texts(self, of: Callable[[Any], str]) -> list[str]:
        return [of(one.body) for one in self.got]


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
