"""However many micro-steps a step has, its gradient is the one that a single process makes of all its samples at once."""

import json
import re
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from .ranks import job
from .test_training import training

pytestmark = pytest.mark.component

STAGES = [{"fromStep": 1, "factor": 1.5}, {"fromStep": 2, "factor": 0.5}, {"fromStep": 3, "factor": 2}]


def compare_with_one_process() -> None:
    """In each rank: before every update, rank 0 computes the gradient anew with a model that knows no ranks."""
    import torch
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad

    from ciuic_trainer.train.data import SampleOrder, batch
    from ciuic_trainer.train.model import build_model, token_losses
    from ciuic_trainer.train.step import Judge, Stepper, StepResult

    original = Stepper.make

    def make(self: Stepper, order: SampleOrder, cursor: int, micro_steps: int, judge: Judge) -> StepResult:
        update = self.engine.step

        def compared() -> None:
            parameters = dict(self.engine.module.named_parameters())
            ours = {name: safe_get_full_grad(parameter) for name, parameter in parameters.items()}
            weights = {name: safe_get_full_fp32_param(parameter) for name, parameter in parameters.items()}
            if self.env.rank == 0:
                single = build_model(self.engine.module.config)
                single.load_state_dict(weights | dict(self.engine.module.named_buffers()), strict=False)
                rows = batch(self.samples, order, cursor, self.samples_per_step(micro_steps))
                tokens = torch.from_numpy(rows)
                loss: Any = token_losses(single, tokens) / tokens[:, 1:].numel()
                loss.backward()
                theirs = {name: parameter.grad for name, parameter in single.named_parameters()}
                largest = max(float(gradient.abs().max()) for gradient in theirs.values())
                apart = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
                print("\nGRADIENTS", json.dumps([micro_steps, largest, apart]), flush=True)
            update()

        self.engine.step = compared
        try:
            return original(self, order, cursor, micro_steps, judge)
        finally:
            self.engine.step = update

    Stepper.make = make  # type: ignore[method-assign]


def test_gradients_are_those_of_one_process(context: ForkServerContext, data: Path, tmp_path: Path) -> None:
    fields = training(data, steps=4, accumulation={"mode": "ByStep", "stages": STAGES}, evaluation={"everySteps": 0})
    with job(context, tmp_path, fields) as running:
        attempt = running.start(1, patch=compare_with_one_process)
        assert attempt.wait() == (0, 0), attempt.outputs()
    found = [json.loads(text) for text in re.findall(r"^GRADIENTS (.*)$", attempt.output(0), re.MULTILINE)]
    assert [micro_steps for micro_steps, _, _ in found] == [2, 3, 1, 4]
    assert [record["micro_steps"] for record in attempt.records("step")] == [2, 3, 1, 4]
    for _, largest, apart in found:
        assert largest > 0.01 and apart < 1e-6
