"""Rules about the end of a job: deleted, finished, over its deadline, done. Pure."""

from ciuic_api.job import CleanPods
from ciuic_api.jobstatus import TERMINAL, State
from ciuic_api.protocol import AgentState, Report
from ciuic_api.reasons import Reason

from ..health import faults
from ..model import Action, DeleteJob, DeletePod, Plan, World
from ..status import changed, seconds_since, timestamp
from .plans import fail, say

FINISH_LIMIT_SECONDS = 30.0
"""How long an agent may take to end after its job has ended, before its pod is deleted."""


def deleting(world: World) -> Plan | None:
    """Children go by their ownerReferences; nothing of ours holds the job back."""
    status = world.job.status
    if not world.job.deleting:
        return None
    return Plan(reason=Reason.POD_DELETED, message="the job is being deleted", status=status, recheck_after=3600.0)


def finished(world: World) -> Plan | None:
    """Agents end by directive, so that pods keep their logs; those that can not hear are deleted after a while."""
    job, status = world.job, world.job.status
    if status.state not in TERMINAL:
        return None
    over = seconds_since(status.finished_at, world.now)
    ttl, clean = job.spec.run_policy.ttl_seconds_after_finished, job.spec.run_policy.clean_pods
    actions: list[Action] = []
    if ttl is not None and over >= ttl:
        actions.append(DeleteJob())
    for pod in world.pods:
        ended = pod.phase in ("Succeeded", "Failed")
        lingers = clean is not CleanPods.NONE and not ended and over > FINISH_LIMIT_SECONDS
        if not pod.deleting and ((clean is CleanPods.ALL and ended) or lingers):
            actions.append(DeletePod(name=pod.name, uid=pod.uid, why="the job has ended"))
    living = any(not pod.deleting and pod.phase not in ("Succeeded", "Failed") for pod in world.pods)
    recheck = FINISH_LIMIT_SECONDS / 2 if living else 3600.0
    if ttl is not None:
        recheck = min(recheck, max(ttl - over, 1.0))
    reason = Reason.named(status.reason)
    return Plan(reason=reason, message=status.message, status=status, actions=tuple(actions), recheck_after=recheck)


def past_deadline(world: World) -> Plan | None:
    status, policy = world.job.status, world.job.spec.run_policy
    age = seconds_since(status.started_at, world.now)
    if policy.active_deadline_seconds is not None and age > policy.active_deadline_seconds:
        message = f"the job ran for {int(age)} s, longer than runPolicy.activeDeadlineSeconds allows"
        return fail(world, status, Reason.ACTIVE_DEADLINE, message)
    limit = policy.startup_deadline_seconds
    if limit is not None and status.state is State.PENDING and age > limit:
        message = f"the pods were not ready after {int(age)} s: {status.message}"
        return fail(world, status, Reason.STARTUP_DEADLINE, message)
    return None


def succeeded(world: World) -> Plan | None:
    """Complete only when the last checkpoint is safe: until then the pods that hold it stay."""
    status, reports = world.job.status, world.reports
    if not status.released:
        return None
    steps = world.job.spec.training.steps if world.job.spec.training is not None else 0
    safe = 0 < steps <= (status.last_committed.step if status.last_committed is not None else 0)
    if safe and faults(world):
        return _complete(world, "the last step's checkpoint is in S3")  # what is lost after that needs no restart
    if len(reports) < world.job.spec.nodes:
        return None
    if not all(_ended_well(report, status.attempt, steps) for report in reports.values()):
        return None
    if not all(report.uploads_done for report in reports.values()):
        message = "all ranks ended well; the last checkpoint is being uploaded"
        return say(world, status, State.RUNNING, Reason.TRAINING, message, recheck_after=5.0)
    return _complete(world, f"all {world.job.spec.world_size} ranks ended well")


def _complete(world: World, message: str) -> Plan:
    status = changed(world.job.status, finished_at=timestamp(world.now))
    if status.last_committed is not None:
        message += f"; the last checkpoint is step {status.last_committed.step}"
    return say(world, status, State.COMPLETE, Reason.COMPLETED, message, urgent=True, recheck_after=0.0)


def _ended_well(report: Report, attempt: int, steps: int) -> bool:
    ranks = report.ranks
    ended = report.attempt == attempt and report.state is AgentState.EXITED
    return ended and bool(ranks) and all(rank.exit_code == 0 and rank.step >= steps for rank in ranks)
