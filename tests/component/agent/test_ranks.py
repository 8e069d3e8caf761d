"""Ranks as processes: what the agent says when they end, and that nothing of them is left when it says so."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from api_server import free_ports
from ciuic_api.protocol import STOPPED_EXIT_CODE, AgentState, Report
from waiting import eventually

from .agents import RANK_SCRIPT, AgentProcess, go, quiet, rank_command
from .conftest import NewAgent
from .hub import Hub

REPORTED_SECONDS = 1.0


@pytest.fixture(params=[False, True], ids=["exec", "fork"])
def prefork(request: pytest.FixtureRequest) -> bool:
    """All of this holds however ranks are started."""
    return bool(request.param)


async def quiesced(hub: Hub, agent: AgentProcess, attempt: int, **fields: Any) -> Report:
    await hub.say(agent.incarnation, quiet(attempt, **fields))
    return await hub.told(
        agent.incarnation,
        f"attempt {attempt} is quiet and checked",
        lambda r: r.attempt == attempt and r.state is AgentState.QUIESCED and r.preflight is not None,
        20.0,
    )


async def released(hub: Hub, agent: AgentProcess, attempt: int = 1) -> Report:
    """Told to run: of ranks that end at once nobody may ever see that they ran."""
    ready = await quiesced(hub, agent, attempt)
    await hub.say(agent.incarnation, go(attempt, ready.rendezvous))
    return ready


async def started(hub: Hub, agent: AgentProcess, attempt: int = 1) -> Report:
    await released(hub, agent, attempt)
    return await hub.told(agent.incarnation, "ranks run", lambda r: r.state is AgentState.RUNNING)


def exited(report: Report) -> bool:
    return report.state is AgentState.EXITED


async def test_a_crash_is_told_with_its_error(hub: Hub, new_agent: NewAgent, tmp_path: Path) -> None:
    trigger = tmp_path / "crash"
    words = ("step 17", "ValueError: bad batch 17 at 0x7f00")
    agent = new_agent(command=rank_command("crash-on", trigger, *words))
    await started(hub, agent)
    assert "bad batch" not in agent.log
    trigger.touch()
    began = time.monotonic()
    report = await hub.told(0, "the end of the rank", exited)
    assert time.monotonic() - began < REPORTED_SECONDS
    failure = report.failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.exit_code) == ("RankExited", 0, 1)
    assert failure.tail == words
    assert failure.fingerprint == "1/ValueError: bad batch # at #"
    assert report.ranks[0].exit_code == 1
    assert [r for r in hub.reports[0] if r.failure is not None and not r.failure.tail] == []


async def test_the_first_report_of_a_failure_has_its_last_lines(hub: Hub, new_agent: NewAgent, tmp_path: Path) -> None:
    """The operator decides by the first report: a fingerprint that comes later would never make a crash loop."""
    trigger = tmp_path / "crash"
    lines = [f"line {number}" for number in range(3000)]
    agent = new_agent(command=rank_command("crash-on", trigger, *lines, "KeyError: 'x'"))
    await started(hub, agent)
    trigger.touch()
    await hub.told(0, "the end of the rank", exited)
    failures = [report.failure for report in hub.reports[0] if report.failure is not None]
    assert {failure.fingerprint for failure in failures} == {"1/KeyError: 'x'"}
    assert failures[0].tail[-1] == "KeyError: 'x'"
    assert len(failures[0].tail) == 20


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_killed_rank_is_told_at_once(hub: Hub, new_agent: NewAgent, rank: int) -> None:
    agent = new_agent(command=rank_command("sleep"), ranks_per_node=2)
    await started(hub, agent)
    await eventually("both ranks sleep", lambda: agent.log.count("sleeps") == 2)
    victim = sorted(agent.ranks())[rank]
    began = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    report = await hub.told(0, "the rank's end", lambda r: any(s.exit_code is not None for s in r.ranks))
    assert time.monotonic() - began < REPORTED_SECONDS
    assert {state.rank: state.exit_code for state in report.ranks} == {rank: -9, 1 - rank: None}
    failure = report.failure
    assert failure is not None
    assert (failure.rank, failure.exit_code, failure.tail) == (rank, -9, ("sleeps",))
    assert "SIGKILL" in failure.message
    assert report.state is AgentState.RUNNING  # the other one lives: what is to be done is for the operator to say


async def test_a_command_that_does_not_exist_is_the_ranks_failure(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=("/no/such/program", "x"))
    await released(hub, agent)
    report = await hub.told(0, "the failure", exited)
    assert report.failure is not None
    assert report.failure.exit_code == 127
    assert "/no/such/program" in report.failure.message


async def test_the_next_attempt_kills_what_does_not_mind_term(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=rank_command("hang"))
    await started(hub, agent)
    await eventually("the rank hangs", lambda: "hangs" in agent.log)
    began = time.monotonic()
    await quiesced(hub, agent, 2)
    assert time.monotonic() - began < 5.0
    assert agent.ranks() == []


async def test_an_orphan_in_another_session_is_gone_before_the_next_attempt(hub: Hub, new_agent: NewAgent) -> None:
    port = free_ports(1)[0]
    agent = new_agent(command=rank_command("orphan", port))
    await started(hub, agent)
    await eventually("the orphan listens", lambda: _listens(port))
    await hub.say(0, quiet(2))
    await hub.told(0, "attempt 2", lambda r: r.attempt == 2 and r.state is AgentState.QUIESCED)
    assert not _listens(port)
    with socket.create_server(("127.0.0.1", port)):
        assert agent.ranks() == []


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_a_graceful_stop_asks_once_and_kills_after_the_grace(
    hub: Hub, new_agent: NewAgent, tmp_path: Path
) -> None:
    terms = tmp_path / "terms"
    agent = new_agent(command=rank_command("hang", terms))
    running = await started(hub, agent)
    await eventually("the rank hangs", lambda: "hangs" in agent.log)
    await hub.say(0, go(1, running.rendezvous, stop=True, grace_seconds=2))
    report = await hub.told(0, "the rank's end", exited)
    assert report.ranks[0].exit_code == -9
    assert terms.read_text() == "TERM\n"
    assert report.uploads_done


async def test_a_late_run_false_does_not_stop_ranks(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=rank_command("sleep"))
    await started(hub, agent)
    children = agent.ranks()
    await hub.say(0, quiet(1))
    before = len(hub.reports[0])
    await eventually("three more reports", lambda: len(hub.reports[0]) >= before + 3)
    assert agent.ranks() == children
    assert hub.reports[0][-1].state is AgentState.RUNNING


async def test_sigterm_lets_ranks_stop_and_ends_the_agent(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=rank_command("sleep"))
    await started(hub, agent)
    await eventually("the rank sleeps", lambda: "sleeps" in agent.log)
    assert agent.process is not None
    agent.process.terminate()
    await eventually("the agent's end", lambda: agent.process is not None and agent.process.poll() is not None)
    assert agent.process.returncode == 0
    assert "stopped as asked" in agent.log
    report = await hub.told(0, "a last word", exited)
    assert report.ranks[0].exit_code == STOPPED_EXIT_CODE


async def test_finish_ends_the_agent(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=rank_command("crash", 0))
    ready = await released(hub, agent)
    await hub.told(0, "the end of the ranks", exited)
    await hub.say(0, go(1, ready.rendezvous, finish=True))
    await eventually("the agent's end", lambda: agent.process is not None and agent.process.poll() == 0)


async def test_what_ranks_see(hub: Hub, new_agent: NewAgent, tmp_path: Path, prefork: bool) -> None:
    seen = tmp_path / "seen.json"
    agent = new_agent(
        command=rank_command("environment", seen),
        interface="lo",
        disable_transparent_huge_pages=True,
        environment={
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "GLOO_SOCKET_IFNAME": "mine",
            "USER_SETTING": "stays",
        },
    )
    report = await started(hub, agent)
    await eventually("the rank's account", seen.exists)
    account = json.loads(seen.read_text())
    environ = account["environ"]
    assert account["thp"] == "0"
    assert account["name"].startswith("rank-00000" if prefork else "python")
    assert account["argv"] == [str(RANK_SCRIPT), "environment", str(seen)]
    assert [name for name in environ if name.startswith("AWS_") or name == "CIUIC_AGENT_CONFIG"] == []
    assert environ["GLOO_SOCKET_IFNAME"] == "mine"
    assert environ["USER_SETTING"] == "stays"
    assert report.rendezvous == f"{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
    assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == ("0", "1", "0")


async def test_a_restarted_agent_says_so_and_starts_nothing_again(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=rank_command("sleep"))
    running = await started(hub, agent)
    agent.kill()
    hub.reports.clear()
    agent.start()
    report = await hub.told(0, "the failure", lambda r: r.failure is not None)
    assert report.failure is not None
    assert (report.state, report.attempt, report.failure.reason) == (AgentState.EXITED, 1, "AgentRestarted")
    assert running.boot != report.boot
    before = len(hub.reports[0])
    await eventually("two more reports", lambda: len(hub.reports[0]) >= before + 2)
    assert agent.ranks() == []
    await started(hub, agent, attempt=2)
