"""The cache of jobs and the minute's sweep: newest version wins, what vanished is retired, a dead stream is noticed."""

import copy
from typing import Any

import pytest

from ciuic_operator.errors import NotFound
from ciuic_operator.jobs import Jobs
from ciuic_operator.kube import JobKey
from ciuic_operator.sweep import EVERY_SECONDS, Sweep
from component_bodies import job_body


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def key(uid: str, version: int, name: str = "tiny") -> JobKey:
    return JobKey(namespace="team", name=name, uid=uid, resource_version=str(version))


def test_a_job_never_gets_older() -> None:
    jobs = Jobs()
    assert jobs.accept(job_body("u", 7, status={"attempt": 2}))
    assert not jobs.streamed(job_body("u", 5, status={"attempt": 1})), "the stream is behind our own write"
    assert not jobs.streamed(job_body("u", 7))
    found = jobs.get("u")
    assert found is not None and found.job.status.attempt == 2
    assert jobs.streamed(job_body("u", 10, status={"attempt": 2})), "versions are numbers, not text"


def test_a_name_belongs_to_its_newest_object() -> None:
    jobs = Jobs()
    jobs.accept(job_body("old", 5))
    jobs.accept(job_body("new", 9))
    jobs.gone("old")
    assert jobs.named("team", "tiny") == "new" and len(jobs) == 1
    jobs.gone("new")
    assert jobs.named("team", "tiny") is None


def test_a_list_retires_what_it_lacks_but_not_what_is_younger() -> None:
    jobs = Jobs()
    for uid, version in (("gone", 5), ("listed", 6), ("young", 30)):
        jobs.streamed(job_body(uid, version))
    assert jobs.compare(20, [key("listed", 6)]) == (["gone"], [])


def test_a_stream_that_owes_a_change_grows_old_and_is_read_around() -> None:
    clock = Clock()
    jobs = Jobs(clock)
    jobs.streamed(job_body("u", 5))
    assert jobs.compare(20, [key("u", 9)]) == ([], [key("u", 9)])
    jobs.accept(job_body("u", 9))
    clock.now = 400.0
    assert jobs.stream_age() == 400.0, "a live read is no sign of life of the stream"
    jobs.compare(30, [key("u", 25)])
    assert jobs.stream_age() == 400.0, "it has owed the first change all the time"
    jobs.streamed(job_body("u", 9))
    assert jobs.stream_age() == 0.0, "it lives, though it is a little behind"
    jobs.streamed(job_body("u", 25))
    assert jobs.compare(30, [key("u", 25)]) == ([], []) and jobs.stream_age() == 0.0


def test_our_own_write_does_not_hide_a_dead_stream() -> None:
    clock = Clock()
    jobs = Jobs(clock)
    jobs.streamed(job_body("u", 5))
    jobs.accept(job_body("u", 9))
    jobs.compare(20, [key("u", 9)])
    clock.now = 301.0
    assert jobs.stream_age() == 301.0
    jobs.compare(21, [])
    assert jobs.stream_age() == 0.0, "a job that is gone is owed by nobody"


@pytest.fixture
def bodies() -> dict[str, dict[str, Any]]:
    return {}


class Cluster:
    """What the sweep reads, and what it did."""

    def __init__(self, clock: Clock) -> None:
        self.version = 10
        self.bodies: dict[str, dict[str, Any]] = {}
        self.seen: list[str] = []
        self.gone: list[str] = []
        self.jobs = Jobs(clock)
        self.sweep = Sweep(
            jobs=self.jobs, list_jobs=self.list, read_job=self.read, seen=self._seen, gone=self._gone, clock=clock
        )

    async def list(self) -> tuple[int, tuple[JobKey, ...]]:
        metas = [body["metadata"] for body in self.bodies.values()]
        return self.version, tuple(key(m["uid"], int(m["resourceVersion"]), m["name"]) for m in metas)

    async def read(self, namespace: str, name: str) -> dict[str, Any]:
        if name == "vanishing":
            raise NotFound("gone meanwhile")
        return copy.deepcopy(next(body for body in self.bodies.values() if body["metadata"]["name"] == name))

    def _seen(self, body: Any) -> None:
        self.seen.append(body["metadata"]["uid"])
        self.jobs.accept(body)

    def _gone(self, uid: str) -> None:
        self.gone.append(uid)
        self.jobs.gone(uid)


async def test_the_sweep_does_what_the_stream_failed_to() -> None:
    clock = Clock()
    cluster = Cluster(clock)
    cluster.jobs.streamed(job_body("deleted", 3, name="b"))
    cluster.bodies = {"new": job_body("new", 8), "odd": job_body("odd", 9, name="vanishing")}
    clock.now = EVERY_SECONDS
    await cluster.sweep.once()
    assert cluster.gone == ["deleted"] and cluster.seen == ["new"]
    assert cluster.sweep.age() == 0.0
    clock.now += 299.0
    assert cluster.sweep.age() == 299.0


async def test_a_sweep_that_never_succeeds_grows_old() -> None:
    clock = Clock()
    cluster = Cluster(clock)
    clock.now = EVERY_SECONDS * 2
    assert cluster.sweep.age() == EVERY_SECONDS
