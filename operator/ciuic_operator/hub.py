"""The agents' WebSocket server: takes reports, gives directives. Built by `__main__`; read by `observe`, fed by `execute`.

It keeps each pod's newest report and newest directive, and nothing else. A lost, repeated or late message changes
nothing, since both are complete each time; losing the whole hub loses nothing that agents do not say again.
"""

import asyncio
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import aiohttp
import msgspec
from aiohttp import web

from ciuic_api import protocol
from ciuic_api.protocol import Directive, Report

from .gate import Claim, Peer, Refused
from .model import Agent

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 20.0
"""Pings on idle connections, so that one whose peer vanished is closed."""
CLOSE_SECONDS = 2.0
REFUSALS_KEPT = 4096

CLOSE_GARBAGE = 4000
CLOSE_REPLACED_CONNECTION = 4001
CLOSE_REFUSED = 4003
"""Close codes of our own; the reason beside them is a sentence."""


def relevant(report: Report) -> tuple[object, ...]:
    """What of a report may change a decision. Steps and phases are read at the cadence of progress."""
    failure = report.failure
    return (
        report.boot,
        report.attempt,
        report.state,
        tuple((rank.rank, rank.exit_code) for rank in report.ranks),
        None if failure is None else (failure.reason, failure.rank, failure.exit_code, failure.message),
        report.held,
        report.run,
        report.restore_failed,
        report.preflight,
        report.rendezvous,
        # The first completed step of an attempt ends a recovery.
        report.metrics is None,
        report.upload.committed,
        report.upload.failing_seconds > 0,
        report.uploads_done,
    )


@dataclass
class _Heard:
    """What one pod's agent last said."""

    peer: Peer
    report: Report
    relevant: tuple[object, ...]
    at: float


@dataclass(eq=False)
class _Connection:
    peer: Peer
    socket: web.WebSocketResponse
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the current directive is to be sent."""


def _unreadable(error: object, peer: Peer) -> Refused:
    """The frame itself was refused by the WebSocket layer, which has closed the connection."""
    code = error.code if isinstance(error, aiohttp.WebSocketError) else None
    if code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
        return Refused(400, "oversize", f"a message of more than {protocol.MAX_REPORT_BYTES} bytes", str(peer))
    return Refused(400, "garbage", f"no WebSocket message: {error}", str(peer))


class Hub:
    def __init__(
        self,
        *,
        admit: Callable[[Claim], Awaitable[Peer]],
        check: Callable[[Peer], None],
        may_direct: Callable[[], bool],
        changed: Callable[[str], None],
        refused: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admit = admit
        self._check = check
        """Raises Refused when the pod is not a current one any more."""
        self._may_direct = may_direct
        """Whether the Lease is held: without it no directive leaves."""
        self._changed = changed
        """Called with a job's UID when a report says something that matters."""
        self._refused = refused
        """Called with the code of each refusal; counts them."""
        self._clock = clock
        self._heard: dict[str, dict[str, _Heard]] = {}
        self._directives: dict[str, dict[str, tuple[Directive, bytes]]] = {}
        self._connections: dict[str, _Connection] = {}
        self._said: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._runner: web.AppRunner | None = None
        self.started_at: float | None = None

    # ---- for observe and execute

    def agents(self, job_uid: str) -> dict[str, Agent]:
        """By pod UID: the newest report of each of the job's pods that has been heard."""
        now = self._clock()
        return {
            uid: Agent(
                pod_uid=uid,
                report=heard.report,
                connected=uid in self._connections,
                heard_seconds_ago=max(0.0, now - heard.at),
            )
            for uid, heard in self._heard.get(job_uid, {}).items()
        }

    def publish(self, job_uid: str, directives: Mapping[str, Directive]) -> None:
        """The job's directives by pod UID, all of them. New ones are pushed at once."""
        before = self._directives.get(job_uid, {})
        after: dict[str, tuple[Directive, bytes]] = {}
        for uid, directive in directives.items():
            known = before.get(uid)
            same = known is not None and known[0] == directive
            after[uid] = known if same and known is not None else (directive, protocol.encode(directive))
            if not same and uid in self._connections:
                self._connections[uid].wanted.set()
        self._directives[job_uid] = after

    def forget_job(self, job_uid: str) -> None:
        self._directives.pop(job_uid, None)
        for uid in self._heard.pop(job_uid, {}):
            self._hang_up(uid, "the job does not exist any more")

    def forget_pod(self, job_uid: str, pod_uid: str) -> None:
        self._heard.get(job_uid, {}).pop(pod_uid, None)
        self._directives.get(job_uid, {}).pop(pod_uid, None)
        self._hang_up(pod_uid, "the pod does not exist any more")

    @property
    def connected(self) -> int:
        return len(self._connections)

    def running_seconds(self) -> float:
        return 0.0 if self.started_at is None else self._clock() - self.started_at

    # ---- the server

    async def start(self, port: int, context: ssl.SSLContext, host: str | None = None) -> int:
        """Listens; returns the port, which the system chooses when it is 0."""
        app = web.Application()
        app.router.add_get(protocol.PATH, self._serve)
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=CLOSE_SECONDS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=context, backlog=1024)
        await site.start()
        self.started_at = self._clock()
        chosen: int = self._runner.addresses[0][1]
        return chosen

    async def stop(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection, aiohttp.WSCloseCode.GOING_AWAY, "the operator stops; connect again")
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_SECONDS + 1)
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        remote = request.remote or "unknown"
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        claim = Claim(
            namespace=request.headers.get(protocol.HEADER_NAMESPACE, ""),
            job=request.headers.get(protocol.HEADER_JOB, ""),
            job_uid=request.headers.get(protocol.HEADER_JOB_UID, ""),
            token=token.strip() if scheme.lower() == "bearer" else "",
            remote=remote,
        )
        try:
            peer = await self._admit(claim)
        except Refused as refusal:
            self._refuse(refusal)
            return web.Response(status=refusal.status, text=str(refusal))
        socket = web.WebSocketResponse(
            heartbeat=HEARTBEAT_SECONDS, timeout=CLOSE_SECONDS, max_msg_size=protocol.MAX_REPORT_BYTES, compress=False
        )
        if not socket.can_prepare(request).ok:
            return web.Response(status=400, text="a WebSocket is spoken here")
        await socket.prepare(request)
        connection = _Connection(peer, socket)
        self._take_place(connection)
        sender = asyncio.create_task(self._send(connection), name=f"directives to {peer}")
        try:
            await self._receive(connection)
        finally:
            sender.cancel()
            if self._connections.get(peer.pod_uid) is connection:
                del self._connections[peer.pod_uid]
                self._changed(peer.job_uid)
        return socket

    def _take_place(self, connection: _Connection) -> None:
        """One connection per pod: the newest is the living one, an older one is mostly a dead socket."""
        uid = connection.peer.pod_uid
        previous = self._connections.get(uid)
        self._connections[uid] = connection
        if previous is not None:
            self._close(previous, CLOSE_REPLACED_CONNECTION, "a newer connection of the same pod took over")
        self._changed(connection.peer.job_uid)

    async def _receive(self, connection: _Connection) -> None:
        socket, peer = connection.socket, connection.peer
        async for message in socket:
            if self._connections.get(peer.pod_uid) is not connection:
                return
            if message.type is aiohttp.WSMsgType.ERROR:
                self._refuse(_unreadable(message.data, peer))
            if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                return
            try:
                self._check(peer)
                self._take(connection, protocol.decode_report(message.data))
            except msgspec.DecodeError as error:
                await self._reject(connection, CLOSE_GARBAGE, Refused(400, "garbage", f"no report: {error}", str(peer)))
                return
            except Refused as refusal:
                await self._reject(connection, CLOSE_REFUSED, refusal)
                return

    def _take(self, connection: _Connection, report: Report) -> None:
        peer = connection.peer
        if report.incarnation != peer.incarnation:
            sentence = f"a report of incarnation {report.incarnation} from pod {peer}, which is {peer.incarnation}"
            raise Refused(403, "wrong-incarnation", sentence, str(peer))
        known = self._heard.setdefault(peer.job_uid, {}).get(peer.pod_uid)
        repeated = known is not None and known.report.boot == report.boot and report.sequence <= known.report.sequence
        if not repeated:
            now_relevant = relevant(report)
            self._heard[peer.job_uid][peer.pod_uid] = _Heard(peer, report, now_relevant, self._clock())
            if known is None or known.relevant != now_relevant:
                self._changed(peer.job_uid)
        connection.wanted.set()

    async def _send(self, connection: _Connection) -> None:
        """Answers and pushes in one: whenever it is wanted, the directive that is current then."""
        peer = connection.peer
        while True:
            await connection.wanted.wait()
            connection.wanted.clear()
            current = self._directives.get(peer.job_uid, {}).get(peer.pod_uid)
            if current is None or not self._may_direct():
                continue
            try:
                await connection.socket.send_bytes(current[1])
            except (ConnectionError, aiohttp.ClientError) as error:
                log.debug("directive to %s was not sent: %s", peer, error)
                return

    async def _reject(self, connection: _Connection, code: int, refusal: Refused) -> None:
        self._refuse(refusal)
        await connection.socket.close(code=code, message=str(refusal).encode()[:120])

    def _hang_up(self, pod_uid: str, why: str) -> None:
        connection = self._connections.pop(pod_uid, None)
        if connection is not None:
            self._close(connection, CLOSE_REFUSED, why)

    def _close(self, connection: _Connection, code: int, why: str) -> None:
        """In the background: a dead peer does not answer the closing handshake."""
        task = asyncio.create_task(self._close_socket(connection.socket, code, why))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    @staticmethod
    async def _close_socket(socket: web.WebSocketResponse, code: int, why: str) -> None:
        await socket.close(code=code, message=why.encode()[:120])

    def _refuse(self, refusal: Refused) -> None:
        """Counted each time, logged once per peer and reason."""
        self._refused(refusal.code)
        key = (refusal.peer, refusal.code)
        if key in self._said:
            self._said.move_to_end(key)
            return
        while len(self._said) >= REFUSALS_KEPT:
            self._said.popitem(last=False)
        self._said[key] = None
        log.warning("refused %s (%s): %s", refusal.peer, refusal.code, refusal)
