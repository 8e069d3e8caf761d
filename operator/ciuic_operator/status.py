"""Status values: what changes from one to the next, conditions, time stamps. Pure; used by the planner."""

from datetime import UTC, datetime
from typing import Any

from ciuic_api.conditions import ConditionKind
from ciuic_api.jobstatus import Condition, JobStatus, LineageLink, State
from ciuic_api.reasons import Reason

LINEAGE_KEPT = 16
LEDGER_KEPT = 8
MESSAGE_MAX = 2000


def timestamp(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def seconds_since(text: str | None, now: datetime) -> float:
    """0 for a time that was never set."""
    return (now - parse_time(text)).total_seconds() if text else 0.0


def changed(status: JobStatus, **updates: Any) -> JobStatus:
    """A copy with fields replaced."""
    return status.model_copy(update=updates)


def in_state(
    status: JobStatus, state: State, reason: Reason, message: str, now: datetime, generation: int
) -> JobStatus:
    """The status with state, reason and message set and the conditions that follow from them."""
    since = status.state_since if status.state is state and status.state_since else timestamp(now)
    message = message[:MESSAGE_MAX]
    status = changed(
        status, state=state, state_since=since, reason=str(reason), message=message, observed_generation=generation
    )
    verdicts = {
        ConditionKind.ADMITTED: reason not in (Reason.INVALID_SPEC, Reason.WATCHDOG_CONTRADICTION),
        ConditionKind.RUNNING: state is State.RUNNING,
        ConditionKind.RESTARTING: state is State.RESTARTING,
        ConditionKind.SUSPENDED: state is State.SUSPENDED,
        ConditionKind.COMPLETE: state is State.COMPLETE,
        ConditionKind.FAILED: state is State.FAILED,
    }
    for kind, holds in verdicts.items():
        status = with_condition(status, kind, holds, str(reason), message, now)
    return status


def with_condition(
    status: JobStatus, kind: ConditionKind, holds: bool, reason: str, message: str, now: datetime
) -> JobStatus:
    """Reason and message of a condition are those of its last transition: a healthy tick changes nothing."""
    value = "True" if holds else "False"
    previous = next((c for c in status.conditions if c.type == kind), None)
    if previous is not None and previous.status == value:
        return status
    condition = Condition(
        type=str(kind),
        status=value,
        reason=reason,
        message=message if holds else "",
        last_transition_time=timestamp(now),
        observed_generation=status.observed_generation,
    )
    others = tuple(c for c in status.conditions if c.type != kind)
    return changed(status, conditions=tuple(sorted((*others, condition), key=lambda c: c.type)))


def with_link(status: JobStatus, link: LineageLink) -> JobStatus:
    return changed(status, lineage=(*status.lineage, link)[-LINEAGE_KEPT:])
