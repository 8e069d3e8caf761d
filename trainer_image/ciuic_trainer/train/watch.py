"""Watches the numbers of the training: finds out why a step was bad, says it, and keeps what follows from it.

Called by the loop after every step. All ranks see the same loss, norm and verdict, so all ask the same questions together.
What is decided, guards.py decides.
"""

import torch
import torch.distributed

from ciuic_trainer.shared.messages import Record, Sender

from .data import SampleOrder
from .errors import NonFiniteError
from .guards import BLACKLIST_LIMIT, SKIPS_ALLOWED, GuardState, Verdict, after, bad_rows, judge
from .log import Log
from .state import TrainState
from .step import Stepper, StepResult
from .tensor_check import first_bad_output, first_bad_weight


class Watch:
    def __init__(self, stepper: Stepper, sender: Sender, log: Log) -> None:
        self._stepper = stepper
        self._config = stepper.training.guards
        self._sender = sender
        self._log = log

    def judge(self, state: GuardState, loss: float, norm: float) -> Verdict:
        return judge(self._config, state, loss, norm)

    def after(self, train: TrainState, order: SampleOrder, cursor: int, result: StepResult) -> GuardState:
        """`train.step` has been made, over the samples from `cursor` on. Raises NonFiniteError where it can not go on."""
        before, where = train.guard, ""
        bad_samples: list[int] = []
        if not result.verdict.finite:
            if weight := first_bad_weight(self._stepper.engine.module, self._stepper.device.torch):
                raise NonFiniteError(
                    f"step {train.step}: the weights of {weight} are not finite; nothing but an earlier checkpoint helps"
                )
            bad_samples, where = self._cause(order, cursor, result)
        state = after(self._config, before, train.step, result.verdict, result.loss, result.gradient_norm, bad_samples)
        if result.verdict.bad:
            self._say_skipped(train.step, result, where, bad_samples)
        if state.rate_factor != before.rate_factor:
            self._say_rate(train.step, before.rate_factor, state.rate_factor)
        if state.not_finite_in_a_row > SKIPS_ALLOWED:
            raise NonFiniteError(
                f"loss or gradient was not finite in steps {train.step - SKIPS_ALLOWED} to {train.step} (last loss"
                f" {result.loss}, first bad value in {where}); lower training.learningRate.peak"
            )
        if len(state.blacklist) > BLACKLIST_LIMIT:
            raise NonFiniteError(
                f"step {train.step}: more than {BLACKLIST_LIMIT} samples make losses that are not finite; look at the data"
            )
        return state

    def _cause(self, order: SampleOrder, cursor: int, result: StepResult) -> tuple[list[int], str]:
        """The samples that are to blame, if they are, and where the first bad value is."""
        stepper = self._stepper
        finite = result.micro_losses.isfinite().to(torch.uint8)
        ranks = [torch.empty_like(finite) for _ in range(stepper.env.world_size)]
        torch.distributed.all_gather(ranks, finite)
        rows = [(rank, micro) for rank, flags in enumerate(ranks) for micro in range(len(flags))]
        wrong = [rows[number] for number in bad_rows([bool(flag) for flags in ranks for flag in flags])]
        starts = [stepper.first_place(cursor, micro_step, rank) for rank, micro_step in wrong]
        samples = [order.sample(start + n) for start in starts for n in range(stepper.training.micro_batch_size)]
        if result.verdict is Verdict.GRADIENT_NOT_FINITE:
            return samples, f"the gradient of {result.bad_gradient}"
        tokens = stepper.tokens(order, cursor, int(finite.argmin()))
        return samples, first_bad_output(stepper.engine, tokens, stepper.device.torch) or "the loss itself"

    def _say_skipped(self, step: int, result: StepResult, where: str, bad_samples: list[int]) -> None:
        self._log.record(
            "guard",
            step=step,
            verdict=result.verdict.value,
            loss=result.loss,
            gradient_norm=result.gradient_norm,
            first_bad=where or None,
            blacklisted=bad_samples,
        )
        self._say(
            "StepSkipped",
            f"step {step} was skipped on all ranks: {result.verdict}, loss {result.loss:.6g}, gradient norm"
            f" {result.gradient_norm:.6g}"
            + (f", first bad value in {where}" if where else "")
            + (f"; samples {bad_samples} will not be used again" if bad_samples else ""),
        )

    def _say_rate(self, step: int, before: float, now: float) -> None:
        self._log.record("guard-rate", step=step, factor=now)
        if now < before:
            self._say(
                "LearningRateLowered", f"step {step}: bad steps repeat, the learning rate is now {now:g} of the plan"
            )
        else:
            self._say("LearningRateRaised", f"step {step}: no bad steps lately, the rate is now {now:g} of the plan")

    def _say(self, reason: str, message: str) -> None:
        if self._stepper.env.local_rank == 0:
            self._sender.send(Record(self._stepper.env.rank, reason, message))
        self._log.say(message)
