"""The training of one rank, top to bottom: device, data, engine, restore, steps, end. Called by __main__.

Everything that decides what happens next is equal on all ranks: the step, the cursor, the summed loss, the request to
stop. So every rank makes the same collectives in the same order.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ciuic_api.accumulation import micro_steps, rate_factor
from ciuic_api.contract import contract
from ciuic_api.training import Training
from ciuic_trainer.shared.messages import Record, Sender
from ciuic_trainer.shared.progress import Phase, ProgressWriter
from ciuic_trainer.shared.rank_env import RankEnv

from .agreement import require, whole_digest
from .annealing import observe
from .checkpoint import Checkpoints
from .data import SampleOrder, Split, TokenSplit, read_manifest
from .device import join, open_device, seed_everything
from .engine import build_engine
from .errors import ConfigurationError
from .evaluate import Evaluation
from .groups import set_rates
from .log import Log, exact
from .norm_gate import NormGate
from .precision import choose
from .router_bias import RouterBalance
from .state import TrainState
from .step import Stepper, StepResult
from .watch import Watch


def train(env: RankEnv, training: Training, stop_requested: Callable[[], bool]) -> bool:
    """Trains to the last step (True), or until asked to stop, with a last checkpoint (False)."""
    progress = ProgressWriter(env.progress_file, env.attempt)
    sender = Sender(env.messages_socket)
    log = Log(env, os.environ, sys.stdout)
    started = time.monotonic()

    # -- device, data, engine -----------------------------------------------------------------------------------------

    device = open_device(env, deterministic=training.deterministic)
    folder = Path(training.data.path)
    manifest = read_manifest(folder)
    if manifest.vocabulary_size > training.model.vocabulary_size:
        raise ConfigurationError(
            f"training.model.vocabularySize is {training.model.vocabulary_size}, the tokens of {folder} need"
            f" {manifest.vocabulary_size}; raise it"
        )
    samples = TokenSplit(folder, manifest, Split.TRAIN, training.sequence_length)
    held_out = TokenSplit(folder, manifest, Split.HELD_OUT, training.sequence_length)
    order = SampleOrder(len(samples), training.seed)
    join(env, device)
    precision = choose(training, device)
    engine = build_engine(training, device, precision.dtype)
    balance = RouterBalance(engine.module, training.model.bias_update_rate, device.torch)
    gate = NormGate(engine, device.torch)
    stepper = Stepper(engine, gate, balance, samples, training, env, device, progress, stop_requested)
    evaluation = Evaluation(
        held_out, training.seed, training.evaluation.batches, training.micro_batch_size, env, device
    )
    facts = {"contract": env.contract or contract(training, env.world_size), "data": manifest.digest()}
    watch = Watch(stepper, sender, log)
    checkpoints = Checkpoints(env, training, engine, device, facts, sender, log)

    # -- restore ------------------------------------------------------------------------------------------------------

    state = TrainState()
    seed_everything(device, training.seed, 0, env.rank)
    if env.restore is not None:
        with progress.within(Phase.RESTORE):
            state = checkpoints.restore(env.restore)
            progress.restored(state.step)
    require(engine, state, training, device)
    log.record(
        "start",
        step=state.step,
        steps=training.steps,
        restored=str(env.restore) if env.restore else None,
        world_size=env.world_size,
        parameters=training.model.parameters(),
        precision=str(precision.dtype).removeprefix("torch."),
        experts=engine.module.config._experts_implementation,
        data=facts["data"],
        parameters_digest=whole_digest(engine, device),
        seconds=round(time.monotonic() - started, 3),
    )
    log.say(
        f"attempt {env.attempt}: {training.model.parameters():,} parameters on {env.world_size} {env.accelerator} ranks"
        + (f", continues after step {state.step} ({env.restore})" if env.restore else ", starts at step 0")
    )

    for remark in precision.remarks:
        sender.send(Record(env.rank, "PrecisionUnavailable", remark))
        log.record("remark", reason="PrecisionUnavailable", message=remark)
        log.say(remark)

    # -- steps --------------------------------------------------------------------------------------------------------

    def evaluate() -> None:
        with progress.within(Phase.EVAL):
            loss = evaluation.loss(engine)
        state.eval_loss, state.evaluated_at = loss, state.step
        if state.best_eval_loss is None or loss < state.best_eval_loss:
            state.best_eval_loss, state.best_eval_step = loss, state.step
        progress.eval_loss(loss)
        log.record("eval", step=state.step, loss=float(exact(loss)), best_step=state.best_eval_step)
        log.say(f"eval {state.step}/{training.steps} | held-out loss {exact(loss)}")

    if training.evaluation.every_steps and state.step == 0:
        evaluate()
    progress.enter(Phase.COMPILE)  # the first step warms up kernels, caches and connections
    while state.step < training.steps:
        began = time.monotonic()
        order = replace(order, blacklist=frozenset(state.guard.blacklist))
        base = training.gradient_accumulation
        count = micro_steps(base, training.accumulation, state.step)
        factor = state.guard.rate_factor * state.annealing.factor * rate_factor(base, training.accumulation, count)
        rates = set_rates(engine, training, state.step + 1, factor)
        cursor, guard = state.consumed_samples, state.guard
        result = stepper.make(order, cursor, count, partial(watch.judge, guard))
        seconds = time.monotonic() - began

        tokens = stepper.tokens_per_step(count)
        state.step += 1
        state.consumed_samples += stepper.samples_per_step(count)
        if order.epoch(state.consumed_samples) != order.epoch(cursor):
            seed_everything(device, training.seed, order.epoch(state.consumed_samples), env.rank)
        state.skipped_steps += not result.applied
        anneal(state, training, result, log)
        progress.step(state.step, loss=result.loss, tokens_per_second=tokens / seconds)
        progress.enter(Phase.STEP)
        log.record(
            "step",
            step=state.step,
            loss=float(exact(result.loss)),
            learning_rate=rates.highest,
            learning_rate_lowest=rates.lowest,
            micro_steps=count,
            gradient_norm=result.gradient_norm,
            applied=result.applied,
            tokens_per_second=round(tokens / seconds, 1),
            milliseconds=round(seconds * 1000, 3),
        )
        log.say(
            f"step {state.step}/{training.steps} | loss {exact(result.loss)} | lr {rates} |"
            f" grad norm {result.gradient_norm:.4f} | {tokens / seconds:,.0f} tokens/s | {seconds * 1000:.0f} ms"
            + ("" if result.applied else f" | SKIPPED: {result.verdict}")
        )
        state.guard = watch.after(state, order, cursor, result)

        complete = state.step == training.steps
        every = training.evaluation.every_steps
        if every and (complete or state.step % every == 0):
            evaluate()
        final = complete or result.stop
        if checkpoints.due(state.step, final=final):
            with progress.within(Phase.CHECKPOINT):
                checkpoints.save(state, final=final)
        if result.stop and not complete:
            log.record("end", step=state.step, reason="stopped")
            log.say(f"stopped as asked after step {state.step}")
            return False

    log.record("end", step=state.step, reason="complete", seconds=round(time.monotonic() - started, 3))
    log.say(f"complete: {state.step} steps, held-out loss {state.eval_loss} (best at step {state.best_eval_step})")
    return True


def anneal(state: TrainState, training: Training, result: StepResult, log: Log) -> None:
    before = state.annealing
    if result.applied:
        state.annealing = observe(training.learning_rate.adaptive, before, result.loss)
    if state.annealing.factor != before.factor:
        log.record("annealed", step=state.step, factor=state.annealing.factor)
        log.say(f"step {state.step}: the loss has stopped falling, later rates times {state.annealing.factor:.3g}")
