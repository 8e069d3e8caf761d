"""Real hangs of real gloo collectives: the stacks that the agent takes name the rank that the others wait for.

`make test` has one of each kind, `make soak` all."""

import sys
from pathlib import Path

import pytest

from ciuic_operator import culprit
from ciuic_trainer.shared.progress import Phase

from .agents import go
from .conftest import NewAgent
from .hub import Hub
from .test_evidence import evidence
from .test_ranks import quiesced

BEFORE, CULPRIT = 5, 1
"""As in the script, which is not imported: it would bring torch into this process."""
SCRIPT = Path(__file__).with_name("collective_rank.py")


@pytest.fixture
def prefork() -> bool:
    return True


@pytest.mark.parametrize(
    ("how", "why", "place"),
    [
        ("loop", "it is not in the collective that the others wait in", "crunch"),
        pytest.param(
            "lock", "it is not in the collective that the others wait in", "take_twice", marks=pytest.mark.soak
        ),
        pytest.param("input", "it is not in the collective that the others wait in", "open", marks=pytest.mark.soak),
        ("loader", "it is not in the collective that the others wait in", "select"),
        ("stopped", "its process is stopped by a signal", "stopped"),
        pytest.param("another", "it is in another collective than most", "broadcast", marks=pytest.mark.soak),
        ("missing", "it is in another collective than most", "barrier"),
    ],
)
async def test_the_culprit(hub: Hub, new_agent: NewAgent, how: str, why: str, place: str) -> None:
    agent = new_agent(command=(sys.executable, str(SCRIPT), how), ranks_per_node=3)
    ready = await quiesced(hub, agent, 1)
    await hub.say(0, go(1, ready.rendezvous))
    running = await hub.told(
        0,
        "they stand still",
        lambda r: len(r.ranks) == 3 and all(s.step == BEFORE and s.unmoved_seconds > 1.0 for s in r.ranks),
        60.0,
    )
    found = await evidence(hub, running)
    assert {state.phase for state in running.ranks} == {Phase.STEP}
    verdict = culprit.named(found.stacks, {state.rank: (state.step, state.micro_step) for state in running.ranks})
    assert verdict is not None, found
    assert (verdict.rank, verdict.why.partition(":")[0]) == (CULPRIT, why)
    assert verdict.place.endswith(place)
