"""Two real ranks: they learn, die, stop, resume, and the losses stay the same to the last bit."""

import math
import re
import signal
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from ciuic_api.lineage import CheckpointId
from ciuic_api.protocol import STOPPED_EXIT_CODE
from ciuic_api.training import Training
from ciuic_trainer.shared.memory_tier import MemoryTier
from ciuic_trainer.shared.shard_format import parse

from .ranks import Attempt, Job, job

pytestmark = pytest.mark.component

STEPS = 40
WORLD_SIZE = 2


ADAPTIVE = {"windowSteps": 4, "minImprovement": 0.08}
STAGES = [{"fromStep": 5, "factor": 1.5}, {"fromStep": 15, "factor": 0.5}]
"""They act before and after the places where the test kills and stops."""


def training(data: Path, **changes: Any) -> dict[str, Any]:
    """Everything that keeps state is on."""
    return {
        "steps": STEPS,
        "data": {"path": str(data)},
        "gradientAccumulation": 2,
        "accumulation": {"mode": "ByStep", "stages": STAGES, "rateScaling": "SquareRoot"},
        "learningRate": {"warmup": "LayerWise", "adaptive": ADAPTIVE},
        "evaluation": {"everySteps": 20, "batches": 2},
    } | changes


@pytest.fixture(scope="module")
def clean(
    context: ForkServerContext, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Job, Attempt]]:
    """A run that nothing disturbed."""
    with job(context, tmp_path_factory.mktemp("clean"), training(data), memory_every=10) as running:
        attempt = running.start(1)
        assert attempt.wait() == (0, 0), attempt.outputs()
        yield running, attempt


def test_it_learns(clean: tuple[Job, Attempt]) -> None:
    losses, evaluations = clean[1].losses(), clean[1].evaluations()
    assert losses[1] == pytest.approx(math.log(1024), abs=0.1), "starts as one who knows nothing"
    assert losses[1] - losses[STEPS] >= 1.0
    assert evaluations[0] - evaluations[STEPS] >= 1.0, "on the held-out part too"
    assert sorted(evaluations) == [0, 20, STEPS]


def test_every_step_is_logged_once_and_alike_by_all_ranks(clean: tuple[Job, Attempt]) -> None:
    for rank in range(WORLD_SIZE):
        records = clean[1].records("step", rank)
        assert [record["step"] for record in records] == list(range(1, STEPS + 1))
        assert {(record["attempt"], record["rank"], record["applied"]) for record in records} == {(1, rank, True)}
    assert clean[1].losses(0) == clean[1].losses(1)


def test_people_see_one_line_per_step(clean: tuple[Job, Attempt]) -> None:
    lines = re.findall(r"^step (\d+)/40 \| loss (\S+) \| lr [^|]+ \| grad norm \S+ \| \S+ tokens/s \| \S+ ms$",
                       clean[1].output(0), re.MULTILINE)  # fmt: skip
    assert {int(step): float(loss) for step, loss in lines} == clean[1].losses()
    assert "step" not in clean[1].output(1)


def test_routers_are_balanced_alike_on_all_ranks(clean: tuple[Job, Attempt]) -> None:
    biases = [shard_bytes(clean[0], rank, "buffer.model.layers.1.mlp.gate.e_score_correction_bias") for rank in (0, 1)]
    assert biases[0] == biases[1]
    assert any(memoryview(biases[0]).cast("f"))


def test_killed_stopped_and_resumed_it_makes_the_same_losses(
    clean: tuple[Job, Attempt], context: ForkServerContext, data: Path, tmp_path: Path
) -> None:
    with job(context, tmp_path, training(data), memory_every=10, checkpoint_every=1000) as running:
        killed = running.start(1)
        killed.reach(12)
        killed.send(1, signal.SIGKILL)
        codes = killed.wait()
        assert codes[1] == -signal.SIGKILL and codes[0] != 0, "nobody goes on alone"
        assert running.newest() == CheckpointId(10, 1)

        stopped = running.start(2, restore=running.newest())
        stopped.reach(22)
        stopped.send(0, signal.SIGTERM)
        assert stopped.wait() == (STOPPED_EXIT_CODE, STOPPED_EXIT_CODE), stopped.outputs()
        last = max(stopped.losses())
        assert max(stopped.losses(1)) == last, "all ranks stop at the same step"
        for rank in (0, 1):
            newest = running.held(rank)[0]
            assert (newest.checkpoint, newest.persist) == (CheckpointId(last, 2), True)

        as_if_downloaded(running, CheckpointId(last, 2))
        resumed = running.start(3, restore=CheckpointId(last, 2))
        assert resumed.wait() == (0, 0), resumed.outputs()

    assert min(stopped.losses()) == 11 and min(resumed.losses()) == last + 1
    assert killed.losses() | stopped.losses() | resumed.losses() == clean[1].losses()
    annealed = {record["step"]: record["factor"] for record in clean[1].records("annealed")}
    assert 10 < min(annealed) < last < max(annealed), "else this would show nothing"
    parts = (killed, stopped, resumed)
    assert annealed == {r["step"]: r["factor"] for part in parts for r in part.records("annealed")}
    assert killed.evaluations() | stopped.evaluations() | resumed.evaluations() == clean[1].evaluations()
    for name in ("parameters.0", "parameters.1", "exp_avg.0", "exp_avg_sq.0", "rng.torch"):
        for rank in (0, 1):
            assert shard_bytes(running, rank, name) == shard_bytes(clean[0], rank, name), name


def test_a_changed_schedule_regroups_the_parameters(context: ForkServerContext, data: Path, tmp_path: Path) -> None:
    """A restore compares digests by parameter, so a moment in the wrong place ends the attempt."""
    with job(context, tmp_path, training(data, steps=4, learningRate={}), memory_every=4) as running:
        assert running.start(1).wait() == (0, 0)
        running.training = Training.model_validate(training(data, steps=6))
        regrouped = running.start(2, restore=CheckpointId(4, 1))
        assert regrouped.wait() == (0, 0), regrouped.outputs()
        assert sorted(regrouped.losses()) == [5, 6]
        rates = [(record["learning_rate_lowest"], record["learning_rate"]) for record in regrouped.records("step")]
        assert all(low < high for low, high in rates)


def as_if_downloaded(running: Job, checkpoint: CheckpointId) -> None:
    """Move the shards into new, empty memory tiers, as the agent does with what comes from S3."""
    for rank in range(WORLD_SIZE):
        pinned, payload = running.tier(rank).open_verified(checkpoint)
        with pinned:
            shard = bytes(payload)
        running.tier_folder(rank).rename(running.folder / f"lost-{rank}")
        tier = MemoryTier(running.tier_folder(rank), rank, WORLD_SIZE)
        tier.prepare(len(shard))
        assert tier.write(checkpoint, persist=False, chunks=[memoryview(shard)], size_bytes=len(shard))


def shard_bytes(running: Job, rank: int, tensor: str) -> bytes:
    pinned, payload = running.tier(rank).open_verified(running.newest())
    with pinned:
        return bytes(parse(payload).data(tensor))
