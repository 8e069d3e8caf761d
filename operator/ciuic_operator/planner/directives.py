"""What each agent is told, derived from the status that is being persisted. Pure; used by the planner."""

from collections.abc import Mapping

from ciuic_api.job import CleanPods
from ciuic_api.jobstatus import TERMINAL, JobStatus, State
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AgentState, Directive, Owner, Report, Restore

from ..health import current_pods
from ..manifests import GRACE_SECONDS
from ..model import World
from .restore import known_attempts


def directives(world: World, status: JobStatus) -> dict[str, Directive]:
    """By pod UID, for the living pod of each slot. `status` is the one to be persisted before these are sent."""
    pods = current_pods(world)
    reports = {slot: world.agents[pod.uid].report for slot, pod in pods.items() if pod.uid in world.agents}
    first = reports.get(0)
    rendezvous = first.rendezvous if first is not None and first.attempt == status.attempt else None
    told: dict[str, Directive] = {}
    for slot, pod in pods.items():
        report = reports.get(slot)
        waits_for_rendezvous = report is None or report.state is AgentState.QUIESCED
        if _runs(status) and rendezvous is None and waits_for_rendezvous:
            continue  # slot 0 has not been heard since this operator started; saying `run: false` could stop a healthy job
        told[pod.uid] = _directive(world, status, slot, report, rendezvous or "", first)
    return told


def _runs(status: JobStatus) -> bool:
    return status.released and status.state not in TERMINAL and status.state not in (State.SUSPENDING, State.SUSPENDED)


def _directive(
    world: World, status: JobStatus, slot: int, report: Report | None, rendezvous: str, first: Report | None
) -> Directive:
    job = world.job
    checkpoint = job.spec.checkpoint
    run = first.run if first is not None else None
    over = status.state in TERMINAL
    finish = over and job.spec.run_policy.clean_pods is not CleanPods.NONE
    return Directive(
        attempt=status.attempt,
        run=_runs(status),
        slot=slot,
        parent=status.parent,
        rendezvous=rendezvous,
        restore=_restore(status, report),
        lineage=known_attempts(status, run)[-32:],
        claim=slot == 0 and status.attempt > 0 and checkpoint is not None and checkpoint.path is not None,
        take_over=takeable(world, run.owner if run is not None else None),
        stop=status.released and (status.state is State.SUSPENDING or (over and not finish)),
        grace_seconds=GRACE_SECONDS,
        keep_last=checkpoint.keep.last if checkpoint is not None else 3,
        finish=finish,
    )


def _restore(status: JobStatus, report: Report | None) -> Restore | None:
    if not status.released or status.restored is None:
        return None
    checkpoint = CheckpointId(status.restored.step, status.restored.attempt)
    return Restore(checkpoint=checkpoint, tier="memory" if report is not None and checkpoint in report.held else "s3")


def takeable(world: World, owner: Owner | None) -> str:
    """UID of a dead owner whose run this job may take; empty when there is none, or it lives, or nobody knows."""
    if owner is None or owner.uid == world.job.uid:
        return ""
    if owner.cluster == world.cluster:
        return owner.uid if world.owner_alive is False else ""
    return owner.uid if world.job.take_over == owner.uid else ""


def by_slot(world: World) -> Mapping[int, Report]:
    """Newest report of each slot's living pod."""
    return {slot: world.agents[pod.uid].report for slot, pod in current_pods(world).items() if pod.uid in world.agents}
