"""Poisoned samples, gradients and weights in two real ranks: what is skipped, what is said, and what is never used again."""

import pydoc_data.topics
import re
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from ciuic_api.lineage import CheckpointId
from ciuic_trainer.shared import messages
from ciuic_trainer.train.data import SampleOrder, Split, TokenSplit, read_manifest
from ciuic_trainer.train.tokenize import tokenize

from .injections import (
    POISONED_MODULE,
    POISONED_PARAMETER,
    at_steps,
    poison_before_saving,
    poison_sample,
    print_clipped_norms,
)
from .ranks import Attempt, Job, job

pytestmark = pytest.mark.component

MICRO_BATCH, ACCUMULATION, WORLD_SIZE = 4, 2, 2
BAD_STEP, BAD_RANK, BAD_MICRO_STEP = 3, 1, 1
EPOCHS = 2.5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So little that an epoch has some twenty steps."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "text").write_text("\n".join(pydoc_data.topics.topics.values())[:50_000])
    tokenize(folder / "text", folder / "tokens", vocabulary=512, lines=8, held_out_every=10, shard_tokens=50_000)
    return folder / "tokens"


def training(data: Path, **changes: Any) -> dict[str, Any]:
    return {
        "data": {"path": str(data)},
        "microBatchSize": MICRO_BATCH,
        "gradientAccumulation": ACCUMULATION,
        "evaluation": {"everySteps": 0},
        "guards": {"spikeSigma": 0},
    } | changes


def said(attempt: Attempt, text: str) -> list[str]:
    return [line for line in attempt.output(0).splitlines() if text in line and not line.startswith("{")]


def guard_records(attempt: Attempt) -> list[dict[str, Any]]:
    """Those of all ranks, which must be the same."""
    ranks = [
        [
            {key: value for key, value in record.items() if key not in ("rank", "time")}
            for record in attempt.records("guard", rank)
        ]
        for rank in range(WORLD_SIZE)
    ]
    assert ranks[0] == ranks[1]
    return ranks[0]


@pytest.fixture(scope="module")
def poisoned(
    context: ForkServerContext, data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Job, Attempt, list[int], list[messages.RankMessage]]]:
    order = SampleOrder(len(TokenSplit(data, read_manifest(data), Split.TRAIN, 64)), seed=42)
    per_step = MICRO_BATCH * ACCUMULATION * WORLD_SIZE
    first = (BAD_STEP - 1) * per_step + (BAD_MICRO_STEP * WORLD_SIZE + BAD_RANK) * MICRO_BATCH
    samples = [order.sample(first + number) for number in range(MICRO_BATCH)]
    steps = int(EPOCHS * order.size / per_step)
    assert 30 < steps < 90, "two epochs and a half, and checkpoints after the first"
    folder = tmp_path_factory.mktemp("p")
    with job(context, folder, training(data, steps=steps), memory_every=steps - 8) as running:
        running.patch = partial(poison_sample, data, samples[2])
        attempt = running.start(1)
        receiver = messages.bind(attempt.folder / "messages")
        assert attempt.wait() == (0, 0), attempt.outputs()
        received = []
        while True:
            try:
                received.append(messages.decode(receiver.recv(messages.MAX_DATAGRAM_BYTES)))
            except BlockingIOError:
                break
        receiver.close()
        yield running, attempt, samples, [message for message in received if message is not None]


def test_a_poisoned_sample_is_skipped_once_and_said(poisoned: Any) -> None:
    _, attempt, samples, received = poisoned
    (record,) = guard_records(attempt)
    assert (record["step"], record["verdict"]) == (BAD_STEP, "LossNotFinite")
    assert record["blacklisted"] == samples
    assert record["first_bad"] == POISONED_MODULE
    applied = {record["step"]: record["applied"] for record in attempt.records("step")}
    assert [step for step, done in applied.items() if not done] == [BAD_STEP]
    (line,) = said(attempt, "was skipped on all ranks")
    assert POISONED_MODULE in line and str(samples) in line
    records = [message for message in received if isinstance(message, messages.Record)]
    assert [(message.rank, message.reason) for message in records] == [(0, "StepSkipped")]
    assert records[0].message == line


def test_a_resumed_run_remembers_the_sample(poisoned: Any) -> None:
    """It restores after the first epoch: without the blacklist the sample would come again in the third."""
    running, attempt, _, _ = poisoned
    steps = running.training.steps
    resumed = running.start(2, restore=CheckpointId(steps - 8, 1))
    assert resumed.wait() == (0, 0), resumed.outputs()
    assert guard_records(resumed) == []
    losses = {step: loss for step, loss in attempt.losses().items() if step > steps - 8}
    assert len(losses) == 8 and resumed.losses() == losses


def test_bad_gradients_and_spikes_are_skipped_and_the_rate_is_lowered(
    context: ForkServerContext, data: Path, tmp_path: Path
) -> None:
    faults = {3: "gradient", 8: "large gradient", 12: "loss", 13: "gradient", 14: "gradient", 15: "gradient"}
    fields = training(
        data,
        steps=20,
        learningRate={"warmupSteps": 0, "minRatio": 1},
        guards={"spikeSigma": 6, "spikeWindowSteps": 8},
    )
    with job(context, tmp_path, fields, memory_every=11) as running:
        attempt = running.start(1, patch=partial(at_steps, faults))
        assert attempt.wait() == (1, 1), attempt.outputs()
        found = guard_records(attempt)
        wanted = [(3, "GradientNotFinite"), (8, "GradientSpike"), (12, "LossSpike")]
        wanted += [(step, "GradientNotFinite") for step in (13, 14, 15)]
        assert [(record["step"], record["verdict"]) for record in found] == wanted
        where = f"the gradient of {POISONED_PARAMETER}"
        assert [record["first_bad"] for record in found] == [where, None, None, where, where, where]
        assert {tuple(record["blacklisted"]) for record in found} == {()}
        rates = {record["step"]: record["learning_rate"] / 6e-3 for record in attempt.records("step")}
        assert [rates[step] for step in (8, 9, 12, 13, 14, 15)] == [1, 0.5, 0.5, 0.25, 0.125, 0.125]
        assert "not finite in steps 13 to 15" in attempt.output(0) and where in attempt.output(1)
        assert max(attempt.losses()) == 15, "the third in a row ends it"

        later = {step - 11: fault for step, fault in faults.items() if step > 11}
        resumed = running.start(2, restore=CheckpointId(11, 1), patch=partial(at_steps, later))
        assert resumed.wait() == (1, 1), resumed.outputs()
        assert guard_records(resumed) == [record | {"attempt": 2} for record in found if record["step"] > 11]
        for name in ("loss", "learning_rate"):
            before, after = ({r["step"]: r[name] for r in a.records("step")} for a in (attempt, resumed))
            assert sorted(after) == [12, 13, 14, 15] and after.items() <= before.items()


def test_bad_weights_end_the_attempt_and_are_named(context: ForkServerContext, data: Path, tmp_path: Path) -> None:
    with job(context, tmp_path, training(data, steps=9), memory_every=2) as running:
        attempt = running.start(1, patch=partial(at_steps, {4: "weight"}))
        assert attempt.wait() == (1, 1), attempt.outputs()
        for rank in range(WORLD_SIZE):
            assert f"step 4: the weights of {POISONED_PARAMETER} are not finite" in attempt.output(rank)
            assert [held.checkpoint for held in running.held(rank)] == [CheckpointId(2, 1)]


def test_no_checkpoint_is_made_of_bad_weights(context: ForkServerContext, data: Path, tmp_path: Path) -> None:
    with job(context, tmp_path, training(data, steps=9), memory_every=2) as running:
        attempt = running.start(1, patch=poison_before_saving)
        assert attempt.wait() == (1, 1), attempt.outputs()
        for rank in range(WORLD_SIZE):
            assert "step 2: parameters or moments are not finite; no checkpoint" in attempt.output(rank)
            assert running.held(rank) == []


@pytest.mark.parametrize("clipping", [0.4, 0])
def test_gradients_are_clipped_at_the_norm_of_all(
    context: ForkServerContext, data: Path, tmp_path: Path, clipping: float
) -> None:
    with job(context, tmp_path, training(data, steps=3, gradientClipping=clipping)) as running:
        attempt = running.start(1, patch=print_clipped_norms)
        assert attempt.wait() == (0, 0), attempt.outputs()
    norms = [record["gradient_norm"] for record in attempt.records("step")]
    clipped = [float(text) for text in re.findall(r"^CLIPPED (\S+)$", attempt.output(0), re.MULTILINE)]
    assert min(norms) > 0.5 and len(clipped) == 3
    assert clipped == pytest.approx([min(norm, clipping or norm) for norm in norms], rel=1e-4)
