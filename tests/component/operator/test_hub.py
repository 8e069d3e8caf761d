"""The hub over real sockets and TLS; who may connect is decided by a function of the test."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import aiohttp
import pytest

from ciuic_api import protocol
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AgentState, Directive, Metrics, RankState, Report
from ciuic_operator import certificates
from ciuic_operator.gate import Claim, Peer, Refused
from ciuic_operator.hub import CLOSE_GARBAGE, CLOSE_REFUSED, CLOSE_REPLACED_CONNECTION, Hub
from waiting import eventually

JOB = "job-uid"
PEER = Peer(pod_uid="pod-0", pod_name="tiny-0-0", namespace="team", job="tiny", job_uid=JOB, slot=0, incarnation=0)
OTHER = replace(PEER, pod_uid="pod-1", pod_name="tiny-1-1", slot=1, incarnation=1)
REPORT = Report(boot="b1", sequence=1, incarnation=0, attempt=1, state=AgentState.QUIESCED)


@dataclass
class Harness:
    """A hub on a free port, with what it called."""

    peers: dict[str, Peer] = field(default_factory=lambda: {"t0": PEER, "t1": OTHER})
    """By token."""
    replaced: set[str] = field(default_factory=set)
    """Pod UIDs that are not current any more."""
    holds_lease: bool = True
    changes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    port: int = 0
    authority: certificates.Pair = field(default_factory=lambda: certificates.make_authority(datetime.now(UTC)))
    session: aiohttp.ClientSession = field(init=False)
    hub: Hub = field(init=False)

    async def admit(self, claim: Claim) -> Peer:
        if claim.token not in self.peers:
            raise Refused(401, "unauthenticated", "the token does not hold", claim.remote)
        return self.peers[claim.token]

    def check(self, peer: Peer) -> None:
        if peer.pod_uid in self.replaced:
            raise Refused(403, "replaced-pod", f"pod {peer} was replaced", str(peer))

    async def connect(self, token: str = "t0", **kwargs: object) -> aiohttp.ClientWebSocketResponse:
        headers = {
            "Authorization": f"Bearer {token}",
            protocol.HEADER_NAMESPACE: "team",
            protocol.HEADER_JOB: "tiny",
            protocol.HEADER_JOB_UID: JOB,
        }
        url = f"https://127.0.0.1:{self.port}{protocol.PATH}"
        return await self.session.ws_connect(url, headers=headers, max_msg_size=0)

    def trust(self, pem: bytes) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=pem.decode())
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness()
    made.hub = Hub(
        admit=made.admit,
        check=made.check,
        may_direct=lambda: made.holds_lease,
        changed=made.changes.append,
        refused=made.refusals.append,
    )
    server = certificates.make_server(made.authority, "127.0.0.1", datetime.now(UTC))
    made.port = await made.hub.start(0, certificates.server_context(server), "127.0.0.1")
    connector = aiohttp.TCPConnector(ssl=made.trust(made.authority.certificate_pem))
    made.session = aiohttp.ClientSession(connector=connector)
    yield made
    await made.session.close()
    await made.hub.stop()


async def directive(socket: aiohttp.ClientWebSocketResponse) -> Directive:
    message = await socket.receive(timeout=10)
    assert message.type is aiohttp.WSMsgType.BINARY, message
    return protocol.decode_directive(message.data)


async def closing(socket: aiohttp.ClientWebSocketResponse) -> tuple[int | None, str]:
    """The close code that the hub ends the connection with, and its words."""
    message = await socket.receive(timeout=10)
    assert message.type is aiohttp.WSMsgType.CLOSE, message
    return message.data, message.extra or ""


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused")]


async def test_a_report_is_kept_and_answered(harness: Harness) -> None:
    harness.hub.publish(JOB, {"pod-0": Directive(attempt=1, run=False, slot=0)})
    socket = await harness.connect()
    await socket.send_bytes(protocol.encode(REPORT))
    assert await directive(socket) == Directive(attempt=1, run=False, slot=0)
    await socket.send_bytes(protocol.encode(replace_report(sequence=2)))
    assert (await directive(socket)).attempt == 1, "each report is answered, so that the agent knows it is confirmed"
    agent = harness.hub.agents(JOB)["pod-0"]
    assert agent.connected and agent.report.sequence == 2 and agent.heard_seconds_ago < 5


async def test_a_directive_is_pushed_when_it_changes_and_not_when_it_does_not(harness: Harness) -> None:
    first, second = Directive(attempt=1, run=False, slot=0), Directive(attempt=1, run=True, slot=0)
    other = Directive(attempt=1, run=True, slot=1)
    harness.hub.publish(JOB, {"pod-0": first})
    socket, later = await harness.connect("t0"), await harness.connect("t1")
    await socket.send_bytes(protocol.encode(REPORT))
    assert await directive(socket) == first
    harness.hub.publish(JOB, {"pod-0": Directive(attempt=1, run=False, slot=0), "pod-1": other})
    assert await directive(later) == other
    harness.hub.publish(JOB, {"pod-0": second, "pod-1": other})
    assert await directive(socket) == second, "an equal directive was pushed again"


async def test_without_the_lease_no_directive_leaves(harness: Harness) -> None:
    harness.hub.publish(JOB, {"pod-0": Directive(attempt=1, run=False, slot=0)})
    harness.holds_lease = False
    socket = await harness.connect()
    await socket.send_bytes(protocol.encode(REPORT))
    await eventually("the report is kept", lambda: "pod-0" in harness.hub.agents(JOB))
    harness.holds_lease = True
    harness.hub.publish(JOB, {"pod-0": Directive(attempt=2, run=False, slot=0)})
    assert (await directive(socket)).attempt == 2


async def test_a_pod_that_the_plan_does_not_name_gets_no_directive(harness: Harness) -> None:
    harness.hub.publish(JOB, {"pod-0": Directive(attempt=1, run=True, slot=0)})
    harness.hub.publish(JOB, {"pod-1": Directive(attempt=1, run=True, slot=1)})
    left_out, named = await harness.connect("t0"), await harness.connect("t1")
    await left_out.send_bytes(protocol.encode(REPORT))
    await eventually("the first report is kept", lambda: "pod-0" in harness.hub.agents(JOB))
    await named.send_bytes(protocol.encode(replace_report(incarnation=1)))
    assert (await directive(named)).slot == 1
    with pytest.raises(TimeoutError):
        await left_out.receive(timeout=0.2)


async def test_only_what_matters_wakes_the_job(harness: Harness) -> None:
    socket = await harness.connect()
    await eventually("connected", lambda: len(harness.changes) == 1)

    async def wakes(report: Report) -> int:
        before = len(harness.changes)
        await socket.send_bytes(protocol.encode(report))
        await eventually("taken", lambda: harness.hub.agents(JOB)["pod-0"].report.sequence == report.sequence)
        return len(harness.changes) - before

    await socket.send_bytes(protocol.encode(REPORT))
    await eventually("the first report wakes", lambda: len(harness.changes) == 2)
    running = replace_report(sequence=2, state=AgentState.RUNNING, ranks=(RankState(rank=0, phase="init"),))
    assert await wakes(running) == 1
    stepping = {"state": AgentState.RUNNING, "metrics": Metrics(step=1)}
    rank = RankState(rank=0, phase="step", step=1)
    assert await wakes(replace_report(sequence=3, ranks=(rank,), **stepping)) == 1, "the first completed step"
    rank = RankState(rank=0, phase="checkpoint", step=2, unmoved_seconds=3.0)
    assert await wakes(replace_report(sequence=4, ranks=(rank,), **stepping | {"metrics": Metrics(step=2)})) == 0
    rank = RankState(rank=0, phase="exit", step=2, exit_code=-9)
    assert await wakes(replace_report(sequence=5, ranks=(rank,), **stepping)) == 1, "an exit code"
    held = (CheckpointId(2, 1),)
    assert await wakes(replace_report(sequence=6, ranks=(rank,), held=held, **stepping)) == 1, "a held checkpoint"
    await socket.close()
    await eventually("the disconnect wakes", lambda: not harness.hub.agents(JOB)["pod-0"].connected)
    assert len(harness.changes) == 7


async def test_an_old_or_repeated_report_changes_nothing(harness: Harness) -> None:
    harness.hub.publish(JOB, {"pod-0": Directive(attempt=3, run=True, slot=0)})
    socket = await harness.connect()
    await socket.send_bytes(protocol.encode(replace_report(sequence=9, attempt=3)))
    await directive(socket)
    await socket.send_bytes(protocol.encode(replace_report(sequence=8, attempt=2)))
    await directive(socket)
    assert harness.hub.agents(JOB)["pod-0"].report.attempt == 3
    await socket.send_bytes(protocol.encode(replace_report(boot="b2", sequence=1, attempt=0)))
    await directive(socket)
    assert harness.hub.agents(JOB)["pod-0"].report.boot == "b2", "a restarted agent counts from the beginning"


async def test_the_newest_connection_of_a_pod_wins(harness: Harness) -> None:
    old = await harness.connect()
    new = await harness.connect()
    assert (await closing(old))[0] == CLOSE_REPLACED_CONNECTION
    harness.hub.publish(JOB, {"pod-0": Directive(attempt=1, run=True, slot=0)})
    await new.send_bytes(protocol.encode(REPORT))
    assert (await directive(new)).run
    assert harness.hub.connected == 1 and harness.hub.agents(JOB)["pod-0"].connected


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff not json", b"{}", b'{"boot": 7}', b"[]", b'{"boot":"b","sequence":1,"incarnation":0'],
)  # fmt: skip
async def test_garbage_is_refused_and_the_hub_stays_up(
    harness: Harness, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        socket = await harness.connect()
        await socket.send_bytes(garbage)
        code, words = await closing(socket)
        assert code == CLOSE_GARBAGE and "no report" in words
    assert harness.refusals == ["garbage"] * 3 and len(refusals(caplog)) == 1, "logged once"
    await serves(harness)


async def test_an_oversize_message_is_refused(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        socket = await harness.connect()
        await socket.send_bytes(b" " * (protocol.MAX_REPORT_BYTES + 1))
        assert (await closing(socket))[0] == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
    await eventually("counted", lambda: harness.refusals == ["oversize"] * 2)
    assert len(refusals(caplog)) == 1
    assert not harness.hub.agents(JOB)
    await serves(harness)


async def test_the_largest_report_is_taken(harness: Harness) -> None:
    socket = await harness.connect()
    text = protocol.encode(REPORT)
    await socket.send_bytes(text + b" " * (protocol.MAX_REPORT_BYTES - 1024 - len(text)))
    await eventually("taken", lambda: "pod-0" in harness.hub.agents(JOB))


async def test_an_unknown_token_is_refused_with_a_sentence(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await harness.connect("stolen")
        assert refusal.value.status == 401
    assert len(refusals(caplog)) == 1 and "stolen" not in caplog.text, "a token is never logged"
    await serves(harness)


async def test_a_pod_that_is_replaced_meanwhile_is_not_listened_to(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    socket = await harness.connect()
    await socket.send_bytes(protocol.encode(REPORT))
    await eventually("heard", lambda: "pod-0" in harness.hub.agents(JOB))
    harness.replaced.add("pod-0")
    await socket.send_bytes(protocol.encode(replace_report(sequence=2, attempt=7)))
    code, words = await closing(socket)
    assert code == CLOSE_REFUSED and "was replaced" in words
    assert harness.hub.agents(JOB)["pod-0"].report.attempt == 1 and len(refusals(caplog)) == 1


async def test_a_report_in_the_name_of_another_incarnation_is_refused(harness: Harness) -> None:
    socket = await harness.connect()
    await socket.send_bytes(protocol.encode(replace_report(incarnation=4)))
    assert (await closing(socket))[0] == CLOSE_REFUSED
    assert harness.refusals == ["wrong-incarnation"] and not harness.hub.agents(JOB)


async def test_a_pod_that_is_gone_is_forgotten(harness: Harness) -> None:
    socket = await harness.connect()
    await socket.send_bytes(protocol.encode(REPORT))
    await eventually("heard", lambda: "pod-0" in harness.hub.agents(JOB))
    harness.hub.forget_pod(JOB, "pod-0")
    assert (await closing(socket))[0] == CLOSE_REFUSED
    assert harness.hub.agents(JOB) == {} and harness.hub.connected == 0


async def test_a_plain_request_is_answered(harness: Harness) -> None:
    url = f"https://127.0.0.1:{harness.port}{protocol.PATH}"
    async with harness.session.get(url, headers={"Authorization": "Bearer t0"}) as response:
        assert response.status == 400
    async with harness.session.get(url) as response:
        assert response.status == 401
    await serves(harness)


async def test_bytes_that_are_no_tls_do_not_stop_it(harness: Harness) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", harness.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n" * 100)
    await reader.read()
    writer.close()
    await serves(harness)


async def test_another_authority_is_not_trusted(harness: Harness) -> None:
    stranger = certificates.make_authority(datetime.now(UTC))
    connector = aiohttp.TCPConnector(ssl=harness.trust(stranger.certificate_pem))
    async with aiohttp.ClientSession(connector=connector) as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(f"https://127.0.0.1:{harness.port}{protocol.PATH}")


async def test_a_stop_tells_the_agents(harness: Harness) -> None:
    socket = await harness.connect()
    stopping = asyncio.create_task(harness.hub.stop())
    code, words = await closing(socket)
    assert code == aiohttp.WSCloseCode.GOING_AWAY and "connect again" in words
    await stopping


async def serves(harness: Harness) -> None:
    """The hub answers a good agent."""
    harness.hub.publish(JOB, {"pod-1": Directive(attempt=5, run=True, slot=1)})
    socket = await harness.connect("t1")
    await socket.send_bytes(protocol.encode(replace_report(incarnation=1)))
    assert (await directive(socket)).attempt == 5
    await socket.close()


def replace_report(**fields: object) -> Report:
    values = {name: getattr(REPORT, name) for name in REPORT.__struct_fields__} | fields
    return Report(**values)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
