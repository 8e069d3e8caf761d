"""The DeepSpeed configurations that people paste train, do what they say, and resume to the last bit."""

import importlib
import json
import re
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from ciuic_api.lineage import CheckpointId
from deepspeed_blocks import FP8_BLOCK, FP16_BLOCK

from .ranks import call, job
from .test_training import training

pytestmark = pytest.mark.component

STEPS, MIDDLE = 8, 4
LITTLE: dict[str, Any] = {
    "steps": STEPS,
    "gradientAccumulation": 1,
    "accumulation": {},
    "evaluation": {"everySteps": 0},
}


def print_engine() -> None:
    """ENGINE with what DeepSpeed made of its configuration, and the loss scale at the end."""
    loop: Any = importlib.import_module("ciuic_trainer.train.loop")
    build = loop.build_engine

    def build_engine(*arguments: Any) -> Any:
        engine = build(*arguments)

        def place(offload: Any) -> str | None:
            return str(getattr(offload.device, "value", offload.device)) if offload else None

        zero, optimizer = engine._config.zero_config, engine.optimizer
        print(
            "\nENGINE",
            json.dumps(
                {
                    "stage": int(zero.stage),
                    "fp16": engine.fp16_enabled(),
                    "bf16": engine.bfloat16_enabled(),
                    "dynamic": bool(optimizer.dynamic_loss_scale),
                    "loss_scale": float(optimizer.loss_scale),
                    "offload_param": place(zero.offload_param),
                    "offload_optimizer": place(zero.offload_optimizer),
                    "overlap_comm": zero.overlap_comm,
                    "contiguous_gradients": zero.contiguous_gradients,
                    "reduce_bucket_size": zero.reduce_bucket_size,
                    "prefetch_bucket_size": zero.prefetch_bucket_size,
                    "kept_gathered": len(optimizer.persistent_parameters),
                    "steps_per_print": engine.steps_per_print(),
                }
            ),
            flush=True,
        )
        return engine

    loop.build_engine = build_engine


def has_fp16() -> bool:
    import torch

    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


@pytest.mark.parametrize(
    ("block", "facts", "remark"),
    [
        pytest.param(
            FP8_BLOCK,
            {"stage": 3, "fp16": False, "bf16": True, "offload_param": "cpu", "offload_optimizer": None},
            "fp8 (HYBRID) was asked for, which this version does not have",
            id="fp8 with parameter offload",
        ),
        pytest.param(
            FP16_BLOCK,
            {"stage": 3, "offload_param": None, "offload_optimizer": "cpu", "overlap_comm": True}
            | {"contiguous_gradients": True, "reduce_bucket_size": 500_000_000, "prefetch_bucket_size": 500_000_000}
            | {"steps_per_print": 2000},
            "fp16 was asked for, which cpu does not have",
            id="fp16 with optimizer offload",
        ),
    ],
)
def test_it_trains_and_resumes_exactly(
    context: ForkServerContext, data: Path, tmp_path: Path, block: dict[str, Any], facts: dict[str, Any], remark: str
) -> None:
    fields = training(data, deepspeed=block, **LITTLE)
    with job(context, tmp_path, fields, memory_every=MIDDLE) as running:
        attempt = running.start(1, patch=print_engine)
        assert attempt.wait() == (0, 0), attempt.outputs()
        resumed = running.start(2, restore=CheckpointId(MIDDLE, 1))
        assert resumed.wait() == (0, 0), resumed.outputs()
    found = json.loads(re.findall(r"^ENGINE (.*)$", attempt.output(0), re.MULTILINE)[0])
    assert found.items() >= facts.items()
    as_asked = block is FP16_BLOCK and call(context, has_fp16)
    assert [record["message"].startswith(remark) for record in attempt.records("remark")] == (
        [] if as_asked else [True]
    )
    if as_asked:
        assert (found["fp16"], found["dynamic"], found["loss_scale"]) == (True, True, 2.0**16)
        assert found["kept_gathered"] > 0
    losses = attempt.losses()
    assert losses[1] - losses[STEPS] > 0.1
    assert resumed.losses() == {step: loss for step, loss in losses.items() if step > MIDDLE}
    assert attempt.records("guard") == []


def test_an_overflow_lowers_the_scale_and_is_no_bad_step(
    context: ForkServerContext, data: Path, tmp_path: Path
) -> None:
    if not call(context, has_fp16):
        pytest.skip("this processor has no fp16")
    block = {"fp16": {"enabled": True, "hysteresis": 1, "loss_scale_window": 4, "initial_scale_power": 24}}
    fields = training(data, deepspeed=block, **LITTLE)
    with job(context, tmp_path, fields, memory_every=2) as running:
        attempt = running.start(1)
        assert attempt.wait() == (0, 0), attempt.outputs()
        applied = [record["applied"] for record in attempt.records("step")]
        assert not applied[0] and True in applied
        assert "SKIPPED: Overflow" in attempt.output(0) and attempt.records("guard") == []
        middle = min(held.checkpoint for held in running.held(0))
        resumed = running.start(2, restore=middle)
        assert resumed.wait() == (0, 0), resumed.outputs()
    records = {record["step"]: (record["loss"], record["applied"]) for record in attempt.records("step")}
    again = {record["step"]: (record["loss"], record["applied"]) for record in resumed.records("step")}
    assert again.items() <= records.items() and {applied for _, applied in again.values()} == {True, False}
