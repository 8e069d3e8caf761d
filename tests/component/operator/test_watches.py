"""Store and Watch against scripted answers: what a server may send, in any order, breaks neither."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from ciuic_operator.errors import Gone, Silent, Unavailable
from ciuic_operator.kube import ListMeta, Page
from ciuic_operator.objects import PodRecord, pod_record
from ciuic_operator.watches import Store, Watch
from waiting import eventually

Change = tuple[str | None, str | None]


def body(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "namespace": "team",
            "resourceVersion": str(version),
            "labels": {"ciuic.io/job": "tiny", "ciuic.io/slot": "0", "ciuic.io/incarnation": "0"},
            "ownerReferences": [{"uid": "job-uid", "controller": True}],
        },
        "status": {"phase": phase},
    }


def event(kind: str, thing: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": thing})


def bookmark(version: int) -> bytes:
    return event("BOOKMARK", {"metadata": {"resourceVersion": str(version)}})


def page(*things: dict[str, Any], version: int) -> Page:
    return Page(
        metadata=ListMeta(resource_version=str(version)),
        items=tuple(msgspec.Raw(msgspec.json.encode(thing)) for thing in things),
    )


class Log:
    """A store and the changes it told of, by phase."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.store: Store[PodRecord] = Store(
            {"owner": lambda record: record.owner, "node": lambda record: record.pod.node}, self._changed
        )

    def _changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        self.changes.append((before.pod.phase if before else None, after.pod.phase if after else None))

    @property
    def names(self) -> set[str]:
        return {record.pod.name for record in self.store.by("owner", "job-uid")}


def record(name: str, version: int, phase: str = "Pending") -> PodRecord:
    return pod_record(msgspec.json.encode(body(name, version, phase)))


class TestStore:
    def test_keys_follow_an_object(self) -> None:
        log = Log()
        pod = body("a", 1)
        log.store.seen(pod_record(msgspec.json.encode(pod)))
        pod = body("a", 2) | {"spec": {"nodeName": "n1"}}
        log.store.seen(pod_record(msgspec.json.encode(pod)))
        assert not log.store.by("node", None) and len(log.store.by("node", "n1")) == 1
        log.store.gone("uid-a", 3)
        assert not log.store.by("node", "n1") and not log.store.by("owner", "job-uid") and len(log.store) == 0

    def test_what_was_created_is_there_before_the_watch_has_shown_it(self) -> None:
        log = Log()
        log.store.advance(10)
        log.store.learn(record("a", 11))
        assert log.names == {"a"}
        log.store.seen(record("a", 11))
        assert log.changes == [(None, "Pending")], "the watch's copy of the same version is no change"

    def test_an_answer_that_comes_late_does_not_bring_back_what_was_deleted(self) -> None:
        log = Log()
        log.store.seen(record("a", 11))
        log.store.gone("uid-a", 12)
        log.store.learn(record("a", 11))
        assert log.names == set()

    def test_an_older_version_never_replaces_a_newer_one(self) -> None:
        log = Log()
        log.store.learn(record("a", 20, "Running"))
        log.store.seen(record("a", 15, "Pending"))
        (pod,) = log.store.by("owner", "job-uid")
        assert pod.pod.phase == "Running"

    def test_a_list_deletes_what_it_lacks_but_not_what_is_younger(self) -> None:
        log = Log()
        log.store.seen(record("old", 5))
        log.store.learn(record("young", 30))
        log.store.replace([record("listed", 8)], version=20)
        assert log.names == {"listed", "young"} and ("Pending", None) in log.changes


@dataclass
class Server:
    """Plays a script: answers to lists and to watches, the latter line by line; a number is what the clock shows then."""

    lists: list[Page | Exception] = field(default_factory=list)
    streams: list[list[bytes | Exception | float]] = field(default_factory=list)
    now: float = 0.0
    since: list[str] = field(default_factory=list)
    """The versions that watches asked for."""
    silence: list[float] = field(default_factory=list)
    listed: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the script is over and the last stream is open."""

    async def pages(self) -> AsyncIterator[Page]:
        self.listed += 1
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        yield answer

    async def stream(self, version: str, silence_seconds: float) -> AsyncGenerator[bytes]:
        self.since.append(version)
        self.silence.append(silence_seconds)
        if not self.streams:
            self.idle.set()
            await asyncio.Event().wait()
        for line in self.streams.pop(0):
            if isinstance(line, Exception):
                raise line
            if isinstance(line, float):
                self.now = line
            else:
                yield line


@contextmanager
def watching(server: Server, log: Log) -> Iterator[Watch[PodRecord]]:
    watch = Watch(
        "pods",
        log.store,
        pod_record,
        server.pages,
        server.stream,
        backoff_seconds=(0.001, 0.002),
        clock=lambda: server.now,
    )
    task = asyncio.create_task(watch.run())
    try:
        yield watch
        assert not task.done(), "the watch has ended"
    finally:
        task.cancel()


async def played(server: Server) -> None:
    async with asyncio.timeout(10):
        await server.idle.wait()


async def test_list_then_watch() -> None:
    server, log = Server(), Log()
    server.lists = [page(body("a", 3), version=5)]
    server.streams = [[event("ADDED", body("b", 6)), event("MODIFIED", body("a", 7, "Running")), bookmark(50)]]
    with watching(server, log) as watch:
        await played(server)
        assert watch.synced.is_set() and log.names == {"a", "b"}
    assert server.since == ["5", "50"], "after a clean end it goes on from the bookmark"
    assert log.changes == [(None, "Pending"), (None, "Pending"), ("Pending", "Running")]


@pytest.mark.parametrize(
    "gone", [event("ERROR", {"code": 410, "message": "too old"}), Gone("410 too old")], ids=["in the stream", "answer"]
)
async def test_410_lists_again_and_deletes_what_vanished(gone: bytes | Exception) -> None:
    server, log = Server(), Log()
    server.lists = [page(body("a", 3), body("b", 4), version=5), page(body("b", 4), version=90)]
    server.streams = [[gone]]
    with watching(server, log):
        await played(server)
    assert server.since == ["5", "90"] and log.names == {"b"} and log.changes[-1] == ("Pending", None)


@pytest.mark.parametrize(
    "end",
    [
        Unavailable("connection reset"),
        event("ERROR", {"code": 500, "message": "etcd"}),
        b'{"type": "MODIFIED", "object": {"metadata"',
    ],
    ids=["broken", "error event", "cut line"],
)
async def test_a_broken_stream_goes_on_where_it_broke(end: bytes | Exception, caplog: pytest.LogCaptureFixture) -> None:
    server, log = Server(), Log()
    server.lists = [page(version=5)]
    server.streams = [[event("ADDED", body("a", 6)), bookmark(40), end], [end], [event("ADDED", body("b", 41))]]
    with watching(server, log):
        await played(server)
    assert server.since == ["5", "40", "40", "41"] and server.listed == 1 and log.names == {"a", "b"}
    assert sum("interrupted" in line for line in caplog.messages) == 1, "said once"


async def test_a_failing_list_is_tried_again() -> None:
    server, log = Server(), Log()
    server.lists = [Unavailable("refused"), Gone("continue"), Gone("continue"), page(body("a", 3), version=5)]
    with watching(server, log) as watch:
        await played(server)
        assert watch.synced.is_set() and log.names == {"a"}


async def test_an_object_that_can_not_be_read_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    server, log = Server(), Log()
    broken = body("broken", 6)
    broken["status"]["phase"] = 7
    server.lists = [page(broken, body("a", 3), version=5)]
    server.streams = [[event("MODIFIED", broken), event("ADDED", body("b", 8))]]
    with watching(server, log):
        await played(server)
    assert log.names == {"a", "b"} and sum("left out" in line for line in caplog.messages) == 1


async def test_an_open_but_silent_stream_is_no_progress() -> None:
    server, log = Server(), Log()
    server.lists = [page(version=5)]
    server.streams = [[301.0, Unavailable("broken")]]
    with watching(server, log) as watch:
        await played(server)
        assert watch.age() == 301, "opening the stream again counts for nothing"
    assert server.silence == [70.0, 70.0], "the transport ends a stream that is silent for longer"


async def test_in_a_quiet_cluster_silence_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    server, log = Server(), Log()
    server.lists = [page(body("a", 3), version=5), page(body("a", 3), version=5)]
    server.streams = [[70.0, Silent("nothing came for 70 s")]]
    with watching(server, log) as watch:
        await played(server)
        assert watch.age() == 0 and not caplog.messages, "the list says that nothing was missed"


async def test_a_stream_that_keeps_changes_to_itself_grows_old(caplog: pytest.LogCaptureFixture) -> None:
    server, log = Server(), Log()
    server.lists = [page(body("a", 3), version=5), page(body("a", 9, "Running"), version=9), page(version=12)]
    server.streams = [[70.0, Silent("nothing came for 70 s")], [140.0, Silent("nothing came for 70 s")]]
    with watching(server, log) as watch:
        await played(server)
        assert watch.age() == 140
    assert log.changes == [(None, "Pending"), ("Pending", "Running"), ("Running", None)], "nothing is missed for long"
    assert sum("silent about 1 changes" in line for line in caplog.messages) == 2


async def test_bookmarks_are_progress() -> None:
    server, log = Server(), Log()
    server.lists = [page(version=5)]
    now = [0.0]
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def stream(version: str, silence_seconds: float) -> AsyncGenerator[bytes]:
        while True:
            yield await lines.get()

    watch = Watch("pods", log.store, pod_record, server.pages, stream, clock=lambda: now[0])
    task = asyncio.create_task(watch.run())
    async with asyncio.timeout(10):
        await watch.synced.wait()
    now[0] = 200.0
    assert watch.age() == 200
    lines.put_nowait(bookmark(60))
    await eventually("the bookmark counts", lambda: watch.age() == 0)
    task.cancel()
