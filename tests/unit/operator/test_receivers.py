"""Receivers that a job names and the chart does not define: said on the job, once, until it is put right."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from builders import NOW, PODS, JobStatus, State, job, status, trains, world
from ciuic_api.reasons import Reason
from ciuic_operator import planner
from ciuic_operator.model import EmitEvent, Plan, World
from ciuic_operator.receivers import Receiver, ReceiverType, receivers


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


def test_the_chart_writes_a_list() -> None:
    text = json.dumps([{"name": "oncall", "type": "wecom", "language": "zh"}, {"name": "am", "type": "alertmanager"}])
    assert receivers(text) == (
        Receiver(name="oncall", type=ReceiverType.WECOM, language="zh"),
        Receiver(name="am", type=ReceiverType.ALERTMANAGER),
    )


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"name": "../x", "type": "slack"}, "name '../x' is not made of lower-case"),
        ({"name": "x" * 41, "type": "slack"}, "is not made of lower-case"),
        ({"name": "x", "type": "irc"}, "type 'irc' of x is none of wecom, dingtalk"),
        ({"name": "x", "type": "slack", "language": "fr"}, "language 'fr' of x is none of en, zh"),
    ],
)
def test_a_mistake_is_named(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        receivers(json.dumps([entry]))


@pytest.mark.parametrize("text", ["{}", '["x"]', "no", '[{"name":"a","type":"slack"},{"name":"a","type":"slack"}]'])
def test_what_is_no_list_of_different_receivers(text: str) -> None:
    with pytest.raises(ValueError):
        receivers(text)
