"""The Lease: one holder, a dead one is waited out, another release is refused, a lost one stops everything."""

import asyncio
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ciuic_operator.errors import AlreadyExists, Conflict, Forbidden, LeaseLost, LeaseRefused, Unavailable
from ciuic_operator.lease import Lease
from waiting import eventually

SECONDS = 0.5


@dataclass
class Server:
    """The Lease object of a cluster."""

    body: dict[str, Any] | None = None
    version: int = 0
    failing: Exception | None = None
    writes: list[str] = field(default_factory=list)
    """Holders in the order of their writes."""

    async def get_lease(self, seconds: float) -> dict[str, Any] | None:
        self._fail()
        return copy.deepcopy(self.body)

    async def create_lease(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        self._fail()
        if self.body is not None:
            raise AlreadyExists("leases exists")
        return self._store(body)

    async def update_lease(self, body: dict[str, Any], seconds: float) -> dict[str, Any]:
        self._fail()
        if body["metadata"].get("resourceVersion") != str(self.version):
            raise Conflict("modified")
        return self._store(body)

    def _store(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.body = copy.deepcopy(body)
        self.body["metadata"]["resourceVersion"] = str(self.version)
        self.writes.append(body["spec"]["holderIdentity"])
        return copy.deepcopy(self.body)

    def _fail(self) -> None:
        if self.failing is not None:
            raise self.failing

    @property
    def spec(self) -> dict[str, Any]:
        assert self.body is not None
        spec: dict[str, Any] = self.body["spec"]
        return spec


def lease(server: Server, release: str = "ns/a", pod: str = "pod-1", process: str = "p1") -> Lease:
    return Lease(server, release=release, pod_uid=pod, process=process, seconds=SECONDS)


@contextmanager
def kept(one: Lease) -> Iterator[asyncio.Task[None]]:
    task = asyncio.create_task(one.keep())
    try:
        yield task
    finally:
        task.cancel()


async def within(seconds: float, one: Lease) -> None:
    async with asyncio.timeout(seconds):
        await one.acquire()


async def test_a_free_lease_is_taken_and_renewed() -> None:
    server = Server()
    one = lease(server)
    assert not one.held()
    await within(1, one)
    assert one.held() and server.spec["holderIdentity"] == "ns/a/pod-1/p1"
    assert server.spec["leaseTransitions"] == 1
    assert server.body is not None and server.body["metadata"]["annotations"]["ciuic.io/release"] == "ns/a"
    renewed = server.spec["renewTime"]
    with kept(one):
        await eventually("renewed", lambda: server.spec["renewTime"] != renewed)
    assert server.spec["leaseTransitions"] == 1 and one.held()


async def test_without_renewal_it_stops_being_held_before_others_may_take_it() -> None:
    server, now = Server(), [0.0]
    one = Lease(server, release="ns/a", pod_uid="p", process="1", seconds=30.0, clock=lambda: now[0])
    await one.acquire()
    now[0] = 19.9
    assert one.held()
    now[0] = 20.1
    assert not one.held(), "ten seconds are left for a write that is under way"


async def test_a_stale_lease_of_the_own_release_is_waited_out() -> None:
    server = Server()
    await lease(server, pod="dead").acquire()
    successor = lease(server, pod="pod-2")
    started = asyncio.get_running_loop().time()
    await within(5, successor)
    assert asyncio.get_running_loop().time() - started > 0.9, "the second that the Lease itself says"
    assert successor.held() and server.spec["leaseTransitions"] == 2


async def test_a_living_holder_of_the_own_release_is_waited_for() -> None:
    server = Server()
    holder, second = lease(server), lease(server, pod="pod-2")
    await holder.acquire()
    with kept(holder):
        with pytest.raises(TimeoutError):
            await within(2.5, second)
        assert set(server.writes) == {"ns/a/pod-1/p1"}
        await holder.give_up()
        assert not holder.held()
        await within(1, second)
    assert second.held()


async def test_a_living_holder_of_another_release_is_named() -> None:
    server = Server()
    holder = lease(server, release="prod/first")
    await holder.acquire()
    with kept(holder), pytest.raises(LeaseRefused, match=r"release prod/first .*uninstall one of the two"):
        await within(5, lease(server, release="test/second", pod="pod-9"))
    assert set(server.writes) == {"prod/first/pod-1/p1"}


async def test_a_dead_holder_of_another_release_is_replaced() -> None:
    server = Server()
    await lease(server, release="prod/first").acquire()
    second = lease(server, release="test/second", pod="pod-9")
    await within(5, second)
    assert second.held() and server.body is not None
    assert server.body["metadata"]["annotations"]["ciuic.io/release"] == "test/second"


async def test_a_restarted_container_need_not_wait() -> None:
    server = Server()
    await lease(server, process="p1").acquire()
    again = lease(server, process="p2")
    await within(SECONDS * 0.5, again)
    assert again.held()


async def test_outside_a_cluster_nothing_tells_two_processes_apart() -> None:
    server = Server()
    await lease(server, pod="", process="p1").acquire()
    with pytest.raises(TimeoutError):
        await within(SECONDS * 0.5, lease(server, pod="", process="p2"))


async def test_a_given_up_lease_is_free_at_once() -> None:
    server = Server()
    one = lease(server, release="prod/first")
    await one.acquire()
    await one.give_up()
    await within(SECONDS * 0.5, lease(server, release="test/second", pod="pod-9"))


async def test_a_lease_that_another_took_is_lost() -> None:
    server = Server()
    one = lease(server)
    await one.acquire()
    with kept(one) as keeping:
        taken = copy.deepcopy(server.body)
        assert taken is not None
        taken["spec"]["holderIdentity"] = "ns/b/x/y"
        await server.update_lease(taken, 1.0)
        with pytest.raises(LeaseLost, match="ns/b/x/y"):
            await asyncio.wait_for(keeping, 5)
    assert not one.held()
    await one.give_up()
    assert server.spec["holderIdentity"] == "ns/b/x/y", "what is another's is not given up"


async def test_what_was_never_held_is_not_given_up() -> None:
    server = Server()
    await lease(server).give_up()
    assert server.writes == []


async def test_an_annotation_by_somebody_is_no_loss() -> None:
    server = Server()
    one = lease(server)
    await one.acquire()
    with kept(one) as keeping:
        touched = copy.deepcopy(server.body)
        assert touched is not None
        touched["metadata"]["annotations"]["note"] = "x"
        await server.update_lease(touched, 1.0)
        written = len(server.writes)
        await eventually("renewed", lambda: len(server.writes) > written)
        assert not keeping.done() and one.held()


async def test_a_server_that_does_not_answer_costs_the_lease_only_after_a_while() -> None:
    server = Server()
    one = lease(server)
    await one.acquire()
    with kept(one) as keeping:
        server.failing = Unavailable("no answer")
        await asyncio.sleep(SECONDS * 0.3)
        server.failing = None
        written = len(server.writes)
        await eventually("renewed", lambda: len(server.writes) > written)
        assert one.held()
        server.failing = Unavailable("no answer")
        with pytest.raises(LeaseLost, match="could not be renewed"):
            await asyncio.wait_for(keeping, 5)
    assert not one.held()


async def test_a_start_waits_for_the_server_but_not_for_rights() -> None:
    server = Server(failing=Unavailable("no answer"))
    one = lease(server)
    acquiring = asyncio.create_task(one.acquire())
    await asyncio.sleep(0.1)
    assert not acquiring.done()
    server.failing = None
    await asyncio.wait_for(acquiring, 2)
    server.failing = Forbidden("leases is forbidden")
    with pytest.raises(Forbidden):
        await within(2, lease(server, pod="pod-3"))
