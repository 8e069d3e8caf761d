"""The way in: is shown each status that was persisted and hands what is worth telling to the receivers. Never waits.

Built by `assembly`, shown by `execute`, run by `__main__`. What it knows is the status of each job that it was shown
last. The first one of a job tells nothing: an operator that has just started repeats nobody's alerts. One that is killed
between a write and its message loses the message; the event and the status remain.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime

import aiohttp

from ciuic_api.jobstatus import JobStatus

from ..model import Job
from .delivery import Courier
from .raising import raised, waits

log = logging.getLogger(__name__)


class Desk:
    def __init__(self, couriers: Iterable[Courier], now: Callable[[], datetime]) -> None:
        self._couriers = {courier.receiver.name: courier for courier in couriers}
        self._now = now
        self._shown: dict[str, JobStatus] = {}

    def show(self, job: Job) -> None:
        """`job.status` is in the API server. Showing the same again says nothing."""
        before = self._shown.get(job.uid)
        self._shown[job.uid] = job.status
        if before is None or before == job.status:
            return
        try:
            self._tell(job, before)
        except Exception:  # a mistake of ours in here must not hold up the job
            log.exception("%s/%s: alerts are not told", job.namespace, job.name)
        if waits(before) and not waits(job.status):
            self._withdraw(job.uid)

    def _tell(self, job: Job, before: JobStatus) -> None:
        for alert in raised(job, before, self._now()):
            for name in {route.receiver for route in job.spec.alerts or () if route.wants(alert.kind)}:
                # One that the chart does not define is said on the job itself, by the planner.
                if name in self._couriers:
                    self._couriers[name].put(alert)

    def forget(self, job_uid: str) -> None:
        self._shown.pop(job_uid, None)
        self._withdraw(job_uid)

    async def run(self) -> None:
        """Until it is cancelled."""
        # Proxies are those of the operator's environment: a cluster may have no other way to the chat's servers.
        async with aiohttp.ClientSession(trust_env=True) as session, asyncio.TaskGroup() as tasks:
            for courier in self._couriers.values():
                tasks.create_task(courier.run(session), name=f"alerts for {courier.receiver.name}")
            await asyncio.Event().wait()

    async def flush(self, seconds: float) -> None:
        """At the end of the process: what waits is sent now, or never."""
        async with aiohttp.ClientSession(trust_env=True) as session:
            tasks = [asyncio.create_task(courier.deliver(session)) for courier in self._couriers.values()]
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=seconds)
                for task in late:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def _withdraw(self, job_uid: str) -> None:
        for courier in self._couriers.values():
            courier.withdraw(job_uid)
