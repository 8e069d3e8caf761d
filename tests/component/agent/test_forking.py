"""The fork server: what it forks is as good as what exec makes, and what it can not fork is started by exec."""

import json
import os
import signal
from pathlib import Path

import pytest

from ciuic_api.protocol import AgentState
from waiting import eventually

from .agents import name_of, rank_command
from .conftest import NewAgent
from .hub import Hub
from .test_ranks import exited, released, started


@pytest.fixture
def prefork() -> bool:
    return True


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder on the path with a package of the name of a heavy one."""
    folder = tmp_path / "packages"
    (folder / "accelerate").mkdir(parents=True)
    return folder


def path_with(folder: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}


async def test_ranks_of_one_parent_draw_different_numbers(hub: Hub, new_agent: NewAgent, tmp_path: Path) -> None:
    drawn = []
    for attempt in (1, 2):
        seen = tmp_path / "seen.json"
        if attempt == 1:
            agent = new_agent(command=rank_command("environment", seen))
        await started(hub, agent, attempt)
        await eventually("the rank's account", seen.exists)
        drawn.append(json.loads(seen.read_text())["drawn"])
        seen.unlink()
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


async def test_a_fork_server_that_ends_costs_no_rank_and_is_made_anew(hub: Hub, new_agent: NewAgent) -> None:
    agent = new_agent(command=rank_command("sleep"))
    await started(hub, agent)
    ranks, server = agent.ranks(), agent.fork_server()
    os.kill(server, signal.SIGKILL)
    await eventually("it is noticed", lambda: "the fork server is given up" in agent.log)
    assert agent.ranks() == ranks
    assert hub.reports[0][-1].state is AgentState.RUNNING
    await started(hub, agent, attempt=2)
    assert agent.fork_server() != server
    assert [name_of(pid) for pid in agent.ranks()] == ["rank-00000"]


async def test_a_fork_server_that_does_not_answer_is_given_up(hub: Hub, new_agent: NewAgent) -> None:
    """A rank that it forks later, having been given up, would be a second one: it may not begin."""
    agent = new_agent(command=rank_command("sleep"))
    await started(hub, agent)
    os.kill(agent.fork_server(), signal.SIGSTOP)
    await started(hub, agent, attempt=2)
    assert "rank 0 is started by exec: the fork server did not answer" in agent.log
    assert len(agent.ranks()) == 1
    assert name_of(agent.ranks()[0]).startswith("python")


async def test_a_parent_with_threads_is_not_forked(
    hub: Hub, new_agent: NewAgent, tmp_path: Path, package: Path
) -> None:
    (package / "accelerate" / "__init__.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    script = tmp_path / "own.py"
    script.write_text("import accelerate, signal\nprint('runs', flush=True)\nsignal.pause()\n")
    agent = new_agent(command=("python", str(script)), environment=path_with(package))
    await started(hub, agent)
    await eventually("the rank runs", lambda: "[rank 0] runs" in agent.log)
    assert "rank 0 is started by exec: the fork server has 2 threads" in agent.log


async def test_what_can_not_be_imported_is_the_ranks_error(
    hub: Hub, new_agent: NewAgent, tmp_path: Path, package: Path
) -> None:
    (package / "accelerate" / "__init__.py").write_text("raise ImportError('no such device')\n")
    script = tmp_path / "own.py"
    script.write_text("import accelerate\n")
    agent = new_agent(command=("python", str(script)), environment=path_with(package))
    await released(hub, agent)
    report = await hub.told(0, "the end of the rank", exited)
    assert report.failure is not None
    assert report.failure.cause == "ImportError: no such device"


async def test_a_traceback_begins_with_the_script(hub: Hub, new_agent: NewAgent, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text("import numpy\n\ndef deep():\n    raise KeyError('x')\n\ndeep()\n")
    agent = new_agent(command=("python", str(script), "--flag"))
    await released(hub, agent)
    report = await hub.told(0, "the end of the rank", exited)
    assert report.failure is not None
    assert report.failure.exit_code == 1
    frames = [line for line in report.failure.tail if line.strip().startswith("File ")]
    assert [line.split('"')[1] for line in frames] == [str(script)] * 2


async def test_what_was_imported_ahead_is_let_go_at_the_end(
    hub: Hub, new_agent: NewAgent, tmp_path: Path, package: Path
) -> None:
    """As after exec. Bindings (triton's) print dozens of lines of leaks else, after the rank's own last sentence."""
    (package / "accelerate" / "__init__.py").write_text(
        "import os\n\nclass Held:\n    def __del__(self, write=os.write):\n        write(1, b'let go\\n')\n\n"
        "held = Held()\nheld.itself = held\n"
    )
    script = tmp_path / "own.py"
    script.write_text("import accelerate\n")
    agent = new_agent(command=("python", str(script)), environment=path_with(package))
    await released(hub, agent)
    await hub.told(0, "the end of the rank", exited)
    assert "started by exec" not in agent.log
    assert "[rank 0] let go" in agent.log
