"""What the agent keeps of ranks that stand still or end: real processes, each stuck in another way."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ciuic_api.protocol import Evidence, Report, Stack
from waiting import eventually

from .agents import go, rank_command
from .conftest import NewAgent
from .gateway import Gateway
from .hub import Hub
from .test_ranks import exited, started


@pytest.fixture
def prefork() -> bool:
    return True


async def evidence(hub: Hub, running: Report, number: int = 1, seconds: float = 10.0) -> Evidence:
    await hub.say(0, go(1, running.rendezvous, evidence=number))
    report = await hub.told(
        0, "the evidence", lambda r: r.evidence is not None and r.evidence.number == number, seconds
    )
    assert report.evidence is not None
    return report.evidence


def innermost(stack: Stack) -> str:
    return stack.frames[0].rpartition(" ")[2] if stack.frames else ""


@pytest.mark.parametrize(
    ("how", "function", "state", "busy"),
    [
        ("loop", "in_a_loop", "R", True),
        ("native", "match", "R", True),
        ("lock", "at_a_lock", "S", False),
        ("input", "open", "S", False),
    ],
)
async def test_where_a_rank_stands(
    hub: Hub, new_agent: NewAgent, tmp_path: Path, how: str, function: str, state: str, busy: bool
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    agent = new_agent(command=rank_command("stand-still", how, pipe))
    running = await started(hub, agent)
    await eventually("it stands still", lambda: "stands still" in agent.log)
    (stack,) = (await evidence(hub, running)).stacks
    assert (stack.rank, innermost(stack), stack.process_state) == (0, function, state)
    assert (stack.cpu_share > 0.3) == busy
    assert len(agent.ranks()) == 1, "asking costs no life"


async def test_a_stopped_rank_does_not_answer_and_is_not_waited_for(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=rank_command("sleep"))
    running = await started(hub, agent)
    os.kill(agent.ranks()[0], signal.SIGSTOP)
    (stack,) = (await evidence(hub, running)).stacks
    assert (stack.process_state, stack.frames) == ("T", ())


async def test_a_program_that_can_not_answer_lives_on(hub: Hub, new_agent: NewAgent) -> None:
    """The signal would end a process that has no handler for it."""
    agent = new_agent(command=("sh", "-c", "sleep 600"))
    running = await started(hub, agent)
    (stack,) = (await evidence(hub, running)).stacks
    assert stack.frames == ()
    assert agent.ranks() != []


async def test_it_is_taken_once_for_each_number(hub: Hub, new_agent: NewAgent, s3: Gateway) -> None:
    agent = new_agent(command=rank_command("sleep"), store=s3.config("runs/tiny"), environment=s3.environment())
    running = await started(hub, agent)
    first = await evidence(hub, running)
    answers = next(agent.scratch.rglob("stacks-00000")).stat().st_size
    hub.reports.clear()
    assert (await evidence(hub, running)).stacks == first.stacks
    assert next(agent.scratch.rglob("stacks-00000")).stat().st_size == answers
    assert (await evidence(hub, running, number=2)).number == 2


async def test_the_end_of_a_rank_is_kept_in_the_store(
    hub: Hub, new_agent: NewAgent, s3: Gateway, tmp_path: Path
) -> None:
    trigger = tmp_path / "crash"
    command = rank_command("crash-on", trigger, "step 3", "KeyError: 'x'")
    agent = new_agent(command=command, store=s3.config("runs/tiny"), environment=s3.environment())
    await started(hub, agent)
    trigger.touch()
    await hub.told(0, "the end of the rank", exited)
    report = await hub.told(0, "the place of the evidence", lambda r: r.evidence is not None and r.evidence.place != "")
    assert report.evidence is not None
    assert report.evidence.place == f"s3://{s3.bucket}/runs/tiny/evidence/a1/slot-00000.json"
    kept: dict[str, Any] = json.loads((s3.bucket_path / "runs/tiny/evidence/a1/slot-00000.json").read_text())
    (rank,) = kept["ranks"]
    assert rank["exit_code"] == 1
    assert rank["last_lines"] == ["step 3", "KeyError: 'x'"]
