"""What each plan adds to the job's accounts: the time it kept, the steps it lost, the stages of the newest recovery. Pure.

Not a rule: `plan` calls it with what the rules decided. Levels only; what it needs of earlier passes is in the status.
"""

from dataclasses import replace

from ciuic_api.accounts import STAGES, Account, Stages
from ciuic_api.jobstatus import TERMINAL, JobStatus, LedgerEntry, State
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AgentState

from .. import account as accounts
from ..model import Plan, World
from ..status import changed

LAUNCHED = (AgentState.RUNNING, AgentState.EXITED)
LOADING = ("init", "restore")
"""Phases of a rank that has not begun to train."""


def accounted(world: World, decided: Plan) -> Plan:
    """The plan with the accounts in its status. A stage that is over is written at once, or it would seem to last longer."""
    before, after = world.job.status, decided.status
    if before.state in TERMINAL:
        return decided
    lost = _lost(before, after)
    after = _with_recovery(world, after, lost)
    if world.job.spec.training is not None:
        after = _with_account(world, before, after)
    after = changed(after, lost_steps=before.lost_steps + (lost or 0))
    passed = _newest_stages(after) != _newest_stages(decided.status) or _trains_again(before, after)
    return replace(decided, status=after, urgent=decided.urgent or passed)


# ---- recoveries


def _lost(before: JobStatus, after: JobStatus) -> int | None:
    """Steps to be done again, in the plan that lets ranks go; None in all others."""
    if before.released or not after.released:
        return None
    step = after.restored.step if after.restored is not None else 0
    return accounts.lost_steps(before.account, step) if before.account is not None else 0


def _with_recovery(world: World, after: JobStatus, lost: int | None) -> JobStatus:
    """The newest failure with what is known of its recovery by now."""
    entry = after.ledger[-1] if after.ledger else None
    if entry is None or entry.recovered or (known := entry.stages) is None or (failed_at := entry.failed_at) is None:
        return after
    if after.attempt != entry.attempt + 1:
        return after  # nothing is restarted, or a suspension came between
    if lost is not None:
        start = {"restored": after.restored, "tier": _tier(world, after), "lost_steps": lost}
        entry = entry.model_copy(update=start)
    over = _stages_over(world, after)
    stages = _stages(known, over, accounts.milliseconds_since(failed_at, world.now))
    entry = entry.model_copy(update={"stages": stages, "recovered": over == len(STAGES)})
    return changed(after, ledger=(*after.ledger[:-1], entry))


def _tier(world: World, after: JobStatus) -> str:
    if after.restored is None:
        return "none"
    checkpoint = CheckpointId(after.restored.step, after.restored.attempt)
    return "memory" if all(checkpoint in report.held for report in world.reports.values()) else "s3"


def _stages_over(world: World, after: JobStatus) -> int:
    """How many of STAGES are over. Each of them implies those before it."""
    reports = world.reports.values()
    if after.state in (State.RUNNING, State.COMPLETE) and after.released:
        return len(STAGES)
    if any(report.attempt != after.attempt or report.state is AgentState.KILLING for report in reports):
        return STAGES.index("kill")
    if not after.released:
        return STAGES.index("pods")
    if len(reports) < world.job.spec.nodes or any(report.state not in LAUNCHED for report in reports):
        return STAGES.index("restore")
    if any(rank.phase in LOADING for report in reports for rank in report.ranks):
        return STAGES.index("start")
    return STAGES.index("first_step")


def _stages(known: Stages, over: int, since_failure: int) -> Stages:
    """What has ended since the last look ended now, the first of it after all the time since then, the others after none."""
    times = {name: getattr(known, name) for name in STAGES}
    for name in STAGES[:over]:
        if times[name] is None:
            times[name] = max(0, since_failure - sum(time for time in times.values() if time is not None))
    return known.model_copy(update=times)


def _newest_stages(status: JobStatus) -> Stages | None:
    return status.ledger[-1].stages if status.ledger else None


# ---- time


def _trains_again(before: JobStatus, after: JobStatus) -> bool:
    """The first step of an attempt is seen: from here on time is kept."""
    if before.account is None or after.account is None:
        return False
    return before.account.attempt != after.account.attempt == after.attempt


def _with_account(world: World, before: JobStatus, after: JobStatus) -> JobStatus:
    account = before.account
    if account is None:
        if not after.released:
            return after
        start = after.restored.step if after.restored is not None else 0
        account = accounts.opened(world.now, max(start, _completed(world, before)))
    failure = _failure_of_this_pass(before, after)
    until = accounts.parse_moment(failure.failed_at) if failure is not None and failure.failed_at else world.now
    account = accounts.stepped(account, before.attempt, _completed(world, before), until)
    if after.released and not before.released:
        account = accounts.resumed(account, world.now)
        account = accounts.rolled_back(account, after.restored.step if after.restored is not None else 0)
    if after.state is State.SUSPENDED:
        account = accounts.suspended(account, world.now)
    at = account.marks[-1].at if _is_training(account, after) else accounts.clock(account, world.now)
    return changed(
        after, account=account, ettr=accounts.ettr(account, at), ettr_last_hour=accounts.ettr_last_hour(account, at)
    )


def _completed(world: World, before: JobStatus) -> int:
    """The step that every rank of the released attempt has completed; 0 when none is heard."""
    reports = [report for report in world.reports.values() if before.released and report.attempt == before.attempt]
    return min((rank.step for report in reports for rank in report.ranks), default=0)


def _failure_of_this_pass(before: JobStatus, after: JobStatus) -> LedgerEntry | None:
    """Each failure has an attempt of its own."""
    newest = after.ledger[-1] if after.ledger else None
    known = before.ledger[-1].attempt if before.ledger else 0
    return newest if newest is not None and newest.attempt > known else None


def _is_training(account: Account, after: JobStatus) -> bool:
    """Between two steps the share is the one at the last of them: time that may yet be kept is not called lost."""
    steps_on = after.state in (State.RUNNING, State.COMPLETE) and after.evidence_since is None
    return steps_on and account.attempt == after.attempt
