"""Alerts from a persisted status to a chat server on loopback, whatever that server does."""

import asyncio
import base64
import functools
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest

import builders
from chat_server import ChatServer, Reply, chat_server, chat_server_aside
from ciuic_api.alerting import AlertRoute
from ciuic_api.jobstatus import JobStatus, RestartCounts, State
from ciuic_operator.alerts import delivery, policy
from ciuic_operator.alerts.delivery import Courier
from ciuic_operator.alerts.desk import Desk
from ciuic_operator.alerts.formats.wire import Answer, Outgoing
from ciuic_operator.metrics import Metrics
from ciuic_operator.model import Job
from ciuic_operator.receivers import Receiver, ReceiverType
from unit.operator.alert_samples import FAILED, NOW, RECOVERED, RESTARTING, WAITING
from waiting import eventually

KEY = "0a1b2c3d-4e5f-6a7b"
SIGNING = "SECabcdef0123"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "WINDOW_SECONDS", 0.05)
    monkeypatch.setattr(policy, "BACKOFF_SECONDS", (0.05, 0.2))
    monkeypatch.setattr(delivery, "ANSWER_SECONDS", 0.3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "alerts"


def courier(
    folder: Path, kind: ReceiverType, url: str, metrics: Metrics | None = None, name: str = "oncall"
) -> Courier:
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    if url:
        (place / "url").write_text(f"{url}/send?key={KEY}\n")
    (place / "secret").write_text(SIGNING)
    return Courier(Receiver(name=name, type=kind), place, metrics or Metrics(), lambda: NOW)


@asynccontextmanager
async def delivering(*couriers: Courier) -> AsyncIterator[Desk]:
    desk = Desk(couriers, lambda: NOW)
    task = asyncio.create_task(desk.run())
    try:
        yield desk
    finally:
        assert not task.done(), "it runs whatever happens"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counted(metrics: Metrics, outcome: str) -> float:
    found = metrics.registry.get_sample_value("deepseekjob_alerts_total", {"receiver": "oncall", "outcome": outcome})
    assert found is not None
    return found


async def test_whatever_a_server_answers_the_alert_arrives_in_the_end(folder: Path) -> None:
    answers = (
        Reply(status=500, body="oops"),
        Reply(status=429, headers={"Retry-After": "0"}),
        Reply(body='{"errcode":45009,"errmsg":"api freq out of limit"}'),
        Reply(hangs=True),
        Reply(body="<html>login</html>"),
    )
    metrics = Metrics()
    async with chat_server(*answers) as server:
        one = courier(folder, ReceiverType.WECOM, server.url, metrics)
        async with delivering(one):
            one.put(RESTARTING)
            await eventually("it arrives", lambda: counted(metrics, "sent") == 1)
        assert len(server.got) == 6 and counted(metrics, "failed") == 5 and counted(metrics, "dropped") == 0
        assert len({got.raw for got in server.got}) == 1
        assert server.got[0].path == "/send" and server.got[0].query == {"key": KEY}
        assert server.got[0].headers["Content-Type"] == "application/json; charset=utf-8"


async def test_a_wait_that_the_server_asks_for_is_kept(folder: Path) -> None:
    async with chat_server(Reply(status=429, headers={"Retry-After": "1"})) as server:
        one = courier(folder, ReceiverType.SLACK, server.url)
        async with delivering(one):
            one.put(RESTARTING)
            await eventually("the first try", lambda: len(server.got) == 1)
            began = asyncio.get_running_loop().time()
            await eventually("the second", lambda: len(server.got) == 2)
            assert asyncio.get_running_loop().time() - began > 0.9


async def test_what_is_refused_is_not_repeated_and_the_next_message_says_so(folder: Path) -> None:
    metrics = Metrics()
    async with chat_server(Reply(body='{"errcode":93000,"errmsg":"invalid webhook url"}')) as server:
        one = courier(folder, ReceiverType.WECOM, server.url, metrics)
        async with delivering(one):
            one.put(RESTARTING)
            await eventually("it is refused", lambda: counted(metrics, "dropped") == 1)
            one.put(FAILED)
            await eventually("the next arrives", lambda: counted(metrics, "sent") == 1)
    assert len(server.got) == 2 and "1 alerts before these were not delivered" in server.got[1].raw.decode()


async def test_a_server_that_hangs_holds_up_nobody_else(folder: Path) -> None:
    async with chat_server(Reply(hangs=True)) as deaf, chat_server() as well:
        first = courier(folder, ReceiverType.SLACK, deaf.url, name="deaf")
        second = courier(folder, ReceiverType.SLACK, well.url, name="well")
        async with delivering(first, second) as desk:
            job = routed(["deaf", "well"], JobStatus())
            desk.show(job)
            began = asyncio.get_running_loop().time()
            for number in range(1, 300):
                desk.show(replace(job, status=failing(number)))
            assert asyncio.get_running_loop().time() - began < 1.0, "showing never waits"
            await eventually("the other is told", lambda: len(well.got) == 1)
            await eventually("the deaf one is tried", lambda: deaf.got)
            assert "99 alerts before these were not delivered" in well.got[0].raw.decode()


async def test_signatures_are_what_a_server_computes(folder: Path) -> None:
    async with chat_server() as server:
        for kind in (ReceiverType.DINGTALK, ReceiverType.FEISHU, ReceiverType.WEBHOOK):
            one = courier(folder, kind, server.url, name=str(kind))
            async with delivering(one):
                one.put(RESTARTING)
                await eventually("it arrives", functools.partial(arrived, server, kind))
    ding, feishu, own = server.got
    stamp = ding.query["timestamp"]
    assert base64.b64decode(ding.query["sign"]) == sha256(SIGNING, f"{stamp}\n{SIGNING}".encode())
    stamp = feishu.body["timestamp"]
    assert base64.b64decode(feishu.body["sign"]) == sha256(f"{stamp}\n{SIGNING}", b"")
    stamp = own.headers["X-DeepSeekJob-Timestamp"]
    assert own.headers["X-DeepSeekJob-Signature"] == f"sha256={sha256(SIGNING, stamp.encode() + b'.' + own.raw).hex()}"


def arrived(server: ChatServer, kind: ReceiverType) -> bool:
    return any(MARKS[kind] in got.raw for got in server.got)


MARKS = {
    ReceiverType.DINGTALK: b'"isAtAll"',
    ReceiverType.FEISHU: b'"msg_type"',
    ReceiverType.WEBHOOK: b'"version"',
}


def sha256(key: str, data: bytes) -> bytes:
    return hmac.new(key.encode(), data, hashlib.sha256).digest()


async def test_no_secret_is_ever_logged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = (
        Reply(status=500, body=f"no robot {KEY} signed by {SIGNING}"),
        Reply(status=302, headers={"Location": f"http://127.0.0.1:1/{KEY}"}),
        Reply(body=f'{{"errcode":45009,"errmsg":"{KEY}"}}'),
    )
    async with chat_server(*answers) as server:
        one = courier(folder, ReceiverType.DINGTALK, server.url)
        async with aiohttp.ClientSession() as session:
            for _ in answers:
                one.put(RESTARTING)
                await one.deliver(session)
    async with aiohttp.ClientSession() as session:
        one.put(RESTARTING)
        await one.deliver(session)  # the server is gone
        for broken in (
            f"http://[{KEY}/",
            f"http://127.0.0.1:{KEY}/",
            f"http://exa mple/{KEY}",
            f"gopher://x/{KEY}",
            f"http://../{KEY}",
        ):
            (folder / "oncall/url").write_text(broken)
            one.put(RESTARTING)
            await one.deliver(session)
    said = [record.getMessage() for record in caplog.records if record.name.endswith("alerts.delivery")]
    assert len(said) > 4 and any("HTTP 500: no robot *** signed by ***" in line for line in said)
    assert any("ClientConnectorError" in line and "127.0.0.1" in line for line in said), "the host is told"
    assert KEY not in caplog.text and SIGNING not in caplog.text


async def test_nor_what_the_client_itself_says_of_a_url(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(_: aiohttp.ClientSession, outgoing: Outgoing) -> Answer:
        raise aiohttp.InvalidURL(outgoing.url)

    monkeypatch.setattr(delivery, "_post", post)
    one = courier(folder, ReceiverType.SLACK, "https://chat.example")
    async with aiohttp.ClientSession() as session:
        one.put(RESTARTING)
        await one.deliver(session)
    assert "InvalidURL" in caplog.text and KEY not in caplog.text


def test_a_chat_server_beside_a_test_that_blocks(folder: Path) -> None:
    """As the end-to-end tests use it."""
    with chat_server_aside() as server:
        desk = Desk([courier(folder, ReceiverType.WEBHOOK, server.url)], lambda: NOW)
        desk.show(routed(["oncall"], JobStatus()))
        desk.show(routed(["oncall"], failing(1)))
        asyncio.run(desk.flush(5.0))
        assert [alert["kind"] for got in server.got for alert in got.body["alerts"]] == ["Restarting"]


async def test_a_redirect_is_not_followed(folder: Path) -> None:
    async with chat_server() as other, chat_server(Reply(status=307, headers={"Location": other.url})) as server:
        one = courier(folder, ReceiverType.WEBHOOK, server.url)
        async with aiohttp.ClientSession() as session:
            one.put(RESTARTING)
            await one.deliver(session)
    assert len(server.got) == 1 and other.got == []


async def test_a_secret_may_come_late_and_change(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    async with chat_server() as server:
        one = courier(folder, ReceiverType.WECOM, "", metrics)
        async with delivering(one):
            one.put(RESTARTING)
            await eventually("it is said", lambda: counted(metrics, "failed") > 0)
            assert "its Secret has no key `url`" in caplog.text
            (folder / "oncall/url").write_text(f"{server.url}/first")
            await eventually("it arrives", lambda: counted(metrics, "sent") == 1)
            (folder / "oncall/url").write_text(f"{server.url}/second")
            one.put(FAILED)
            await eventually("the next as well", lambda: counted(metrics, "sent") == 2)
    assert [got.path for got in server.got] == ["/first", "/second"]


async def test_a_mistake_of_ours_costs_one_message(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    async with chat_server() as server:
        one = courier(folder, ReceiverType.SLACK, server.url, metrics)
        async with delivering(one) as desk:
            one.put(replace(RESTARTING, kind="?"))  # type: ignore[arg-type]
            await eventually("it is dropped", lambda: counted(metrics, "dropped") == 1)
            assert "KeyError" in caplog.text
            one.put(RECOVERED)
            await eventually("the next arrives", lambda: counted(metrics, "sent") == 1)
            monkeypatch.setattr("ciuic_operator.alerts.desk.raised", lambda *_: 1 / 0)
            desk.show(routed(["oncall"], JobStatus()))
            desk.show(routed(["oncall"], failing(1)))
            assert "alerts are not told" in caplog.text


def routed(names: list[str], status: JobStatus, when: list[str] | None = None) -> Job:
    made = builders.job(status)
    routes = tuple(AlertRoute.model_validate({"receiver": name, "when": when}) for name in names)
    return replace(made, spec=made.spec.model_copy(update={"alerts": routes}))


def failing(restarts: int) -> JobStatus:
    failure = {"reason": "RankKilled", "message": f"rank {restarts}", "slot": 0, "at": "2026-11-30T11:59:00Z"}
    return JobStatus.model_validate(
        {"state": "Restarting", "attempt": restarts + 1, "reason": "RankKilled", "lastFailure": failure,
         "restarts": {"total": restarts}}
    )  # fmt: skip


class TestDesk:
    async def told(self, folder: Path, *shown: Job, again: tuple[Job, ...] = ()) -> ChatServer:
        """`again` is shown to the desk of the next operator process."""
        async with chat_server() as server:
            for jobs in (shown, again):
                one = courier(folder, ReceiverType.WEBHOOK, server.url)
                desk = Desk([one], lambda: datetime.now(UTC))
                for job in jobs:
                    desk.show(job)
                await desk.flush(5.0)
        return server

    def kinds(self, server: ChatServer) -> list[str]:
        return [alert["kind"] for got in server.got for alert in got.body["alerts"]]

    async def test_what_changes_is_told_in_one_message(self, folder: Path) -> None:
        server = await self.told(
            folder, *(routed(["oncall"], s) for s in (JobStatus(), failing(1), failing(1), failing(2)))
        )
        assert len(server.got) == 1 and self.kinds(server) == ["Restarting", "Restarting"]

    async def test_a_new_operator_repeats_nothing(self, folder: Path) -> None:
        first, second = routed(["oncall"], JobStatus()), routed(["oncall"], failing(1))
        server = await self.told(folder, first, second, again=(second, second))
        assert self.kinds(server) == ["Restarting"]
        server = await self.told(folder, first, second, again=(second, routed(["oncall"], failing(2))))
        assert self.kinds(server) == ["Restarting", "Restarting"]

    @pytest.mark.parametrize(("names", "when", "count"), [
        (["oncall"], ["Failed", "Complete"], 0), (["oncall"], ["Restarting"], 1), (["other"], None, 0), ([], None, 0),
        (["oncall", "other", "oncall"], None, 1),
    ])  # fmt: skip
    async def test_only_who_wants_it_is_told(
        self, folder: Path, names: list[str], when: list[str] | None, count: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = await self.told(folder, routed(names, JobStatus(), when), routed(names, failing(1), when))
        assert len(self.kinds(server)) == count and caplog.text == ""

    @pytest.mark.parametrize("after", ["Training", None], ids=["goes on", "deleted"])
    async def test_a_wait_that_is_over_is_not_told(
        self, folder: Path, after: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(policy, "PATIENCE_SECONDS", 0.0)
        waiting = JobStatus(state=State.PENDING, reason=WAITING.reason)
        async with chat_server() as server:
            desk = Desk([courier(folder, ReceiverType.WEBHOOK, server.url)], lambda: NOW)
            desk.show(routed(["oncall"], JobStatus()))
            desk.show(routed(["oncall"], waiting))
            if after is None:
                desk.forget(builders.UID)
            else:
                desk.show(routed(["oncall"], waiting.model_copy(update={"state": State.RUNNING, "reason": after})))
            await desk.flush(5.0)
        assert server.got == []

    async def test_at_the_end_nobody_is_waited_for(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(delivery, "ANSWER_SECONDS", 30.0)
        async with chat_server(Reply(hangs=True)) as server:
            desk = Desk([courier(folder, ReceiverType.WEBHOOK, server.url)], lambda: NOW)
            desk.show(routed(["oncall"], JobStatus(restarts=RestartCounts())))
            desk.show(routed(["oncall"], failing(1)))
            async with asyncio.timeout(5):
                await desk.flush(0.2)
        assert len(server.got) == 1
