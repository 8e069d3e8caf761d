"""The loop of one job: observe, plan, execute, wait for a wake or for its time. One task per job, all in `Reconciler`.

Nothing is remembered from one pass to the next but what has been logged: each pass decides anew from what is.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ciuic_api.reasons import Reason

from .errors import Conflict, KubeError, LeaseLost, NotFound, Unavailable
from .events import Events
from .execute import Execute
from .jobs import Jobs
from .metrics import Metrics
from .model import Plan, World
from .observe import Observe

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.5, 30.0)
CONFLICTS_AT_ONCE = 3
"""Repeated at once; after more of them in a row somebody keeps writing, and a pause lets them finish."""
UNREADABLE_SECONDS = 300.0
DECISION_SHARE = 3.0
"""After a decision that took long (a job of thousands of pods) the loop rests this many times as long."""


@dataclass
class _Loop:
    uid: str
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    pass_since: float | None = None
    """When the pass that is under way began."""
    said: str = ""
    """The reason that was logged last: only changes are."""
    complained: str = ""
    """The same for what went wrong; empty when nothing does."""
    failures: int = 0


class Reconciler:
    def __init__(
        self,
        *,
        jobs: Jobs,
        observe: Observe,
        plan: Callable[[World], Plan],
        execute: Execute,
        events: Events,
        metrics: Metrics,
        read_job: Callable[[str, str], Awaitable[Mapping[str, Any]]],
        forget: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = jobs
        self._observe = observe
        self._plan = plan
        self._execute = execute
        self._events = events
        self._metrics = metrics
        self._read_job = read_job
        self._forget = forget
        """Called with the UID of a job that does not exist any more."""
        self._clock = clock
        self._loops: dict[str, _Loop] = {}
        self._retired: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.lease_lost = asyncio.Event()

    # ---- what others tell it

    def job_seen(self, body: Mapping[str, Any], from_stream: bool) -> None:
        """A job was listed, added or changed."""
        news = self._jobs.streamed(body) if from_stream else self._jobs.accept(body)
        uid = str(body["metadata"]["uid"])
        if uid not in self._loops and self._jobs.get(uid) is not None:
            loop = self._loops[uid] = _Loop(uid)
            loop.task = asyncio.create_task(self._run(loop), name=f"job {uid}")
        elif news:
            self.wake(uid)

    def job_gone(self, uid: str) -> None:
        """Deleted: its pods go by their owner references."""
        loop = self._loops.pop(uid, None)
        if loop is None:
            return
        parsed = self._jobs.get(uid)
        if parsed is not None:
            log.info("%s/%s: deleted", parsed.job.namespace, parsed.job.name)
        self._jobs.gone(uid)
        self._forget(uid)
        if loop.task is not None and loop.task is not asyncio.current_task():
            loop.task.cancel()
            self._retired.add(loop.task)
            loop.task.add_done_callback(self._retired.discard)

    def wake(self, uid: str) -> None:
        loop = self._loops.get(uid)
        if loop is not None:
            loop.woken.set()

    def stuck(self, seconds: float) -> list[str]:
        """Jobs whose loop has ended or has been in one pass for longer than this."""
        now = self._clock()
        return [
            loop.uid
            for loop in self._loops.values()
            if (loop.task is not None and loop.task.done())
            or (loop.pass_since is not None and now - loop.pass_since > seconds)
        ]

    async def stop(self, seconds: float) -> None:
        """Lets passes that are under way end, then ends the loops."""
        self._stopping = True
        busy = [loop.task for loop in self._loops.values() if loop.task is not None and loop.pass_since is not None]
        for loop in self._loops.values():
            if loop.task is not None and loop.pass_since is None:
                loop.task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=seconds)
        tasks = [loop.task for loop in self._loops.values() if loop.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the loop

    async def _run(self, loop: _Loop) -> None:
        while True:
            loop.woken.clear()
            loop.pass_since = self._clock()
            wait, patient = await self._guarded_pass(loop)
            loop.pass_since = None
            if wait is None or self._stopping:
                return
            if patient:
                await asyncio.sleep(wait)
            elif wait > 0:
                await _either(loop.woken, wait)

    async def _guarded_pass(self, loop: _Loop) -> tuple[float | None, bool]:
        """Seconds to wait, and whether wakes do not shorten it: after an error they would only repeat it."""
        try:
            wait = await self._pass(loop)
        except Conflict as conflict:
            self._metrics.conflict()
            log.debug("%s: %s", loop.uid, conflict)
            return await self._refresh(loop), False
        except LeaseLost:
            self.lease_lost.set()
            return BACKOFF_SECONDS[1], True
        except KubeError as error:
            return self._failed(loop, error, f"{type(error).__name__}: {error}"), True
        except Exception as error:  # a mistake of ours in one job must not stop the others
            sentence = f"{type(error).__name__}: {error}"
            if loop.complained != sentence:
                loop.complained = sentence
                log.exception("%s: a pass failed", self._name(loop.uid))
            return self._failed(loop, error, sentence), True
        loop.failures, loop.complained = 0, ""
        return wait, False

    async def _pass(self, loop: _Loop) -> float | None:
        seen = await self._observe(loop.uid)
        if seen is None:
            return None
        job = seen.world.job
        if seen.unreadable:
            if loop.said != seen.unreadable:
                loop.said = seen.unreadable
                log.warning("%s: left alone: %s", self._name(loop.uid), seen.unreadable)
            message = f"the operator leaves this job as it is: {seen.unreadable}"
            await self._events.emit(job, Reason.INVALID_SPEC, message, warning=True)
            return UNREADABLE_SECONDS
        began = self._clock()
        plan = self._plan(seen.world)
        rest = DECISION_SHARE * (self._clock() - began)
        self._metrics.decided(str(plan.reason))
        if loop.said != str(plan.reason):
            loop.said = str(plan.reason)
            attempt = plan.status.attempt
            log.info("%s: %s (attempt %d): %s", self._name(loop.uid), plan.reason, attempt, plan.message)
        wait = await self._execute(seen.world, seen.version, plan)
        await asyncio.sleep(rest)
        return wait

    async def _refresh(self, loop: _Loop) -> float | None:
        """After a conflict: what is the job now? Its stream will say so too, but nobody knows when."""
        parsed = self._jobs.get(loop.uid)
        if parsed is None:
            return None
        try:
            body = await self._read_job(parsed.job.namespace, parsed.job.name)
        except NotFound:
            self.job_gone(loop.uid)
            return None
        except KubeError as error:
            return self._failed(loop, error, f"{type(error).__name__}: {error}")
        if body["metadata"]["uid"] != loop.uid:
            self.job_gone(loop.uid)
            self.job_seen(body, from_stream=False)
            return None
        self._jobs.accept(body)
        loop.failures += 1
        return 0.0 if loop.failures <= CONFLICTS_AT_ONCE else self._backoff(loop)

    def _failed(self, loop: _Loop, error: Exception, sentence: str) -> float:
        self._metrics.failed(error)
        loop.failures += 1
        wait = self._backoff(loop)
        if loop.complained != sentence:
            loop.complained = sentence
            log.warning("%s: a pass failed, trying again: %s", self._name(loop.uid), sentence)
        return max(wait, error.retry_after) if isinstance(error, Unavailable) else wait

    @staticmethod
    def _backoff(loop: _Loop) -> float:
        low, high = BACKOFF_SECONDS
        return float(min(high, low * 2.0 ** min(loop.failures - 1, 10)))

    def _name(self, uid: str) -> str:
        parsed = self._jobs.get(uid)
        return uid if parsed is None else f"{parsed.job.namespace}/{parsed.job.name}"


async def _either(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
