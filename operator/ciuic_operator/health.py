"""What is wrong with the current attempt, and where. Pure; the planner decides what follows from it.

Only facts count: a pod's or node's state in Kubernetes, or what an agent itself reports. Silence is no fact.
"""

import signal
from dataclasses import dataclass

from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import AGENT_RESTARTED, STOPPED_EXIT_CODE, AgentState, RankState, Report
from ciuic_api.reasons import Reason

from .model import Pod, World

DISRUPTIONS = frozenset({Reason.POD_DELETED, Reason.POD_EVICTED, Reason.NODE_LOST})
"""Not the job's doing: restarts that they cause are free."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    reason: Reason
    message: str
    slot: int
    rank: int | None = None
    node: str | None = None
    fingerprint: str = ""
    seconds_ago: float = 0.0
    known_seconds_ago: float = 0.0
    """Since when the operator could know of it."""
    evidence: str | None = None
    """Where more can be read."""
    checkpoint: CheckpointId | None = None
    """The checkpoint that could not be restored."""

    @property
    def counted(self) -> bool:
        return self.reason not in DISRUPTIONS


def faults(world: World) -> list[Fault]:
    """Faults of the released attempt, the likeliest cause first.

    When one rank dies its peers fail soon after with broken connections: what failed first caused the rest, and what
    Kubernetes says of a pod explains what its agent says.
    """
    status = world.job.status
    found: list[Fault] = []
    current, reports = world.current, world.reports
    steps = world.job.spec.training.steps if world.job.spec.training is not None else 0
    for slot in range(world.job.spec.nodes):
        if slot not in current:
            found.append(_pod_fault(world, slot))
        elif (report := reports.get(slot)) is not None and not _is_well(report, status.attempt):
            found.extend(_agent_faults(report, current[slot], slot, status.attempt, steps))
    gone = [fault for fault in found if fault.rank is None and fault.reason is not Reason.AGENT_RESTARTED]
    rest = [fault for fault in found if fault not in gone]
    return gone + sorted(
        rest, key=lambda fault: (-fault.seconds_ago, fault.reason is not Reason.RANK_KILLED, fault.slot)
    )


def _pod_fault(world: World, slot: int) -> Fault:
    dead = max((pod for pod in world.pods if pod.slot == slot), key=lambda pod: pod.incarnation, default=None)
    if dead is None:
        return Fault(
            reason=Reason.POD_DELETED, slot=slot, message=f"the pod of slot {slot} is gone", fingerprint="gone"
        )
    node = world.nodes.get(dead.node or "")
    where = f"pod {dead.name} (slot {slot}, node {dead.node or 'none'})"
    why = f": {dead.exit_message}" if dead.exit_message else ""
    if dead.status_reason in (
        "Evicted",
        "Preempting",
        "PreemptionByScheduler",
        "EvictionByEvictionAPI",
        "TerminationByKubelet",
    ):
        reason, verb = Reason.POD_EVICTED, f"was evicted ({dead.status_reason}){why}"
    elif (node is not None and node.unreachable) or dead.status_reason == "DeletionByTaintManager":
        reason, verb = Reason.NODE_LOST, "is lost with its node"
    elif dead.deleting:
        reason, verb = Reason.POD_DELETED, "was deleted"
    else:
        reason, verb = Reason.POD_FAILED, f"ended in phase {dead.phase}{why}"
    return Fault(
        reason=reason, slot=slot, node=dead.node, message=f"{where} {verb}", fingerprint=f"{reason}/{dead.phase}"
    )


def _is_well(report: Report, attempt: int) -> bool:
    """All ranks run: what nearly every report of a large job says."""
    return (
        report.state is AgentState.RUNNING
        and report.attempt == attempt
        and report.failure is None
        and report.restore_failed is None
        and not any(rank.exit_code is not None for rank in report.ranks)
    )


def _agent_faults(report: Report, pod: Pod, slot: int, attempt: int, steps: int) -> list[Fault]:
    """`steps` is the number after which the built-in trainer is done; 0 for a script, whose exit code is its word."""
    where = f"slot {slot}, pod {pod.name}, node {pod.node or 'none'}"
    if report.attempt < attempt:
        # A released attempt was reported by every agent; one that fell behind it lost its ranks and its memory of them.
        message = f"the agent ({where}) started anew and its ranks are gone"
        return [Fault(reason=Reason.AGENT_RESTARTED, slot=slot, node=pod.node, message=message, fingerprint="agent")]
    if report.attempt > attempt:
        return []
    if report.restore_failed is not None:
        checkpoint = report.restore_failed.checkpoint
        message = f"checkpoint {checkpoint} could not be restored ({where}): {report.restore_failed.why}"
        return [
            Fault(
                reason=Reason.RESTORE_FAILED,
                slot=slot,
                node=pod.node,
                message=message,
                fingerprint=f"restore/{checkpoint}",
                checkpoint=checkpoint,
            )
        ]
    failure = report.failure
    if failure is not None and failure.reason == AGENT_RESTARTED:
        message = f"the container ({where}) was restarted and its ranks are gone: {failure.message}"
        return [Fault(reason=Reason.AGENT_RESTARTED, slot=slot, node=pod.node, message=message, fingerprint="agent")]
    dead = [
        rank for rank in report.ranks if rank.exit_code not in (None, 0) or (rank.exit_code == 0 and rank.step < steps)
    ]
    faults = [_rank_fault(rank, report, pod, slot, where) for rank in dead]
    if not faults and failure is not None:
        faults = [
            Fault(
                reason=Reason.RANK_FAILED,
                slot=slot,
                rank=failure.rank,
                node=pod.node,
                message=f"{failure.message} ({where})",
                fingerprint=failure.fingerprint or failure.reason,
                seconds_ago=failure.at_seconds_ago,
            )
        ]
    if not faults and report.state is AgentState.EXITED and any(rank.exit_code is None for rank in report.ranks):
        message = f"ranks ended without an exit code ({where})"
        faults = [
            Fault(reason=Reason.RANK_FAILED, slot=slot, node=pod.node, message=message, fingerprint="no exit code")
        ]
    return faults


def _rank_fault(rank: RankState, report: Report, pod: Pod, slot: int, where: str) -> Fault:
    failure = report.failure
    mine = failure is not None and failure.rank in (None, rank.rank)
    code = rank.exit_code or 0
    if code < 0:
        reason, verb = Reason.RANK_KILLED, f"was killed by {signal_name(-code)}"
    elif code == STOPPED_EXIT_CODE:
        reason, verb = Reason.RANK_STOPPED, "stopped as asked by a signal"
    elif code == 0:
        reason, verb = Reason.RANK_STOPPED, "ended before its last step"
    else:
        reason, verb = Reason.RANK_FAILED, f"ended with exit code {code}"
    cause = f": {failure.cause}" if failure is not None and mine and failure.cause else ""
    return Fault(
        reason=reason,
        slot=slot,
        rank=rank.rank,
        node=pod.node,
        message=f"rank {rank.rank} ({where}) {verb} after step {rank.step}{cause}",
        fingerprint=(failure.fingerprint if failure is not None and mine else "") or f"{reason}/{code}",
        seconds_ago=failure.at_seconds_ago if failure is not None and mine else 0.0,
    )


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
