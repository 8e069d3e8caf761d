"""Mean loss on the held-out part, over the same samples each time. Called by the loop."""

from typing import Any

import torch
import torch.distributed

from ciuic_trainer.shared.rank_env import RankEnv

from .data import SampleOrder, TokenSplit, batch
from .device import Device
from .model import token_losses


class Evaluation:
    def __init__(self, split: TokenSplit, seed: int, batches: int, micro_batch: int, env: RankEnv, device: Device):
        self._split = split
        self._order = SampleOrder(len(split), seed)
        self._env = env
        self._device = device
        self._micro_batch = micro_batch
        self._batches = batches

    @torch.no_grad()
    def loss(self, engine: Any) -> float:
        """Nats per token, equal on all ranks. Changes nothing of the training state."""
        engine.eval()
        sums = torch.zeros(2, device=self._device.torch)
        for number in range(self._batches):
            first = (number * self._env.world_size + self._env.rank) * self._micro_batch
            tokens = torch.from_numpy(batch(self._split, self._order, first, self._micro_batch)).to(self._device.torch)
            sums[0] += token_losses(engine, tokens)
            sums[1] += tokens[:, 1:].numel()
        engine.train()
        torch.distributed.all_reduce(sums)
        return float((sums[0] / sums[1]).item())
