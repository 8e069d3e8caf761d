"""The rule about ranks that live and do not move: evidence first, then, with a second signal or much later, a restart. Pure.

Only fresh reports of every slot count. As long as one rank may rightly be where it is, all others may wait for it.
"""

from dataclasses import dataclass, replace

from ciuic_api.conditions import ConditionKind
from ciuic_api.jobstatus import JobStatus
from ciuic_api.protocol import AgentState, Stack
from ciuic_api.reasons import Reason
from ciuic_api.watching import Watchdog, WatchdogMode

from .. import culprit
from ..deadlines import limit_seconds
from ..health import Fault
from ..model import Plan, World
from ..status import changed, seconds_since, timestamp, with_condition
from .failing import restart
from .plans import say

FRESH_SECONDS = 5.0
EVIDENCE_SECONDS = 10.0
"""How long stacks are waited for before it is decided without them."""
WITHOUT_CULPRIT = 3.0
"""Without a second signal a standstill counts as a hang after this many times its limit."""


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """Of the rank that is the least past its limit."""

    rank: int
    phase: str
    seconds: float
    limit_seconds: float


def standstill(world: World) -> Standstill | None:
    """None as long as some rank moves, may stand where it stands, or is not known."""
    spec, status = world.job.spec, world.job.status
    heard = world.heard
    if not status.released or len(heard) < spec.nodes:
        return None
    given = (spec.watchdog or Watchdog()).deadlines
    least: Standstill | None = None
    for agent in heard.values():
        report = agent.report
        if not agent.connected or agent.heard_seconds_ago > FRESH_SECONDS:
            return None
        if report.attempt != status.attempt or report.state is not AgentState.RUNNING or not report.ranks:
            return None
        for rank in report.ranks:
            limit = limit_seconds(rank.phase, status.paces, given)
            if rank.exit_code is not None or rank.unmoved_seconds < limit:
                return None
            if least is None or rank.unmoved_seconds / limit < least.seconds / least.limit_seconds:
                least = Standstill(rank=rank.rank, phase=rank.phase, seconds=rank.unmoved_seconds, limit_seconds=limit)
    return least


def hanging(world: World) -> Plan | None:
    found = standstill(world)
    if found is None:
        return None
    status, job = world.job.status, world.job
    said = (
        f"no rank has moved for {int(found.seconds)} s (phase {found.phase}, limit {int(found.limit_seconds)} s,"
        f" step {status.highest_step})"
    )
    if status.evidence_since is None:
        status = changed(status, evidence_number=status.evidence_number + 1, evidence_since=timestamp(world.now))
        return _stalled(world, status, f"{said}; stacks are being collected", recheck_after=1.0)
    evidence = [
        report.evidence
        for report in world.reports.values()
        if report.evidence is not None
        and (report.evidence.attempt, report.evidence.number) == (status.attempt, status.evidence_number)
    ]
    if len(evidence) < job.spec.nodes and seconds_since(status.evidence_since, world.now) < EVIDENCE_SECONDS:
        return _stalled(world, status, f"{said}; stacks are being collected", recheck_after=1.0)
    stacks = [stack for one in evidence for stack in one.stacks]
    verdict = _verdict(world, stacks)
    if verdict is None and found.seconds < WITHOUT_CULPRIT * found.limit_seconds:
        wait = WITHOUT_CULPRIT * found.limit_seconds
        message = f"{said}; their stacks name nobody, it counts as a hang after {int(wait)} s"
        return _stalled(world, status, message, recheck_after=5.0)
    fault = _fault(world, said, verdict, next((one.place for one in evidence if one.place), None))
    if not job.watchdog:
        return _stalled(world, status, f"{fault.message}; the watchdog is off, nothing is restarted", recheck_after=5.0)
    if job.spec.watchdog is not None and job.spec.watchdog.mode is WatchdogMode.NOTIFY:
        message = f"{fault.message}; watchdog.mode is Notify, nothing is restarted"
        return _stalled(world, status, message, recheck_after=5.0)
    known = seconds_since(status.evidence_since, world.now)
    fault = replace(fault, seconds_ago=found.seconds, known_seconds_ago=known)
    return restart(world, settled(world, status), fault)


def settled(world: World, status: JobStatus) -> JobStatus:
    """Of a job that moves, or is made to: what was asked because it stood still is asked no more."""
    status = changed(status, evidence_since=None)
    return with_condition(status, ConditionKind.STALLED, False, "Moving", "", world.now)


def _stalled(world: World, status: JobStatus, message: str, recheck_after: float) -> Plan:
    status = with_condition(status, ConditionKind.STALLED, True, str(Reason.STALLED), message, world.now)
    return say(
        world, status, status.state, Reason.STALLED, message, urgent=True, warning=True, recheck_after=recheck_after
    )


def _verdict(world: World, stacks: list[Stack]) -> culprit.Culprit | None:
    places = {rank.rank: (rank.step, rank.micro_step) for report in world.reports.values() for rank in report.ranks}
    return culprit.named(stacks, places)


def _fault(world: World, said: str, verdict: culprit.Culprit | None, place: str | None) -> Fault:
    if verdict is None or verdict.rank is None:
        why = verdict.why if verdict is not None else "nobody stands out"
        fingerprint = f"Hang/{verdict.place if verdict is not None else 'nobody'}"
        return Fault(reason=Reason.HANG, slot=0, message=f"{said}: {why}", fingerprint=fingerprint, evidence=place)
    slot = verdict.rank // world.job.spec.ranks_per_node
    pod = world.current[slot]
    where = f"slot {slot}, pod {pod.name}, node {pod.node or 'none'}"
    return Fault(
        reason=Reason.HANG,
        slot=slot,
        rank=verdict.rank,
        node=pod.node,
        message=f"{said}: rank {verdict.rank} ({where}) holds them up: {verdict.why}",
        fingerprint=f"Hang/{verdict.place}",
        evidence=place,
    )
