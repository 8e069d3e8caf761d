"""What each agent is told, derived from the status that is being persisted. Pure; used by the planner."""

from msgspec.structs import replace

from ciuic_api.job import CleanPods
from ciuic_api.jobstatus import TERMINAL, JobStatus, State
from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AgentState, Directive, Owner, Restore

from ..manifests import GRACE_SECONDS
from ..model import World
from .restore import known_attempts


def directives(world: World, status: JobStatus) -> dict[str, Directive]:
    """By pod UID, for the living pod of each slot. `status` is the one to be persisted before these are sent."""
    first = world.reports.get(0)
    rendezvous = first.rendezvous if first is not None and first.attempt == status.attempt else None
    common = _common(world, status, rendezvous or "")
    checkpoint = None
    if status.released and status.restored is not None:
        checkpoint = CheckpointId(status.restored.step, status.restored.attempt)
    told: dict[str, Directive] = {}
    for slot, pod in world.current.items():
        report = world.reports.get(slot)
        if common.run and rendezvous is None and (report is None or report.state is AgentState.QUIESCED):
            continue  # slot 0 has not been heard since this operator started: nobody knows where to meet
        restore = None
        if checkpoint is not None:
            in_memory = report is not None and checkpoint in report.held
            restore = Restore(checkpoint=checkpoint, tier="memory" if in_memory else "s3")
        told[pod.uid] = replace(common, slot=slot, restore=restore, claim=slot == 0 and common.claim)
    return told


def _common(world: World, status: JobStatus, rendezvous: str) -> Directive:
    """What is the same for all slots; `claim` is for slot 0."""
    job = world.job
    checkpoint = job.spec.checkpoint
    first = world.reports.get(0)
    run = first.run if first is not None else None
    over = status.state in TERMINAL
    suspending = status.state in (State.SUSPENDING, State.SUSPENDED)
    finish = over and job.spec.run_policy.clean_pods is not CleanPods.NONE
    return Directive(
        attempt=status.attempt,
        run=status.released and not over and not suspending,
        slot=-1,
        parent=status.parent,
        rendezvous=rendezvous,
        lineage=known_attempts(status, run)[-32:],
        claim=status.attempt > 0 and checkpoint is not None and checkpoint.path is not None,
        take_over=takeable(world, run.owner if run is not None else None),
        stop=status.released and (suspending or (over and not finish)),
        grace_seconds=GRACE_SECONDS,
        keep_last=checkpoint.keep.last if checkpoint is not None else 3,
        evidence=status.evidence_number if status.evidence_since is not None else 0,
        finish=finish,
    )


def takeable(world: World, owner: Owner | None) -> str:
    """UID of a dead owner whose run this job may take; empty when there is none, or it lives, or nobody knows."""
    if owner is None or owner.uid == world.job.uid:
        return ""
    if owner.cluster == world.cluster:
        return owner.uid if world.owner_alive is False else ""
    return owner.uid if world.job.take_over == owner.uid else ""
