"""Every rank holds the same where it must, whatever the world size, and one that does not is named."""

import os
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from .injections import DRIFTING_BUFFER, at_steps
from .ranks import call, job
from .test_training import training

pytestmark = pytest.mark.component


def sentences(*cases: dict[str, list[int]]) -> list[str | None]:
    from ciuic_trainer.train.agreement import disagreement

    return [disagreement(case) for case in cases]


def test_the_minority_is_named(context: ForkServerContext) -> None:
    cases: list[dict[str, list[int]]] = [
        {"a": [1, 1, 1]},
        {"a": [1, 1], "b": [7, 8]},
        {"a": [5, 4, 4, 4]},
        {"a": [1, 2, 2, 1]},
    ]
    assert call(context, sentences, *cases) == [
        None,
        "rank 1 of 2 has another b than rank 0",
        "rank 0 of 4 has another a than rank 1",
        "rank 1, 2 of 4 has another a than rank 0",
    ]


def test_a_rank_that_drifts_ends_the_attempt_before_its_checkpoint(
    context: ForkServerContext, data: Path, tmp_path: Path
) -> None:
    with job(context, tmp_path, training(data, steps=9), memory_every=4) as running:
        attempt = running.start(1, patch=partial(at_steps, {3: "buffer"}))
        assert attempt.wait() == (1, 1), attempt.outputs()
        for rank in (0, 1):
            assert f"step 4: rank 1 of 2 has another buffer.{DRIFTING_BUFFER} than rank 0" in attempt.output(rank)
            assert running.held(rank) == []


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_world_size_starts_with_the_same_model_and_samples(
    context: ForkServerContext, data: Path, tmp_path: Path, world_size: int
) -> None:
    """Twelve samples in the first step of each; their mean loss is the same but for the order of summation."""
    starts = []
    for size in (2, world_size):
        fields = training(
            data, steps=1, microBatchSize=12 // size, gradientAccumulation=1, evaluation={"everySteps": 0}
        )
        with job(context, tmp_path / str(size), fields, world_size=size) as running:
            attempt = running.start(1)
            assert attempt.wait() == (0,) * size, attempt.outputs()
            (start,) = attempt.records("start")
            starts.append((start["parameters_digest"], attempt.losses()[1]))
    assert starts[0][0] == starts[1][0]
    assert starts[0][1] == pytest.approx(starts[1][1], abs=1e-5)


def settings_after() -> dict[str, Any]:
    import torch

    from ciuic_trainer.train.device import DETERMINISTIC_ENV, make_deterministic

    os.environ["NCCL_ALGO"] = "Tree"
    make_deterministic()
    found: dict[str, Any] = {name: os.environ[name] for name in DETERMINISTIC_ENV}
    return found | {"torch": torch.are_deterministic_algorithms_enabled()}


def test_deterministic_settings_leave_what_is_set(context: ForkServerContext) -> None:
    assert call(context, settings_after) == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "NCCL_ALGO": "Tree",
        "HCCL_DETERMINISTIC": "true",
        "torch": True,
    }
