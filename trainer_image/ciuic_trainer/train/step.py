"""One optimizer step over all ranks: micro-steps of forward and backward pass, then the update. Called by the loop."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from ciuic_api.training import Training
from ciuic_trainer.shared.progress import ProgressWriter
from ciuic_trainer.shared.rank_env import RankEnv

from .data import SampleOrder, TokenSplit, batch
from .device import Device
from .model import token_losses
from .router_bias import RouterBalance


@dataclass(frozen=True)
class StepResult:
    loss: float
    """Mean over all tokens of the step, on all ranks."""
    gradient_norm: float
    applied: bool
    """False: DeepSpeed skipped the update on all ranks, because the norm was not finite."""
    stop: bool
    """Some rank was asked to stop."""


@dataclass(frozen=True)
class Stepper:
    engine: Any
    balance: RouterBalance
    samples: TokenSplit
    training: Training
    env: RankEnv
    device: Device
    progress: ProgressWriter
    stop_requested: Callable[[], bool]

    def samples_per_step(self, micro_steps: int) -> int:
        return self.training.micro_batch_size * micro_steps * self.env.world_size

    def tokens_per_step(self, micro_steps: int) -> int:
        return self.samples_per_step(micro_steps) * self.training.sequence_length

    def make(self, order: SampleOrder, cursor: int, micro_steps: int) -> StepResult:
        """Over `samples_per_step` samples from place `cursor` of the order on."""
        tokens_per_step = self.tokens_per_step(micro_steps)
        sums = torch.zeros(2, device=self.device.torch)  # loss of all tokens, ranks that were asked to stop
        for micro_step in range(micro_steps):
            place = cursor + (micro_step * self.env.world_size + self.env.rank) * self.training.micro_batch_size
            rows = batch(self.samples, order, place, self.training.micro_batch_size)
            tokens = torch.from_numpy(rows).to(self.device.torch)
            with self.balance.counting():
                loss = token_losses(self.engine, tokens)
            # ZeRO averages over ranks: this makes the gradient that of the mean over all tokens of the step
            self.engine.backward(loss * (self.env.world_size / tokens_per_step), scale_wrt_gas=False)
            sums[0] += loss.detach()
            self.progress.micro_step(micro_step + 1)
        self.engine.step()
        applied = bool(self.engine.was_step_applied())
        self.balance.update(applied=applied)
        sums[1] = float(self.stop_requested())
        torch.distributed.all_reduce(sums)
        norm = float(self.engine.get_global_grad_norm())
        return StepResult(
            loss=float((sums[0] / tokens_per_step).item()),
            gradient_norm=norm if applied else math.inf,
            applied=applied,
            stop=bool(sums[1].item()),
        )
