"""Worlds for planner tests: a job of two nodes in any situation, in a few words."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ciuic_api.job import JobSpec
from ciuic_api.jobstatus import CheckpointRef, CheckpointSeen, JobStatus, LineageLink, State
from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import (
    AgentFailure,
    AgentState,
    Owner,
    Preflight,
    PreflightProblem,
    RankState,
    Report,
    RestoreFailure,
    RunState,
    StoreState,
)
from ciuic_operator.model import Agent, Job, Pod, World

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
UID = "11111111-0000-0000-0000-000000000001"
CLUSTER = "cluster-1"
PATH = "s3://ckpt/runs"


def spec(nodes: int = 2, **fields: Any) -> JobSpec:
    base: dict[str, Any] = {"nodes": nodes, "accelerator": "cpu"}
    if "command" not in fields:
        base |= {"training": {"steps": 100}, "checkpoint": {"path": PATH, "run": "team/tiny"}}
    return JobSpec.model_validate(base | fields)


def job(status: JobStatus | None = None, watchdog: bool = True, **fields: Any) -> Job:
    own = {name: fields.pop(name) for name in ("problems", "deleting", "take_over") if name in fields}
    return Job(
        namespace="team",
        name="tiny",
        uid=UID,
        generation=1,
        created_at=NOW - timedelta(minutes=5),
        spec=spec(**fields),
        status=status or JobStatus(),
        watchdog=watchdog,
        **own,
    )


def pod(slot: int, incarnation: int | None = None, **fields: Any) -> Pod:
    incarnation = slot if incarnation is None else incarnation
    base: dict[str, Any] = {
        "name": f"tiny-{slot}-{incarnation}",
        "uid": f"pod-{slot}-{incarnation}",
        "slot": slot,
        "incarnation": incarnation,
        "phase": "Running",
        "node": f"node{slot}",
    }
    return Pod(**(base | fields))


def run_state(attempt: int = 1, **fields: Any) -> RunState:
    base: dict[str, Any] = {
        "store": StoreState.OK,
        "owner": Owner(uid=UID, cluster=CLUSTER, attempt=attempt),
        "scanned_attempt": attempt,
        "claimed_attempt": attempt,
    }
    return RunState(**(base | fields))


def report(slot: int, attempt: int, state: AgentState, **fields: Any) -> Report:
    base: dict[str, Any] = {
        "boot": f"boot-{slot}",
        "sequence": 1,
        "incarnation": slot,
        "attempt": attempt,
        "state": state,
        "preflight": Preflight(),
        "rendezvous": f"10.0.0.{slot}:29500",
    }
    if slot == 0:
        base["run"] = run_state(attempt)
    return Report(**(base | fields))


def quiet(slot: int, attempt: int, **fields: Any) -> Report:
    return report(slot, attempt, AgentState.QUIESCED, **fields)


def trains(slot: int, attempt: int = 1, step: int = 17, **fields: Any) -> Report:
    ranks = (RankState(rank=slot, phase="step", step=step),)
    return report(slot, attempt, AgentState.RUNNING, **({"ranks": ranks} | fields))


def ended(slot: int, exit_code: int, attempt: int = 1, step: int = 17, **fields: Any) -> Report:
    ranks = (RankState(rank=slot, phase="exit", step=step, exit_code=exit_code),)
    return report(slot, attempt, AgentState.EXITED, **({"ranks": ranks} | fields))


def world(of: Job, pods: tuple[Pod, ...] = (), reports: dict[int, Report] | None = None, **fields: Any) -> World:
    """`reports` by slot, for the newest pod of each."""
    newest = {p.slot: p for p in sorted(pods, key=lambda p: p.incarnation) if not p.deleting}
    agents = {
        newest[slot].uid: Agent(pod_uid=newest[slot].uid, report=r, connected=True, heard_seconds_ago=0.1)
        for slot, r in (reports or {}).items()
    }
    return World(now=NOW, job=of, pods=pods, agents=agents, cluster=CLUSTER, **fields)


def status(state: State = State.RUNNING, attempt: int = 1, released: bool = True, **fields: Any) -> JobStatus:
    base: dict[str, Any] = {
        "state": state,
        "reason": "Training",
        "message": "all 2 ranks train",
        "attempt": attempt,
        "released": released,
        "next_incarnation": 2,
        "started_at": "2026-11-30T11:55:00Z",
        "state_since": "2026-11-30T11:56:00Z",
    }
    if released:
        base["lineage"] = (LineageLink(attempt=attempt),)
    return JobStatus(**(base | fields))


def restarting(attempt: int = 2, parent: int = 1, **fields: Any) -> JobStatus:
    """Attempt 1 ran from step 0 and failed; attempt 2 is numbered and not released."""
    base: dict[str, Any] = {"parent": parent, "lineage": (LineageLink(attempt=parent),), "reason": "RankKilled"}
    return status(State.RESTARTING, attempt, released=False, **(base | fields))


def committed(step: int, attempt: int = 1) -> CheckpointSeen:
    return CheckpointSeen(step=step, attempt=attempt, tier="s3", at="2026-11-30T11:59:00Z")


def checkpoint(step: int, attempt: int = 1) -> CheckpointId:
    return CheckpointId(step, attempt)


PODS = (pod(0), pod(1))

__all__ = [
    "NOW",
    "PODS",
    "AgentFailure",
    "AgentState",
    "Attempt",
    "CheckpointRef",
    "JobStatus",
    "LineageLink",
    "Owner",
    "Preflight",
    "PreflightProblem",
    "RankState",
    "RestoreFailure",
    "RunState",
    "State",
    "StoreState",
    "replace",
]
