"""What reports add to the status, and the rule that leaves a healthy job alone. Pure."""

from collections.abc import Iterable

from ciuic_api.conditions import ConditionKind
from ciuic_api.jobstatus import CheckpointSeen, JobStatus, State
from ciuic_api.lineage import CheckpointId, on_lineage
from ciuic_api.protocol import AgentState, Report
from ciuic_api.reasons import Reason

from ..deadlines import learned, pace_key
from ..model import Plan, World
from ..status import changed, parse_time, timestamp, with_condition
from .hanging import settled
from .plans import say
from .restore import known_attempts

RECONNECT_SECONDS = 15.0
"""After its start the operator gives agents this long to connect before a condition says that they are not."""
STALE_SECONDS = 60.0
"""Uploads that fail for longer than this are said."""


def observed(world: World) -> JobStatus:
    """The status with what the reports say of steps, checkpoints and readiness. Never goes back on what is persisted."""
    status, reports = world.job.status, world.reports
    connected = sum(agent.connected for agent in world.heard.values())
    ready = f"{connected}/{world.job.spec.nodes}"
    status = changed(status, ready=ready, observed_generation=world.job.generation)
    now_running = [report for report in reports.values() if report.attempt == status.attempt and status.released]
    steps = [rank.step for report in now_running for rank in report.ranks]
    if steps:
        # A step is completed when every rank has completed it. No rank is ahead of another by more than one: what a
        # report of some moment ago says of the others can be older than that.
        status = changed(status, highest_step=max(status.highest_step, min(steps), max(steps) - 1))
    first = reports.get(0)
    if first is not None and first in now_running and first.metrics is not None:
        status = _with_metrics(status, first, world.job.spec.training.steps if world.job.spec.training else None)
    status = _with_checkpoints(world, status, dict(reports))
    status = _with_paces(world, status, now_running)
    status = _with_evidence(status, reports.values())
    failing = [report.upload for report in reports.values() if report.upload.failing_seconds > STALE_SECONDS]
    message = f"S3 has failed for {int(failing[0].failing_seconds)} s: {failing[0].message}" if failing else ""
    status = with_condition(
        status,
        ConditionKind.CHECKPOINT_STALE,
        bool(failing),
        "UploadsFail" if failing else "UploadsWork",
        message,
        world.now,
    )
    everybody = connected == world.job.spec.nodes
    if not everybody and world.hub_started_seconds_ago < RECONNECT_SECONDS:
        return status  # the operator has just started: agents that have not connected again are not lost
    reason = "AgentsConnected" if everybody else "AgentsMissing"
    return with_condition(status, ConditionKind.PODS_READY, everybody, reason, "every agent is connected", world.now)


def _with_metrics(status: JobStatus, first: Report, total: int | None) -> JobStatus:
    metrics = first.metrics
    assert metrics is not None
    rate = metrics.tokens_per_second
    updates: dict[str, object] = {"step": metrics.step, "total_steps": total}
    if metrics.loss is not None:
        updates["loss"] = f"{metrics.loss:.4f}"
    if metrics.eval_loss is not None:
        updates["eval_loss"] = f"{metrics.eval_loss:.4f}"
    if rate is not None:
        updates["tokens_per_second"] = int(rate)
    if total is not None and metrics.steps_per_second:
        updates["eta_seconds"] = int((total - metrics.step) / metrics.steps_per_second)
    return changed(status, **updates)


def _with_checkpoints(world: World, status: JobStatus, reports: dict[int, Report]) -> JobStatus:
    if status.attempt == 0:
        return status
    run = reports[0].run if 0 in reports else None
    tip = status.attempt if status.released else status.parent
    if tip is None:
        return status
    attempts = known_attempts(status, run)
    committed = list(run.manifests) if run is not None else []
    if 0 in reports and reports[0].upload.committed is not None:
        committed.append(reports[0].upload.committed)
    best = next(iter(on_lineage(committed, tip, attempts)), None)
    if best is not None and (status.last_committed is None or best.step > status.last_committed.step):
        status = changed(status, last_committed=_seen(best, "s3", world))
        status = changed(status, last_checkpoint=_newer(status.last_checkpoint, best, "s3", world))
    if len(reports) == world.job.spec.nodes:
        everywhere = set.intersection(*(set(report.held) for report in reports.values()))
        held = next(iter(on_lineage(everywhere, tip, attempts)), None)
        if held is not None:
            status = changed(status, last_checkpoint=_newer(status.last_checkpoint, held, "memory", world))
    return status


def _with_paces(world: World, status: JobStatus, reports: list[Report]) -> JobStatus:
    key = pace_key(world.job.spec)
    known = status.paces if status.paces_of == key else ()
    return changed(status, paces=learned(known, reports), paces_of=key)


def _with_evidence(status: JobStatus, reports: Iterable[Report]) -> JobStatus:
    """What an agent kept of the newest failure is known a moment after the failure."""
    failure = status.last_failure
    if failure is None or failure.evidence is not None:
        return status
    kept = (report.evidence for report in reports if report.evidence is not None)
    place = next((one.place for one in kept if one.place and one.attempt == failure.attempt), None)
    if place is None:
        return status
    return changed(status, last_failure=failure.model_copy(update={"evidence": place}))


def _newer(known: CheckpointSeen | None, found: CheckpointId, tier: str, world: World) -> CheckpointSeen:
    if known is not None and known.step >= found.step:
        return known
    return _seen(found, tier, world)


def _seen(checkpoint: CheckpointId, tier: str, world: World) -> CheckpointSeen:
    return CheckpointSeen(step=checkpoint.step, attempt=checkpoint.attempt, tier=tier, at=timestamp(world.now))


def running(world: World) -> Plan | None:
    """Nothing is wrong, or nothing is known: a healthy job is left alone, whatever is silent."""
    status = world.job.status
    if not status.released:
        return None
    status = settled(world, status)
    if status.state is State.RUNNING or _is_moving(world, status):
        message = f"all {world.job.spec.world_size} ranks train, attempt {status.attempt}"
        return say(world, _recovered(world, status), State.RUNNING, Reason.TRAINING, message, recheck_after=5.0)
    reason, message = Reason.named(status.reason), status.message
    if reason is Reason.STALLED:
        reason, message = Reason.RESTORING, f"attempt {status.attempt} starts"
    return say(world, status, status.state, reason, message, recheck_after=5.0)


def _is_moving(world: World, status: JobStatus) -> bool:
    """Every slot runs the attempt, and a step beyond the restored one is completed where steps are known."""
    reports = world.reports
    ready = (AgentState.RUNNING, AgentState.EXITED)
    if len(reports) < world.job.spec.nodes:
        return False
    if any(report.attempt != status.attempt or report.state not in ready for report in reports.values()):
        return False
    if world.job.spec.training is None:
        return True
    start = status.restored.step if status.restored else 0
    ended = all(report.state is AgentState.EXITED for report in reports.values())
    return ended or any(rank.step > start for report in reports.values() for rank in report.ranks)


def _recovered(world: World, status: JobStatus) -> JobStatus:
    failure = status.last_failure
    if failure is None or failure.recovered_seconds is not None:
        return status
    seconds = int((world.now - parse_time(failure.at)).total_seconds())
    return changed(status, last_failure=failure.model_copy(update={"recovered_seconds": seconds}))
