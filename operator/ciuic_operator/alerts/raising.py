"""What is worth telling in the change from one persisted status to the next. Pure; called by `desk`.

A change, not a state: a status that was there before this operator process began has been told by the one before.
"""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

from ciuic_api.alerting import AlertKind
from ciuic_api.jobstatus import TERMINAL, Failure, JobStatus, State
from ciuic_api.reasons import Reason

from ..model import Job
from ..status import seconds_since
from .model import Alert

NEEDS_SOMEBODY = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.WATCHDOG_CONTRADICTION,
        Reason.MEMORY_TIER_TOO_SMALL,
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_UNAVAILABLE,
        Reason.POD_CONFIG_ERROR,
        Reason.POD_FAILED,
        Reason.PREFLIGHT_FAILED,
        Reason.WAITING_FOR_STORE,
        Reason.STORE_REFUSED,
        Reason.RUN_OWNED,
        Reason.RUN_OWNED_ELSEWHERE,
    }
)
"""With one of these a job that has not ended waits, and mostly waits for ever."""

CONDITIONS = (AlertKind.CHECKPOINT_STALE, AlertKind.STALLED)
"""Told when the condition of the same name begins to hold, and when it ceases to."""


def waits(status: JobStatus) -> bool:
    """Whether an alert of kind Waiting about this job is still true."""
    return status.state not in (*TERMINAL, State.RUNNING) and status.reason in NEEDS_SOMEBODY


def raised(job: Job, before: JobStatus, now: datetime) -> Iterator[Alert]:
    """`job.status` is what was persisted after `before`."""
    after = job.status
    alert = partial(
        Alert,
        job_uid=job.uid,
        namespace=job.namespace,
        job=job.name,
        at=now,
        reason=after.reason,
        message=after.message,
        attempt=after.attempt,
        restarts=after.restarts.total,
    )
    # A script's steps are its own affair.
    step, committed, restored = None, None, None
    if job.spec.training is not None:
        step = after.highest_step
        committed = after.last_committed.step if after.last_committed is not None else 0
        restored = after.restored.step if after.restored is not None else 0
    failed_at = after.ledger[-1].step if after.ledger and step is not None else None
    failure = after.last_failure
    restarted = after.restarts.total > before.restarts.total

    if restarted and failure is not None:
        yield alert(kind=AlertKind.RESTARTING, step=step, **_told_of(failure))
    if step is not None and after.reason == Reason.NO_CHECKPOINT_YET and before.reason != after.reason:
        yield alert(kind=AlertKind.NO_CHECKPOINT_YET, step=failed_at, kept_step=restored)
    if failure is not None and failure.recovered_seconds is not None and not _same_recovery(failure, before):
        yield alert(
            kind=AlertKind.RECOVERED,
            step=failed_at,
            kept_step=restored,
            **(_told_of(failure) | {"seconds": failure.recovered_seconds}),
        )
    if waits(after) and before.reason != after.reason and not restarted:
        yield alert(kind=AlertKind.WAITING)
    for kind in CONDITIONS:
        held, holds = _condition(before, kind), _condition(after, kind)
        # A hang that ends by a restart does not move again by itself.
        if held[0] != holds[0] and not (restarted and kind is AlertKind.STALLED):
            yield alert(
                kind=kind, over=not holds[0], reason=str(kind), message=holds[1], step=step, kept_step=committed
            )
    if after.state in TERMINAL and before.state is not after.state:
        seconds = int(seconds_since(after.started_at, now))
        if after.state is State.COMPLETE:
            yield alert(kind=AlertKind.COMPLETE, step=step, seconds=seconds)
        else:
            # Older failures were recovered from: only the one that ended the job says where.
            where = _told_of(failure) if failure is not None and failure.at == after.finished_at else {}
            told = where | {"reason": after.reason, "message": after.message, "seconds": seconds}
            yield alert(kind=AlertKind.FAILED, step=step, kept_step=committed, **told)


def _told_of(failure: Failure) -> dict[str, Any]:
    return {
        "reason": failure.reason,
        "message": failure.message,
        "slot": failure.slot,
        "rank": failure.rank,
        "node": failure.node,
        "evidence": failure.evidence,
    }


def _same_recovery(failure: Failure, before: JobStatus) -> bool:
    known = before.last_failure
    return known is not None and (known.at, known.recovered_seconds) == (failure.at, failure.recovered_seconds)


def _condition(status: JobStatus, kind: AlertKind) -> tuple[bool, str]:
    found = next((condition for condition in status.conditions if condition.type == kind), None)
    return (False, "") if found is None else (found.status == "True", found.message)
