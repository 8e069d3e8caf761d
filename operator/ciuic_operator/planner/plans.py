"""How rules say what they decided. Pure."""

from dataclasses import replace

from ciuic_api.conditions import ConditionKind
from ciuic_api.jobstatus import JobStatus, State
from ciuic_api.reasons import Reason

from ..model import Action, EmitEvent, Plan, World
from ..status import changed, in_state, timestamp, with_condition

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


def with_warning(world: World, plan: Plan, kind: ConditionKind, message: str) -> Plan:
    """A condition named like the reason while there is a message, and an event when it begins or says another thing."""
    status, reason = plan.status, Reason.named(kind)
    told = next((condition for condition in status.conditions if condition.type == kind), None)
    if not message and told is None:
        return plan
    if told is not None and told.status == "True" and told.message != message:
        status = changed(status, conditions=tuple(c for c in status.conditions if c is not told))
        told = None
    status = with_condition(status, kind, bool(message), kind if message else "Over", message, world.now)
    if message and (told is None or told.status == "False"):
        event = EmitEvent(reason=reason, message=message, warning=True)
        return replace(plan, status=status, actions=(*plan.actions, event))
    return replace(plan, status=status)


def fail(world: World, status: JobStatus, reason: Reason, message: str) -> Plan:
    """The end: nothing is restarted any more."""
    status = changed(status, finished_at=timestamp(world.now))
    return say(world, status, State.FAILED, reason, message, urgent=True, warning=True, recheck_after=0.0)


def next_attempt(status: JobStatus) -> JobStatus:
    """The number is persisted before anybody hears of it. An attempt that never ran is nobody's parent."""
    parent = status.attempt if status.released else status.parent
    return changed(status, attempt=status.attempt + 1, released=False, parent=parent, restored=None)
