"""Aux-loss-free expert balancing: the routers' correction bias moves towards equal load after every optimizer step.

transformers routes with the bias and never changes it. The loop opens `counting()` around the forward pass only, so the
recomputation in the backward pass is not counted again. The bias is a persistent buffer, equal on all ranks.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed

from .model import routers


class RouterBalance:
    def __init__(self, model: Any, rate: float, device: torch.device) -> None:
        self._routers = list(routers(model).values())
        self._rate = rate
        self._open = False
        experts = self._routers[0].num_experts if self._routers else 0
        self.counts = torch.zeros(len(self._routers), experts, dtype=torch.int64, device=device)
        """(layers, experts): choices of this rank since the last update."""
        for row, router in enumerate(self._routers):
            router.register_forward_hook(self._counter(row))

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._open = True
        try:
            yield
        finally:
            self._open = False

    @torch.no_grad()
    def update(self, *, applied: bool) -> None:
        """After an optimizer step. A skipped step was made of values that are not finite: its counts say nothing."""
        if applied and self._routers and self._rate:
            torch.distributed.all_reduce(self.counts)
            load = self.counts.float()
            moves = self._rate * torch.sign(load.mean(dim=1, keepdim=True) - load)
            for router, move in zip(self._routers, moves, strict=True):
                router.e_score_correction_bias += move
        self.counts.zero_()

    def _counter(self, row: int) -> Any:
        def count(_module: Any, _inputs: Any, outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
            if self._open:
                chosen = outputs[2].flatten()
                self.counts[row] += torch.bincount(chosen, minlength=self.counts.shape[1])

        return count
