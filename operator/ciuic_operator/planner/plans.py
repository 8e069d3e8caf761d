"""How rules say what they decided. Pure."""

from ciuic_api.jobstatus import JobStatus, State
from ciuic_api.reasons import Reason

from ..model import Action, EmitEvent, Plan, World
from ..status import changed, in_state, timestamp

PASSING = frozenset({Reason.WAITING_FOR_AGENTS, Reason.WAITING_FOR_PODS, Reason.QUIESCING, Reason.CHOOSING_RESTORE})
"""Ordinary waits of a second or two: in the status, but not worth an event each."""


def say(
    world: World,
    status: JobStatus,
    state: State,
    reason: Reason,
    message: str,
    *,
    actions: tuple[Action, ...] = (),
    urgent: bool = False,
    warning: bool = False,
    recheck_after: float = 30.0,
) -> Plan:
    """A plan whose status says state, reason and message; a change of reason becomes an event."""
    before = world.job.status
    if status.started_at is None:
        status = changed(status, started_at=timestamp(world.now))
    status = in_state(status, state, reason, message, world.now, world.job.generation)
    if before.reason != str(reason) and reason not in PASSING:
        actions = (*actions, EmitEvent(reason=reason, message=message, warning=warning))
    return Plan(
        reason=reason,
        message=message,
        status=status,
        urgent=urgent or status.state is not before.state,
        actions=actions,
        recheck_after=recheck_after,
    )


def fail(world: World, status: JobStatus, reason: Reason, message: str) -> Plan:
    """The end: nothing is restarted any more."""
    status = changed(status, finished_at=timestamp(world.now))
    return say(world, status, State.FAILED, reason, message, urgent=True, warning=True, recheck_after=0.0)


def next_attempt(status: JobStatus) -> JobStatus:
    """The number is persisted before anybody hears of it. An attempt that never ran is nobody's parent."""
    parent = status.attempt if status.released else status.parent
    return changed(status, attempt=status.attempt + 1, released=False, parent=parent, restored=None)
