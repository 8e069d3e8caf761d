"""The rule about faults of the released attempt: restart, within budgets, or stop with a reason. Pure."""

from dataclasses import replace
from datetime import timedelta

from ciuic_api.accounts import Stages
from ciuic_api.jobstatus import Budget, Failure, JobStatus, LedgerEntry, Quarantined, State
from ciuic_api.reasons import Reason
from ciuic_api.watching import Restarts

from ..account import moment
from ..health import Fault, faults
from ..model import Plan, World
from ..status import LEDGER_KEPT, changed, parse_time, timestamp
from .plans import fail, next_attempt, say

CRASH_LOOP_FAILURES = 3
QUARANTINE_KEPT = 8


def failed(world: World) -> Plan | None:
    """A fault ends the attempt everywhere: under ZeRO-3 every rank holds a piece of the state."""
    status = world.job.status
    found = faults(world) if status.released else []
    return restart(world, status, _dated(world, found)) if found else None


def _dated(world: World, found: list[Fault]) -> Fault:
    """The cause, at the moment at which the first of the faults happened: the attempt got no further than that."""

    def heard(fault: Fault) -> float:
        return world.heard[fault.slot].heard_seconds_ago if fault.slot in world.heard else 0.0

    first = max(fault.seconds_ago + heard(fault) for fault in found)
    return replace(found[0], seconds_ago=first, known_seconds_ago=heard(found[0]))


def restart(world: World, status: JobStatus, fault: Fault) -> Plan:
    """The next attempt, or the end of the job: without watchdog, in a crash loop, over the budget."""
    job = world.job
    restarts = job.spec.watchdog.restarts if job.spec.watchdog else Restarts()
    status = _noted(world, status, fault, restarts)
    if not job.watchdog:
        message = (
            f"{fault.message}; the watchdog is off: delete the job and apply it again, with the label"
            ' ciuic.io/watchdog: "true" to have it restarted by itself'
        )
        return fail(world, status, Reason.WATCHDOG_OFF, message)
    if _is_crash_loop(status):
        message = f"{CRASH_LOOP_FAILURES} times without progress past step {status.highest_step}: {fault.message}"
        return fail(world, status, Reason.CRASH_LOOP, message)
    if status.budget is not None and status.budget.used > restarts.max:
        message = (
            f"more than watchdog.restarts.max ({restarts.max}) restarts within {restarts.window_seconds} s:"
            f" {fault.message}"
        )
        return fail(world, status, Reason.RESTART_BUDGET_SPENT, message)
    counts = status.restarts
    updates = {
        "total": counts.total + 1,
        "software": counts.software + fault.counted,
        "disruption": counts.disruption + (not fault.counted),
    }
    status = changed(next_attempt(status), restarts=counts.model_copy(update=updates))
    return say(
        world, status, State.RESTARTING, fault.reason, fault.message, urgent=True, warning=True, recheck_after=0.0
    )


def _noted(world: World, status: JobStatus, fault: Fault, restarts: Restarts) -> JobStatus:
    """The status with the failure in its ledger, and counted where it counts."""
    now = timestamp(world.now)
    known = round(1000 * min(fault.known_seconds_ago, fault.seconds_ago))
    detected = round(1000 * fault.seconds_ago) - known
    entry = LedgerEntry(
        at=now,
        reason=str(fault.reason),
        fingerprint=fault.fingerprint[:200],
        counted=fault.counted,
        step=status.highest_step,
        slot=fault.slot,
        rank=fault.rank,
        node=fault.node,
        attempt=status.attempt,
        failed_at=moment(world.now - timedelta(seconds=fault.seconds_ago)),
        stages=Stages(detect=detected, decide=known),
    )
    failure = Failure(
        reason=str(fault.reason),
        message=fault.message[:2000],
        slot=fault.slot,
        rank=fault.rank,
        node=fault.node,
        at=now,
        attempt=status.attempt,
        evidence=fault.evidence,
        detected_seconds=detected // 1000,
    )
    status = changed(status, last_failure=failure, ledger=(*status.ledger, entry)[-LEDGER_KEPT:])
    if fault.checkpoint is not None:
        bad = Quarantined(step=fault.checkpoint.step, attempt=fault.checkpoint.attempt, why=fault.message[:500])
        status = changed(status, quarantined=(*status.quarantined, bad)[-QUARANTINE_KEPT:])
    if fault.counted:
        spent = status.budget
        if spent is None or (world.now - parse_time(spent.since)).total_seconds() > restarts.window_seconds:
            spent = Budget(since=now, used=0)
        status = changed(status, budget=Budget(since=spent.since, used=spent.used + 1))
    return status


def _is_crash_loop(status: JobStatus) -> bool:
    """The same failure again and again while the highest completed step stays where it was."""
    recent = [entry for entry in status.ledger if entry.counted][-CRASH_LOOP_FAILURES:]
    return len(recent) == CRASH_LOOP_FAILURES and len({(entry.fingerprint, entry.step) for entry in recent}) == 1
