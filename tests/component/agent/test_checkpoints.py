"""Crashes around a checkpoint, with two real agents and the planner's own choice of what comes next."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ciuic_api.jobstatus import CheckpointRef, JobStatus, LineageLink
from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import AgentState, Report, StoreState
from ciuic_operator.planner.restore import Choice, choose
from waiting import eventually

from .agents import AgentProcess, attempt_link, go, quiet, rank_command
from .conftest import NewAgent
from .gateway import Gateway
from .hub import Hub

SLOTS = (0, 1)


@dataclass
class Job:
    """Two slots of one rank each: what an operator would know of them, and the files that steer their ranks."""

    hub: Hub
    new_agent: NewAgent
    folder: Path
    s3: Gateway | None = None
    lineage: tuple[Attempt, ...] = ()
    agents: tuple[AgentProcess, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def control(self, slot: int) -> Path:
        return self.folder / f"until-{slot}"

    def pods(self, first_incarnation: int = 0) -> None:
        """New ones, with empty memory."""
        store = {"store": self.s3.config(), "environment": self.s3.environment()} if self.s3 is not None else {}
        self.agents = tuple(
            self.new_agent(
                first_incarnation + slot,
                command=rank_command("train", self.control(slot)),
                nodes=len(SLOTS),
                training={},  # checkpoints belong to the trainer, whose part the command plays
                **store,
                **self.settings,
            )
            for slot in SLOTS
        )

    def until(self, *steps: int) -> None:
        """The step at which the rank of each slot waits."""
        for slot, step in enumerate(steps):
            draft = self.control(slot).with_suffix(".new")
            draft.write_text(str(step))
            draft.rename(self.control(slot))

    async def told(self, slot: int, what: str, condition: Any) -> Report:
        return await self.hub.told(self.agents[slot].incarnation, f"slot {slot}: {what}", condition)

    async def steps(self, *steps: int) -> None:
        """Each rank has completed its step, and a copy of it is in memory."""
        self.until(*steps)
        for slot, step in enumerate(steps):
            await self.told(slot, f"step {step}", lambda r, s=step: s in {checkpoint.step for checkpoint in r.held})

    async def quiet(self, attempt: int) -> Choice:
        """Ranks of the attempt before are gone; what the planner makes of what the agents say then."""
        parent = self.lineage[-1].attempt if self.lineage else None

        def ready(report: Report, slot: int) -> bool:
            looked = self.s3 is None or slot != 0 or (report.run is not None and report.run.scanned_attempt == attempt)
            return report.attempt == attempt and report.state is AgentState.QUIESCED and looked

        reports = {}
        for slot, agent in enumerate(self.agents):
            await self.hub.say(agent.incarnation, quiet(attempt, slot, parent=parent, lineage=self.lineage))
        for slot in SLOTS:
            reports[slot] = await self.told(slot, f"quiet at {attempt}", lambda r, s=slot: ready(r, s))
        status = JobStatus(attempt=attempt, parent=parent, lineage=tuple(_written(link) for link in self.lineage))
        if self.s3 is not None:
            run = reports[0].run
            assert run is not None and run.store is StoreState.OK, run
        return choose(status, reports, len(SLOTS), has_store=self.s3 is not None)

    async def go(self, attempt: int, restore: CheckpointId | None, tier: str = "memory") -> None:
        """Ranks start, and say at which step; one that was given something else than it asked for ends with an error."""
        parent = self.lineage[-1].attempt if self.lineage else None
        self.lineage = (*self.lineage, attempt_link(attempt, parent, restore))
        first = self.hub.newest(self.agents[0].incarnation)
        assert first is not None
        for slot, agent in enumerate(self.agents):
            directive = go(attempt, first.rendezvous, slot, restore, tier, self.lineage, parent=parent)
            await self.hub.say(agent.incarnation, directive)
        step = restore.step if restore is not None else 0
        lines = [f"rank {slot} starts at step {step} of attempt {attempt}\n" for slot in SLOTS]
        await eventually(
            "ranks start", lambda: all(said in agent.log for said, agent in zip(lines, self.agents, strict=True))
        )

    async def crash(self) -> None:
        """SIGKILL for every rank."""
        for slot, agent in enumerate(self.agents):
            for pid in agent.ranks():
                os.kill(pid, signal.SIGKILL)
            await self.told(slot, "the end of the rank", lambda r: r.state is AgentState.EXITED)


def _written(link: Attempt) -> LineageLink:
    restored = CheckpointRef(step=link.restored.step, attempt=link.restored.attempt) if link.restored else None
    return LineageLink(attempt=link.attempt, parent=link.parent, restored=restored)


async def test_two_crashes_around_one_step(hub: Hub, new_agent: NewAgent, tmp_path: Path) -> None:
    """Step 16 of attempt 2 in one memory, step 16 of attempt 3 in the other: together they are no checkpoint."""
    job = Job(hub, new_agent, tmp_path, settings={"memory_every_steps": 1})
    job.pods()
    assert (await job.quiet(2)).verdict == "start"
    await job.go(2, None)
    await job.steps(15, 15)
    await job.steps(16, 15)
    await job.crash()
    again = CheckpointId(15, 2)
    assert job.agents[0].in_memory(0)[0] == CheckpointId(16, 2)
    assert (await job.quiet(3)).checkpoint == again

    job.until(15, 15)
    await job.go(3, again)
    await job.steps(15, 16)
    await job.crash()
    assert CheckpointId(16, 3) in job.agents[1].in_memory(1)
    assert (await job.quiet(4)).checkpoint == again

    job.until(15, 15)
    await job.go(4, again)
    await job.steps(17, 17)
    assert all(agent.in_memory(slot)[0] == CheckpointId(17, 4) for slot, agent in enumerate(job.agents))


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_crash_between_the_shards_and_the_manifest(
    hub: Hub, new_agent: NewAgent, s3: Gateway, tmp_path: Path, shards: int
) -> None:
    """Shards without a manifest are nothing: the checkpoint before them is used, from S3, as all memory is gone too."""
    job = Job(hub, new_agent, tmp_path, s3, settings={"checkpoint_every_steps": 2})
    job.pods()
    assert (await job.quiet(1)).verdict == "start"
    await job.go(1, None)
    job.until(2, 2)
    await eventually("step 2 is committed", lambda: "manifests/2.a1.json" in s3.objects())

    first, second = job.agents
    second.pause()
    job.until(4, 4)
    await eventually("slot 0's shard of step 4", lambda: uploaded(s3) == [0])
    if shards == 2:
        first.pause()
        second.unpause()
        await eventually("slot 1's shard of step 4", lambda: uploaded(s3) == [0, 1])
    for agent in job.agents:
        agent.kill()
    assert "manifests/4.a1.json" not in s3.objects()

    job.pods(first_incarnation=2)
    job.until(2, 2)
    choice = await job.quiet(2)
    assert choice.checkpoint == CheckpointId(2, 1), choice
    await job.go(2, choice.checkpoint, tier="s3")
    job.until(4, 4)
    await eventually("step 4 is committed anew", lambda: "manifests/4.a2.json" in s3.objects())
    assert "manifests/4.a1.json" not in s3.objects()


def uploaded(s3: Gateway) -> list[int]:
    """Ranks whose shard of checkpoint 4.a1 is in the store, record and all."""
    return [rank for rank in SLOTS if f"steps/4.a1/rank-{rank:05d}.json" in s3.objects()]
