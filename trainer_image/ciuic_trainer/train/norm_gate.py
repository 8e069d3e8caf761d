"""A place between the norm of the gradient and the update that it belongs to, where a step can still be refused.

Used by step.py. DeepSpeed computes the norm inside its step and skips the update on all ranks when the norm is invalid; the
gate hands the norm to a judge, and an invalid one back to DeepSpeed where the judge says no.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from deepspeed.runtime.utils import combine_grad_norm_groups

from .guards import Verdict
from .tensor_check import first_bad_gradient

_INVALID = -1.0
"""What DeepSpeed itself makes of a norm that is not finite."""


class NormGate:
    def __init__(self, engine: Any, device: torch.device) -> None:
        self._engine = engine
        self._device = device
        self._norm_groups = engine.optimizer._get_norm_groups
        engine.optimizer._get_norm_groups = self._judged
        self._judge: Callable[[float], Verdict] = lambda _: Verdict.GOOD
        self.norm = math.nan
        """Of the last step's gradient, before clipping; equal on all ranks."""
        self.verdict = Verdict.GOOD
        self.bad_gradient: str | None = None
        """The first parameter whose gradient was not finite."""

    def step(self, judge: Callable[[float], Verdict]) -> None:
        """engine.step(), applied only where the judge finds the norm good."""
        self._judge = judge
        self.verdict, self.norm, self.bad_gradient = Verdict.OVERFLOW, math.inf, None
        self._engine.step()
        if self.verdict is Verdict.OVERFLOW and (verdict := judge(1.0)) is Verdict.LOSS_NOT_FINITE:
            self.verdict = verdict
        applied = bool(self._engine.was_step_applied())
        if applied != (self.verdict is Verdict.GOOD):
            raise RuntimeError(f"DeepSpeed {'applied' if applied else 'skipped'} a step that is {self.verdict}")

    def _judged(self) -> list[Any]:
        optimizer = self._engine.optimizer
        groups: list[Any] = self._norm_groups()
        norm = combine_grad_norm_groups(groups)
        self.norm = float(norm) / optimizer.loss_scale
        self.verdict = self._judge(self.norm)
        self.bad_gradient = None
        if not math.isfinite(self.norm):
            self.bad_gradient = first_bad_gradient(optimizer, self._engine.module, self._device)
        return groups if self.verdict is Verdict.GOOD else [torch.full_like(norm, _INVALID)]
