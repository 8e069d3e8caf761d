"""What is wrong around a job is said on it, once, until it is put right."""

from dataclasses import replace
from datetime import timedelta

import pytest

from builders import NOW, PODS, JobStatus, State, job, pod, status, trains, world
from ciuic_api.reasons import Reason
from ciuic_operator import planner
from ciuic_operator.model import EmitEvent, Plan, World


def situation(persisted: JobStatus, *named: str, known: tuple[str, ...] = ("oncall",)) -> World:
    one = job(persisted, alerts=[{"receiver": name} for name in named] or None)
    return world(one, PODS, {0: trains(0), 1: trains(1)}, receivers=frozenset(known))


def said(plan: Plan) -> tuple[str, str] | None:
    found = [c for c in plan.status.conditions if c.type == "UnknownReceiver"]
    return (found[0].status, found[0].message) if found else None


def events(plan: Plan) -> list[str]:
    return [a.message for a in plan.actions if isinstance(a, EmitEvent) and a.reason is Reason.UNKNOWN_RECEIVER]


@pytest.mark.parametrize("named", [(), ("oncall",)])
def test_nothing_is_said_when_all_are_known(named: tuple[str, ...]) -> None:
    plan = planner.plan(situation(status(), *named))
    assert said(plan) is None and events(plan) == []


def test_an_unknown_one_is_said_in_condition_and_event_and_nothing_else_changes() -> None:
    plan = planner.plan(situation(status(), "oncall", "oncal"))
    held = said(plan)
    assert held is not None and held[0] == "True" and "names oncal, but the chart defines: oncall" in held[1]
    assert events(plan) == [held[1]]
    assert plan.status.state is State.RUNNING and plan.reason is Reason.TRAINING and plan.directives


def test_it_is_said_once_until_it_changes() -> None:
    first = planner.plan(situation(status(), "a"))
    again = planner.plan(situation(first.status, "a"))
    assert events(again) == [] and said(again) == said(first)
    other = planner.plan(replace(situation(again.status, "b"), now=NOW + timedelta(minutes=1)))
    assert len(events(other)) == 1 and "names b," in (said(other) or ("", ""))[1]
    right = planner.plan(situation(other.status, "oncall"))
    assert said(right) == ("False", "") and events(right) == []


def test_an_ended_job_is_told_too() -> None:
    ended = status(State.COMPLETE, reason="Completed", finished_at="2026-11-30T11:59:59Z")
    assert events(planner.plan(situation(ended, "a")))


def test_pods_of_another_installation_are_said_once_and_until_they_are_gone() -> None:
    there = tuple(pod(slot, hub="wss://there:8443/v1/agent#1") for slot in (0, 1))
    situation = world(job(status()), there, {}, hub="wss://here:8443/v1/agent#2")
    first = planner.plan(situation)
    (condition,) = (c for c in first.status.conditions if c.type == "AgentsElsewhere" and c.status == "True")
    assert "tiny-0-0, tiny-1-1 look for another installation" in condition.message
    assert "wss://there:8443/v1/agent:" in condition.message
    assert [a.reason for a in first.actions if isinstance(a, EmitEvent)] == [Reason.AGENTS_ELSEWHERE]
    assert planner.plan(situation.with_status(first.status)).actions == ()
    here = world(job(first.status), PODS, {0: trains(0), 1: trains(1)})
    assert "AgentsElsewhere" not in {c.type for c in planner.plan(here).status.conditions if c.status == "True"}
