"""The operator's end of the WebSocket, in a few lines: it records what agents report and says what a test wants said."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from ciuic_api import protocol
from ciuic_api.protocol import Directive, Report
from waiting import eventually


@dataclass
class Hub:
    port: int
    reports: dict[int, list[Report]] = field(default_factory=dict)
    """By incarnation, oldest first."""
    directives: dict[int, Directive] = field(default_factory=dict)
    """By incarnation: what is said in reply to each report, and at once when it changes."""
    connections: int = 0
    """How many there have been."""
    silent: bool = False
    """Reports are taken and nothing is said."""
    refusal: str = ""
    """Connections are refused with this sentence."""
    headers: list[dict[str, str]] = field(default_factory=list)
    _sockets: dict[int, web.WebSocketResponse] = field(default_factory=dict)
    _runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}{protocol.PATH}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get(protocol.PATH, self._serve)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def cut(self) -> None:
        """As when the network fails: no closing handshake."""
        for socket in self._sockets.values():
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()
        self._sockets.clear()

    async def say(self, incarnation: int, directive: Directive) -> None:
        self.directives[incarnation] = directive
        socket = self._sockets.get(incarnation)
        if socket is not None and not socket.closed:
            await socket.send_bytes(protocol.encode(directive))

    async def say_raw(self, incarnation: int, text: bytes) -> None:
        await self._sockets[incarnation].send_bytes(text)

    def newest(self, incarnation: int) -> Report | None:
        return self.reports[incarnation][-1] if self.reports.get(incarnation) else None

    async def told(
        self, incarnation: int, what: str, condition: Callable[[Report], object], seconds: float = 15.0
    ) -> Report:
        """The newest report, once it meets the condition."""

        def met() -> Report | None:
            report = self.newest(incarnation)
            return report if report is not None and condition(report) else None

        try:
            found = await eventually(what, met, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; newest report: {self.newest(incarnation)}") from None
        assert found is not None
        return found

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if self.refusal:
            return web.Response(status=403, text=self.refusal)
        self.connections += 1
        self.headers.append(dict(request.headers))
        socket = web.WebSocketResponse(max_msg_size=protocol.MAX_REPORT_BYTES, compress=False)
        await socket.prepare(request)
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                report = protocol.decode_report(message.data)
                self._sockets[report.incarnation] = socket
                self.reports.setdefault(report.incarnation, []).append(report)
                directive = self.directives.get(report.incarnation)
                if directive is not None and not self.silent:
                    await socket.send_bytes(protocol.encode(directive))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the agent is gone, or the test cut the line
        return socket
