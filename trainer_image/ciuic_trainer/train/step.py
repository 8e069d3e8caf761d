"""One optimizer step over all ranks: micro-steps of forward and backward pass, then the update. Called by the loop."""

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
from .guards import Verdict
from .model import token_losses
from .norm_gate import NormGate
from .router_bias import RouterBalance

Judge = Callable[[float, float], Verdict]
"""Of loss and norm of the gradient."""


@dataclass(frozen=True)
class StepResult:
    loss: float
    """Mean over all tokens of the step, on all ranks."""
    gradient_norm: float
    """Before clipping."""
    verdict: Verdict
    stop: bool
    """Some rank was asked to stop."""
    micro_losses: torch.Tensor
    """Of this rank's micro-batches, each summed over its tokens."""
    bad_gradient: str | None
    """The first parameter whose gradient was not finite."""

    @property
    def applied(self) -> bool:
        """False: the update was skipped on all ranks."""
        return self.verdict is Verdict.GOOD


@dataclass(frozen=True)
class Stepper:
    engine: Any
    gate: NormGate
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

    def first_place(self, cursor: int, micro_step: int, rank: int) -> int:
        """Of a micro-batch in the order of the samples."""
        return cursor + (micro_step * self.env.world_size + rank) * self.training.micro_batch_size

    def tokens(self, order: SampleOrder, cursor: int, micro_step: int) -> torch.Tensor:
        place = self.first_place(cursor, micro_step, self.env.rank)
        return torch.from_numpy(batch(self.samples, order, place, self.training.micro_batch_size)).to(self.device.torch)

    def make(self, order: SampleOrder, cursor: int, micro_steps: int, judge: Judge) -> StepResult:
        """Over `samples_per_step` samples from place `cursor` of the order on."""
        tokens_per_step = self.tokens_per_step(micro_steps)
        micro_losses = torch.zeros(micro_steps, device=self.device.torch)
        for micro_step in range(micro_steps):
            tokens = self.tokens(order, cursor, micro_step)
            with self.balance.counting():
                loss = token_losses(self.engine, tokens)
            # ZeRO averages over ranks: this makes the gradient that of the mean over all tokens of the step
            self.engine.backward(loss * (self.env.world_size / tokens_per_step), scale_wrt_gas=False)
            micro_losses[micro_step] = loss.detach()
            self.progress.micro_step(micro_step + 1)
        sums = torch.stack((micro_losses.sum(), torch.tensor(float(self.stop_requested()), device=self.device.torch)))
        torch.distributed.all_reduce(sums)
        mean_loss = float((sums[0] / tokens_per_step).item())
        self.gate.step(lambda norm: judge(mean_loss, norm))
        self.balance.update(applied=self.gate.verdict is Verdict.GOOD)
        return StepResult(
            loss=mean_loss,
            gradient_norm=self.gate.norm,
            verdict=self.gate.verdict,
            stop=bool(sums[1].item()),
            micro_losses=micro_losses,
            bad_gradient=self.gate.bad_gradient,
        )
