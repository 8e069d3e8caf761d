"""Faults put into real ranks: given as `patch` to Job.start, each changes the rank's own process before it trains."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

POISONED_MODULE = "model.layers.1.mlp"
DRIFTING_BUFFER = "model.layers.1.mlp.gate.e_score_correction_bias"
POISONED_PARAMETER = "model.layers.1.self_attn.o_proj.weight"


def poison_sample(folder: Path, sample: int) -> None:
    """A sample that makes one module overflow, whenever and wherever it is used."""
    from ciuic_trainer.train.data import Split, TokenSplit, read_manifest

    loop = _module("loop")
    build = loop.build_engine

    def build_engine(training: Any, *arguments: Any) -> Any:
        import torch

        manifest = read_manifest(folder)
        row = TokenSplit(folder, manifest, Split.TRAIN, training.sequence_length)[sample]
        wanted = torch.tensor(row[:-1].astype("int64"))
        engine = build(training, *arguments)
        used = {"now": False}

        def see(_module: Any, _args: Any, kwargs: Any) -> None:
            used["now"] = bool((kwargs["input_ids"] == wanted).all(dim=1).any())

        def overflow(_module: Any, _inputs: Any, output: Any) -> Any:
            return output * float("inf") if used["now"] else output

        engine.module.register_forward_pre_hook(see, with_kwargs=True)
        engine.module.get_submodule(POISONED_MODULE).register_forward_hook(overflow)
        return engine

    loop.build_engine = build_engine


def at_steps(faults: Mapping[int, str]) -> None:
    """A fault of its own in each of these steps of the attempt."""
    stepper = _module("step").Stepper
    original, made = stepper.make, {"steps": 0}

    def make(self: Any, *arguments: Any) -> Any:
        made["steps"] += 1
        with _FAULTS[faults.get(made["steps"], "none")](self):
            return original(self, *arguments)

    stepper.make = make


def poison_before_saving() -> None:
    checkpoints = _module("checkpoint").Checkpoints
    save = checkpoints.save

    def poisoned(self: Any, *arguments: Any, **options: Any) -> None:
        _poison_weight(self._engine, self._env.rank)
        save(self, *arguments, **options)

    checkpoints.save = poisoned


def print_clipped_norms() -> None:
    """CLIPPED with the norm of what the optimizer gets, over all ranks, at each step."""
    loop = _module("loop")
    build = loop.build_engine

    def build_engine(training: Any, *arguments: Any) -> Any:
        import torch
        import torch.distributed

        engine = build(training, *arguments)
        optimizer, squares = engine.optimizer, []
        clip, flats = optimizer.unscale_and_clip_grads, optimizer.fp32_partitioned_groups_flat

        def clipped(number: int, norm: Any) -> None:
            clip(number, norm)
            squares.append(flats[number].grad.double().square().sum())
            if len(squares) == len(flats):
                total = torch.stack(squares).sum()
                squares.clear()
                torch.distributed.all_reduce(total)
                print(f"\nCLIPPED {float(total.sqrt()):.6f}", flush=True)

        optimizer.unscale_and_clip_grads = clipped
        return engine

    loop.build_engine = build_engine


def _module(name: str) -> Any:
    """Of the trainer, to be changed."""
    return importlib.import_module(f"ciuic_trainer.train.{name}")


@contextmanager
def _none(_stepper: Any) -> Iterator[None]:
    yield


@contextmanager
def _gradient(stepper: Any, factor: float, rank: int | None) -> Iterator[None]:
    """The gradient of one parameter, on one rank or on all, before it is reduced."""
    if rank not in (None, stepper.env.rank):
        yield
        return
    parameter = stepper.engine.module.get_parameter(POISONED_PARAMETER)
    handle = parameter.register_hook(lambda gradient: gradient * factor)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _loss(_stepper: Any) -> Iterator[None]:
    step = _module("step")
    original = step.token_losses
    step.token_losses = lambda engine, tokens: original(engine, tokens) * 4
    try:
        yield
    finally:
        step.token_losses = original


@contextmanager
def _weight(stepper: Any) -> Iterator[None]:
    _poison_weight(stepper.engine, stepper.env.rank)
    yield


@contextmanager
def _buffer(stepper: Any) -> Iterator[None]:
    if stepper.env.rank == 1:
        stepper.engine.module.get_buffer(DRIFTING_BUFFER)[0] += 1e-3
    yield


def _poison_weight(engine: Any, rank: int) -> None:
    if rank == 1:
        engine.optimizer.fp32_partitioned_groups_flat[0].data[0] = float("nan")
        engine.module.get_parameter(POISONED_PARAMETER).ds_tensor.data[0] = float("nan")


_FAULTS: dict[str, Any] = {
    "none": _none,
    "gradient": lambda stepper: _gradient(stepper, float("nan"), rank=1),
    "large gradient": lambda stepper: _gradient(stepper, 1e4, rank=None),
    "loss": _loss,
    "weight": _weight,
    "buffer": _buffer,
}
