"""Carries out a plan: writes the status, then publishes directives and acts. Called by `reconcile`.

Persist, then act. What the plan numbers (an attempt, a pod) is in the status before anybody hears of it, so that no
number is used twice however often the operator dies. When the write meets a newer object, nothing else is done.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, Protocol

from ciuic_api.jobstatus import TERMINAL, JobStatus
from ciuic_api.names import pod_name
from ciuic_api.protocol import Directive

from .errors import AlreadyExists, Conflict, Forbidden, Invalid, KubeError, NotFound, Unavailable
from .events import Events
from .jobs import Jobs
from .kube import JsonObject
from .metrics import Metrics
from .model import Action, CreatePod, DeleteJob, DeletePod, EmitEvent, Job, Plan, PodBody, World
from .objects import PodRecord
from .obstacles import Obstacles
from .settings import ExitHook
from .watches import Store

log = logging.getLogger(__name__)

AT_ONCE = 64
"""Actions in flight, of all jobs together."""
TRANSITION_SECONDS = 1.0
"""Between two writes that nothing waits for, even when they say something new: a flapping reason is no reason to flood."""
PROGRESS_SECONDS = 5.0
JOBS_PER_SECOND = 20.0
"""Progress writes a second at most, however many jobs there are."""
HOOK_EXIT_CODE = 86

PROGRESS_FIELDS = (
    "message",
    "step",
    "total_steps",
    "highest_step",
    "loss",
    "eval_loss",
    "tokens_per_second",
    "eta_seconds",
    "ready",
    "last_checkpoint",
    "last_committed",
    "account",
    "ettr",
    "ettr_last_hour",
)
"""A status that differs in these alone waits for its turn; any other difference is written at once."""
PERSISTED_FIELDS = ("attempt", "released", "next_incarnation")
"""A difference in these is never acted on before it is written, whatever the plan says of its urgency."""


class Calls(Protocol):
    """What of Kube is needed here."""

    async def get_job(self, namespace: str, name: str) -> JsonObject: ...
    async def write_job_status(self, namespace: str, name: str, version: str, status: JsonObject) -> JsonObject: ...
    async def delete_job(self, namespace: str, name: str, uid: str) -> None: ...
    async def get_pod(self, namespace: str, name: str) -> PodRecord: ...
    async def create_pod(self, namespace: str, body: PodBody) -> PodRecord: ...
    async def delete_pod(self, namespace: str, name: str, uid: str, grace_seconds: int | None) -> None: ...


class Execute:
    def __init__(
        self,
        *,
        kube: Calls,
        jobs: Jobs,
        pods: Store[PodRecord],
        render: Callable[[Job, int, int], PodBody],
        publish: Callable[[str, Mapping[str, Directive]], None],
        obstacles: Obstacles,
        events: Events,
        metrics: Metrics,
        persisted: Callable[[Job], None],
        exit_hook: ExitHook | None = None,
        end_process: Callable[[int], None] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._jobs = jobs
        self._pods = pods
        self._render = render
        """Job, slot and incarnation to the pod's body."""
        self._publish = publish
        self._obstacles = obstacles
        self._events = events
        self._metrics = metrics
        self._persisted = persisted
        """Told of each job as it is in the API server; the same may come again."""
        self._exit_hook = exit_hook
        self._end_process = end_process
        self._clock = clock
        self._written_at: dict[str, float] = {}
        self._started_at = clock()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def __call__(self, world: World, version: str, plan: Plan) -> float:
        """Seconds after which to look again at the latest. Raises Conflict when the job is not what the plan rests on."""
        job = world.job
        # Also what was written although the answer got lost.
        self._persisted(job)
        due_in = self._due_in(job, plan)
        changed = plan.status != job.status
        write = changed and due_in <= 0
        if write:
            await self._write(job, version, plan.status)
            self._maybe_exit("after-persist", job.status, plan.status)
        elif any(isinstance(action, CreatePod) for action in plan.actions):
            await self._confirm(job)
        # Before the actions: thousands of pods take a while, and nobody needs to wait for them to end old ranks.
        self._publish(job.uid, plan.directives)
        errors = await self._act(job, plan.actions)
        if write:
            self._maybe_exit("after-act", job.status, plan.status)
        if errors:
            raise errors[0]
        if changed and not write:
            return min(plan.recheck_after, due_in)
        moving = plan.status.state not in TERMINAL and any(agent.connected for agent in world.agents.values())
        return min(plan.recheck_after, self._progress_seconds()) if moving else plan.recheck_after

    def forget(self, job_uid: str) -> None:
        self._written_at.pop(job_uid, None)

    # ---- persist

    def _progress_seconds(self) -> float:
        return max(PROGRESS_SECONDS, len(self._jobs) / JOBS_PER_SECOND)

    def _due_in(self, job: Job, plan: Plan) -> float:
        """Seconds until the plan's status is to be written, if it differs."""
        if plan.urgent or any(getattr(plan.status, f) != getattr(job.status, f) for f in PERSISTED_FIELDS):
            return 0.0
        if any(isinstance(action, DeletePod) for action in plan.actions):
            return 0.0  # with the pod goes what its agent told last
        pause = TRANSITION_SECONDS if is_transition(job.status, plan.status) else self._progress_seconds()
        # After a start all jobs would be due at once, most of them only because their agents have not come back yet.
        return self._written_at.get(job.uid, self._started_at) + pause - self._clock()

    async def _write(self, job: Job, version: str, status: JobStatus) -> None:
        try:
            body = await self._kube.write_job_status(job.namespace, job.name, version, status.to_json())
        except NotFound as error:
            raise Conflict(str(error)) from error
        finally:
            # After a failure too: the next try is the loop's, at its own pace.
            self._written_at[job.uid] = self._clock()
        self._jobs.accept(body)
        self._metrics.status_written(job.status, status)
        self._persisted(replace(job, status=status))
        if "deletionTimestamp" in body["metadata"] and not job.deleting:
            raise Conflict(f"job {job.namespace}/{job.name} is being deleted")

    async def _confirm(self, job: Job) -> None:
        """Before pods are created without a write that would have noticed: is it still the same job object?"""
        try:
            body = await self._kube.get_job(job.namespace, job.name)
        except NotFound as error:
            raise Conflict(str(error)) from error
        meta = body["metadata"]
        if meta["uid"] != job.uid or "deletionTimestamp" in meta:
            raise Conflict(f"job {job.namespace}/{job.name} was deleted")

    # ---- act

    async def _act(self, job: Job, actions: tuple[Action, ...]) -> list[KubeError]:
        """All at once; what failed is told, the rest is done."""
        results = await asyncio.gather(*(self._one(job, action) for action in actions), return_exceptions=True)
        errors: list[KubeError] = []
        for result in results:
            if isinstance(result, KubeError):
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
        return errors

    async def _one(self, job: Job, action: Action) -> None:
        async with self._slots:
            match action:
                case CreatePod():
                    await self._create_pod(job, action)
                case DeletePod():
                    await self._delete_pod(job, action)
                case EmitEvent():
                    await self._events.emit(job, action.reason, action.message, action.warning)
                case DeleteJob():
                    await self._delete_job(job)

    async def _create_pod(self, job: Job, action: CreatePod) -> None:
        name = pod_name(job.name, action.slot, action.incarnation)
        try:
            record = await self._kube.create_pod(job.namespace, self._render(job, action.slot, action.incarnation))
        except AlreadyExists:
            record = await self._kube.get_pod(job.namespace, name)
            if record.owner != job.uid:
                self._obstacles.name_taken(job.uid, name)
                return
        except (Forbidden, Invalid, Unavailable) as error:
            # Quota, an admission policy, a webhook that fails: the server's words tell the user what to change. Without
            # the pod's number they are the same each time.
            words = error.words.replace(f'"{name}" ', "")
            if words:
                self._obstacles.refuse(job.uid, words)
                raise type(error)(f"pods are refused: {words}", words) from error
            raise
        self._obstacles.refuse(job.uid, "")
        # The next decision must see it, or the slot would get another pod.
        self._pods.learn(record)

    async def _delete_pod(self, job: Job, action: DeletePod) -> None:
        try:
            await self._kube.delete_pod(job.namespace, action.name, action.uid, action.grace_seconds)
            log.info("%s/%s: pod %s deleted: %s", job.namespace, job.name, action.name, action.why)
        except (NotFound, Conflict):
            self._pods.gone(action.uid)

    async def _delete_job(self, job: Job) -> None:
        try:
            await self._kube.delete_job(job.namespace, job.name, job.uid)
        except (NotFound, Conflict) as error:
            log.debug("%s/%s is gone already: %s", job.namespace, job.name, error)

    def _maybe_exit(self, point: Literal["after-persist", "after-act"], before: JobStatus, after: JobStatus) -> None:
        """The test hook of settings.ExitHook."""
        hook = self._exit_hook
        if hook is None or hook.point != point:
            return
        numbers = {
            "attempt": (before.attempt, after.attempt),
            "nextIncarnation": (before.next_incarnation, after.next_incarnation),
        }
        if hook.due(*numbers[hook.field]):
            log.warning("ending the process %s, as CIUIC_TEST_EXIT_AT asks", point)
            self._end_process(HOOK_EXIT_CODE)


def is_transition(before: JobStatus, after: JobStatus) -> bool:
    progress = {name: getattr(before, name) for name in PROGRESS_FIELDS}
    return after.model_copy(update=progress) != before
