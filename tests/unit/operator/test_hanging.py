"""Ranks that do not move: when that is a standstill, when it is a hang, and that everything else is left alone."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace as changed

from builders import NOW, PODS, job, status, trains, world
from ciuic_api.jobstatus import JobStatus, Pace, State
from ciuic_api.protocol import Evidence, PhaseTime, RankState, Report, Stack
from ciuic_api.reasons import Reason
from ciuic_api.watching import Watchdog
from ciuic_operator.deadlines import pace_key
from ciuic_operator.model import Plan, World
from ciuic_operator.planner import plan

IN_COLLECTIVE = ("torch/distributed/distributed_c10d.py:3000 all_reduce", "train/loop.py:200 step")
IN_A_LOOP = ("team/train.py:7 crunch", "team/train.py:90 main")
PACE = (Pace(phase="step", p99_milliseconds=2_000), Pace(phase="eval", p99_milliseconds=20_000))


def learned(**fields: Any) -> JobStatus:
    return status(paces=PACE, paces_of=pace_key(job().spec), **fields)


def stands(slot: int, seconds: float, phase: str = "step", **fields: Any) -> Report:
    rank = RankState(rank=slot, phase=phase, step=17, unmoved_seconds=seconds)
    return trains(slot, ranks=(rank,), **fields)


def seen(slot: int, frames: tuple[str, ...], number: int = 1, **fields: Any) -> Evidence:
    return Evidence(attempt=1, number=number, stacks=(Stack(rank=slot, frames=frames, process_state="S", **fields),))


def asked(seconds_ago: float = 2.0, **fields: Any) -> JobStatus:
    since = (NOW - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return learned(evidence_number=1, evidence_since=since, **fields)


def of(found: JobStatus, *reports: Report, watchdog: bool = True, **block: Any) -> World:
    """`block` is spec.watchdog."""
    made = job(found, watchdog=watchdog)
    if block:
        made = replace(made, spec=made.spec.model_copy(update={"watchdog": Watchdog.model_validate(block)}))
    return world(made, PODS, dict(enumerate(reports)))


def numbers(decided: Plan) -> set[int]:
    return {directive.evidence for directive in decided.directives.values()}


LIMIT = 30.0


@pytest.mark.parametrize(
    ("why", "reports"),
    [
        ("below the limit", (stands(0, LIMIT - 1), stands(1, LIMIT - 1))),
        ("one rank moves", (stands(0, 500.0), stands(1, 1.0))),
        ("one rank evaluates", (stands(0, 70.0, phase="eval"), stands(1, 70.0))),
        ("one rank writes a checkpoint", (stands(0, 600.0, phase="checkpoint"), stands(1, 600.0))),
        ("one rank compiles", (stands(0, 600.0, phase="compile"), stands(1, 600.0))),
        ("one slot was not heard", (stands(0, 600.0),)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_standstill(why: str, reports: tuple[Report, ...]) -> None:
    decided = plan(of(learned(), *reports))
    assert decided.reason is Reason.TRAINING
    assert decided.status.evidence_since is None


def test_silence_is_no_standstill() -> None:
    """An agent that is cut off tells nothing new, and what it told last grows old."""
    stale = of(learned(), stands(0, 600.0), stands(1, 600.0))
    cut_off = replace(stale.agents["pod-1-1"], heard_seconds_ago=20.0)
    decided = plan(replace(stale, agents={**stale.agents, "pod-1-1": cut_off}))
    assert decided.reason is Reason.TRAINING


def test_first_stacks_are_asked_for() -> None:
    decided = plan(of(learned(), stands(0, LIMIT + 1), stands(1, LIMIT + 2)))
    assert decided.reason is Reason.STALLED
    assert decided.urgent
    assert (decided.status.state, decided.status.attempt) == (State.RUNNING, 1)
    assert numbers(decided) == {1}
    assert {c.type: c.status for c in decided.status.conditions}["Stalled"] == "True"


def test_all_stacks_are_waited_for_but_not_long() -> None:
    reports = (stands(0, 33.0, evidence=seen(0, IN_COLLECTIVE)), stands(1, 33.0))
    assert plan(of(asked(5.0), *reports)).reason is Reason.STALLED
    late = (stands(0, 41.0, evidence=seen(0, IN_COLLECTIVE)), stands(1, 41.0))
    assert "name nobody" in plan(of(asked(11.0), *late)).message


def test_a_culprit_makes_it_a_hang() -> None:
    stuck = seen(1, IN_A_LOOP)
    stuck = changed(stuck, place="s3://b/evidence/a1/slot-00001-1.json")
    reports = (stands(0, 33.0, evidence=seen(0, IN_COLLECTIVE)), stands(1, 33.0, evidence=stuck))
    decided = plan(of(asked(), *reports))
    assert (decided.reason, decided.status.attempt, decided.status.state) == (Reason.HANG, 2, State.RESTARTING)
    failure = decided.status.last_failure
    assert failure is not None
    assert (failure.slot, failure.rank, failure.node) == (1, 1, "node1")
    assert "rank 1 (slot 1, pod tiny-1-1, node node1) holds them up" in failure.message
    assert failure.evidence == "s3://b/evidence/a1/slot-00001-1.json"
    assert decided.status.evidence_since is None
    assert decided.status.restarts.software == 1
    assert decided.actions[:-1] == (), "no pod is touched"


def test_without_culprit_it_takes_three_times_as_long() -> None:
    def still(seconds: float) -> Plan:
        reports = (stands(slot, seconds, evidence=seen(slot, IN_COLLECTIVE)) for slot in (0, 1))
        return plan(of(asked(), *reports))

    assert still(3 * LIMIT - 1).reason is Reason.STALLED
    assert still(3 * LIMIT + 1).reason is Reason.HANG


def test_evidence_of_an_earlier_standstill_does_not_count() -> None:
    old = (stands(0, 33.0, evidence=seen(0, IN_COLLECTIVE, 1)), stands(1, 33.0, evidence=seen(1, IN_A_LOOP, 1)))
    found = asked().model_copy(update={"evidence_number": 2})
    assert plan(of(found, *old)).reason is Reason.STALLED


def test_who_moves_again_is_left_alone() -> None:
    decided = plan(of(asked(), stands(0, 0.2), stands(1, 0.2)))
    assert decided.reason is Reason.TRAINING
    assert numbers(decided) == {0}
    assert decided.status.evidence_number == 1, "a number is used once"
    assert {c.type: c.status for c in decided.status.conditions}["Stalled"] == "False"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"watchdog": False}, "the watchdog is off"),
        ({"mode": "Notify"}, "watchdog.mode is Notify"),
    ],
)
def test_it_is_said_and_not_acted_on(fields: dict[str, Any], words: str) -> None:
    reports = (
        stands(0, 900.0, evidence=seen(0, IN_COLLECTIVE)),
        stands(1, 900.0, evidence=seen(1, IN_A_LOOP)),
    )
    decided = plan(of(asked(), *reports, **fields))
    assert (decided.reason, decided.status.state, decided.status.attempt) == (Reason.STALLED, State.RUNNING, 1)
    assert words in decided.message
    assert "rank 1" in decided.message


def test_a_given_deadline_counts_before_a_learned_one() -> None:
    assert plan(of(learned(), stands(0, 11.0), stands(1, 11.0), deadlines={"step": 10})).reason is Reason.STALLED


def test_before_anything_is_learned_the_limit_is_ten_minutes() -> None:
    assert plan(of(status(), stands(0, 599.0), stands(1, 599.0))).reason is Reason.TRAINING
    assert plan(of(status(), stands(0, 601.0), stands(1, 601.0))).reason is Reason.STALLED


def test_paces_are_learned_and_kept_and_forgotten_with_the_configuration() -> None:
    def told(count: int, p99: float) -> tuple[Report, ...]:
        times = (PhaseTime(phase="step", count=count, p99_seconds=p99),)
        return tuple(trains(slot, phase_times=times) for slot in (0, 1))

    def paces(found: JobStatus, count: int, p99: float) -> dict[str, int]:
        return {pace.phase: pace.p99_milliseconds for pace in plan(of(found, *told(count, p99))).status.paces}

    assert paces(status(), 9, 3.0) == {}, "of both slots together fewer than twenty"
    assert paces(status(), 10, 3.0) == {"step": 3000}
    assert paces(learned(), 10, 1.0)["step"] == 2000, "a limit only grows"
    assert paces(learned(), 10, 2.1)["step"] == 2000, "and not by every little"
    assert paces(learned(), 10, 3.0)["step"] == 3000
    assert paces(status(paces=PACE, paces_of="another"), 10, 1.0) == {"step": 1000}
