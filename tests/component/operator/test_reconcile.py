"""The loop of a job: what wakes it, what it does with errors, and that one job's trouble is nobody else's."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from ciuic_api.reasons import Reason
from ciuic_operator.errors import Conflict, LeaseLost, NotFound, Unavailable
from ciuic_operator.events import Events
from ciuic_operator.execute import Execute
from ciuic_operator.jobs import Jobs
from ciuic_operator.metrics import Metrics
from ciuic_operator.model import Plan, World
from ciuic_operator.observe import Observation, Observe
from ciuic_operator.reconcile import Reconciler
from component_bodies import job_body
from waiting import eventually

NOW = datetime(2026, 11, 30, tzinfo=UTC)


@dataclass
class Harness:
    jobs: Jobs = field(default_factory=Jobs)
    metrics: Metrics = field(default_factory=Metrics)
    passes: list[str] = field(default_factory=list)
    """Job UIDs in the order of their decisions."""
    results: list[float | Exception] = field(default_factory=list)
    """Of the executions to come: seconds to wait, or what they raise. Afterwards each waits for a wake."""
    live: dict[str, Any] | Exception | None = None
    """What a live read of the job gives."""
    unreadable: str = ""
    decide: Callable[[World], Reason] = lambda world: Reason.TRAINING
    hold: asyncio.Event | None = None
    """Executions wait for it."""
    forgotten: list[str] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(
            jobs=self.jobs,
            observe=cast(Observe, self.observe),
            plan=self.plan,
            execute=cast(Execute, self.execute),
            events=Events(self.create_event, lambda: NOW),
            metrics=self.metrics,
            read_job=self.read,
            forget=self.forgotten.append,
            clock=lambda: self.now,
        )

    async def observe(self, uid: str) -> Observation | None:
        parsed = self.jobs.get(uid)
        if parsed is None:
            return None
        return Observation(world=World(now=NOW, job=parsed.job), version=parsed.version, unreadable=self.unreadable)

    def plan(self, world: World) -> Plan:
        self.passes.append(world.job.uid)
        return Plan(reason=self.decide(world), message="m", status=world.job.status)

    async def execute(self, world: World, version: str, plan: Plan) -> float:
        if self.hold is not None:
            await self.hold.wait()
        result = self.results.pop(0) if self.results else 3600.0
        if isinstance(result, Exception):
            raise result
        return result

    async def read(self, namespace: str, name: str) -> dict[str, Any]:
        if isinstance(self.live, Exception):
            raise self.live
        assert self.live is not None
        return self.live

    async def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        self.events.append(body)

    async def passed(self, times: int) -> None:
        await eventually(f"{times} passes", lambda: len(self.passes) >= times)
        await self.settled()
        assert len(self.passes) == times, f"{len(self.passes)} passes"

    async def settled(self) -> None:
        """The loop has come to rest."""
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    made = Harness()
    yield made
    await made.reconciler.stop(1.0)


async def test_news_and_wakes_make_a_pass_and_old_news_do_not(harness: Harness) -> None:
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(1)
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    harness.reconciler.job_seen(job_body("u", 4), from_stream=True)
    await harness.passed(1)
    harness.reconciler.job_seen(job_body("u", 6), from_stream=True)
    await harness.passed(2)
    harness.reconciler.wake("u")
    await harness.passed(3)
    harness.reconciler.wake("nobody")


async def test_it_comes_back_by_itself_when_the_plan_says_so(harness: Harness) -> None:
    harness.results = [0.0, 0.01, 0.0]
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(4)


async def test_a_wake_during_a_pass_is_not_lost(harness: Harness) -> None:
    harness.hold = asyncio.Event()
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(1)
    harness.reconciler.wake("u")
    harness.hold.set()
    await harness.passed(2)


async def test_a_deleted_job_is_forgotten_and_its_loop_ends(harness: Harness) -> None:
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(1)
    harness.reconciler.job_gone("u")
    harness.reconciler.wake("u")
    await harness.passed(1)
    assert harness.forgotten == ["u"] and harness.jobs.get("u") is None and not harness.reconciler.stuck(0.0)


async def test_a_conflict_reads_the_job_and_decides_anew(harness: Harness) -> None:
    harness.results = [Conflict("modified")]
    harness.live = job_body("u", 9, status={"attempt": 3})
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(2)
    found = harness.jobs.get("u")
    assert found is not None and found.version == "9"
    assert "deepseekjob_status_conflicts_total 1.0" in harness.metrics.text().decode()


async def test_a_conflict_over_a_deleted_job_ends_its_loop(harness: Harness) -> None:
    harness.results = [Conflict("modified")]
    harness.live = NotFound("gone")
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await eventually("forgotten", lambda: harness.forgotten == ["u"])
    await harness.passed(1)


async def test_a_conflict_over_a_job_that_was_made_anew_serves_the_new_one(harness: Harness) -> None:
    harness.results = [Conflict("modified")]
    harness.live = job_body("new", 9)
    harness.reconciler.job_seen(job_body("old", 5), from_stream=True)
    await harness.passed(2)
    assert harness.passes == ["old", "new"] and harness.forgotten == ["old"]


async def test_endless_conflicts_slow_down(harness: Harness) -> None:
    harness.results = [Conflict("modified")] * 50
    harness.live = job_body("u", 5)
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await eventually("some passes", lambda: len(harness.passes) >= 4)
    await harness.settled()
    assert len(harness.passes) == 4


async def test_an_error_backs_off_and_wakes_do_not_hammer(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    harness.results = [Unavailable("POST /x: no answer")] * 2
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(1)
    for _ in range(100):
        harness.reconciler.wake("u")
        await asyncio.sleep(0)
    assert len(harness.passes) == 1
    await eventually("it tries again", lambda: len(harness.passes) == 3)
    failed = [line for line in caplog.messages if "a pass failed" in line]
    assert len(failed) == 1 and "no answer" in failed[0], "said once, however often it fails"
    assert sum("Training" in line for line in caplog.messages) == 1, "the reason did not change"


async def test_a_mistake_in_one_job_does_not_stop_the_others(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    def decide(world: World) -> Reason:
        if world.job.uid == "bad":
            raise ZeroDivisionError("a mistake of ours")
        return Reason.TRAINING

    harness.decide = decide
    harness.reconciler.job_seen(job_body("bad", 5, name="bad"), from_stream=True)
    harness.reconciler.job_seen(job_body("good", 5, name="good"), from_stream=True)
    await eventually("the good one passes", lambda: "good" in harness.passes)
    await eventually("the bad one is tried again", lambda: harness.passes.count("bad") == 2)
    assert caplog.text.count("Traceback") == 1, "with its place, once"
    assert 'deepseekjob_reconcile_errors_total{kind="ZeroDivisionError"}' in harness.metrics.text().decode()


async def test_a_lost_lease_is_told_and_nothing_is_tried(harness: Harness) -> None:
    harness.results = [LeaseLost("not held")]
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    async with asyncio.timeout(5):
        await harness.reconciler.lease_lost.wait()
    harness.reconciler.wake("u")
    await harness.passed(1)


async def test_what_can_not_be_read_is_left_alone_and_said(harness: Harness) -> None:
    harness.unreadable = "status.attempt is 'four': not a number"
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await eventually("an event", lambda: harness.events)
    harness.reconciler.wake("u")
    await harness.settled()
    assert harness.passes == [] and len(harness.events) == 1
    assert "status.attempt" in harness.events[0]["message"] and harness.events[0]["type"] == "Warning"
    harness.unreadable = ""
    harness.reconciler.wake("u")
    await harness.passed(1)


async def test_a_pass_that_never_ends_is_stuck(harness: Harness) -> None:
    harness.hold = asyncio.Event()
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(1)
    assert harness.reconciler.stuck(300.0) == []
    harness.now = 301.0
    assert harness.reconciler.stuck(300.0) == ["u"]
    harness.hold.set()
    await harness.settled()
    assert harness.reconciler.stuck(300.0) == [], "waiting is not being stuck"


async def test_a_stop_lets_a_pass_end(harness: Harness) -> None:
    harness.hold = asyncio.Event()
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    harness.reconciler.job_seen(job_body("idle", 5, name="idle"), from_stream=True)
    await harness.passed(2)
    stopping = asyncio.create_task(harness.reconciler.stop(5.0))
    await harness.settled()
    assert not stopping.done()
    harness.hold.set()
    async with asyncio.timeout(2):
        await stopping
    harness.reconciler.wake("u")
    await harness.passed(2)


async def test_only_a_change_of_reason_is_logged(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    reasons = [Reason.TRAINING, Reason.TRAINING, Reason.RANK_KILLED, Reason.TRAINING]
    harness.decide = lambda world: reasons[min(len(harness.passes), 4) - 1]
    harness.results = [0.0, 0.0, 0.0]
    harness.reconciler.job_seen(job_body("u", 5), from_stream=True)
    await harness.passed(4)
    said = [line.split(": ")[1] for line in caplog.messages if "attempt" in line]
    assert said == ["Training (attempt 0)", "RankKilled (attempt 0)", "Training (attempt 0)"]
    assert 'deepseekjob_reconciles_total{reason="Training"} 3.0' in harness.metrics.text().decode()
