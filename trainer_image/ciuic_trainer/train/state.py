"""Everything of a rank that changes during training, as tensors and JSON, out of the engine and back into it.

Used by checkpoint.py. What the shard holds is decided here alone; a test compares a restored rank with one that was
never interrupted, attribute by attribute, and fails on anything that this file forgets.

Tensors: `parameters.<i>`, `exp_avg.<i>`, `exp_avg_sq.<i>` (this rank's fp32 part of sub-group i: the partitions of its
parameters one behind the other, each padded to equal length on all ranks), `buffer.<name>`, `rng.<generator>`. Which
parameters are in which sub-group stands in `layout` and may be another one when the shard is restored: a changed
schedule of the learning rate makes other groups.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from ciuic_trainer.shared.shard_format import Shard, TensorSpec

from .annealing import Annealing
from .device import Device
from .digest import Piece, digest
from .errors import RestoreError
from .guards import GuardState
from .initialise import partition

MOMENTS = ("exp_avg", "exp_avg_sq")
KINDS = ("parameters", *MOMENTS)
ENGINE_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class TrainState(msgspec.Struct, kw_only=True):
    """What the loop itself remembers from step to step."""

    step: int = 0
    """Completed optimizer steps, skipped ones included."""
    consumed_samples: int = 0
    """The cursor: places of the sample order that were used, by all ranks together."""
    skipped_steps: int = 0
    evaluated_at: int | None = None
    eval_loss: float | None = None
    best_eval_loss: float | None = None
    best_eval_step: int | None = None
    annealing: Annealing = Annealing()
    guard: GuardState = GuardState()


@dataclass(frozen=True)
class Snapshot:
    tensors: dict[str, torch.Tensor]
    """Live, not copied: valid until the next optimizer step."""
    state: dict[str, Any]

    def specs(self) -> list[TensorSpec]:
        return [TensorSpec(name, DTYPES[t.dtype], tuple(t.shape)) for name, t in self.tensors.items()]

    def data(self, spec: TensorSpec) -> memoryview:
        flat = self.tensors[spec.name].detach().contiguous().reshape(-1)
        return flat.view(torch.uint8).cpu().numpy().data


def snapshot(engine: Any, train: TrainState, device: Device, facts: Mapping[str, Any]) -> Snapshot:
    """`facts` (contract, data digest, ...) must be equal when the shard is restored."""
    optimizer = engine.optimizer
    rng_tensors, rng_state = _random_generators(device)
    state = {
        "facts": dict(facts),
        "train": msgspec.to_builtins(train),
        "engine": {name: getattr(engine, name) for name in ENGINE_COUNTERS},
        "optimizer_step": _optimizer_step(optimizer),
        "loss_scaler": _scalars(optimizer.loss_scaler),
        "layout": _layout(engine),
        "rng": rng_state,
        "digests": _digests(engine),
    }
    return Snapshot({**_tensors(engine), **rng_tensors}, state)


def restore(shard: Shard, engine: Any, device: Device, facts: Mapping[str, Any]) -> TrainState:
    """The inverse of `snapshot`. Raises RestoreError when the shard is not of this job, or did not come back whole."""
    state = shard.state
    _require_equal(facts, state["facts"])
    optimizer = engine.optimizer
    ours = buffers(engine)
    expected = {*_partitioned_names(len(state["layout"])), *ours, *_random_generators(device)[0]}
    if missing := sorted(expected ^ shard.specs.keys()):
        raise RestoreError(f"the checkpoint and this trainer do not agree on {', '.join(missing[:5])}")
    _restore_partitions(shard, engine)
    for name, buffer in ours.items():
        buffer.data.copy_(_from_bytes(shard.data(name), buffer.dtype).reshape(buffer.shape))
    for number in range(len(optimizer.fp32_partitioned_groups_flat)):
        optimizer._reassign_or_swap_out_partitioned_parameters(number)  # fp32 masters to the weights that compute
    for moments in _moments(optimizer):
        moments["step"].fill_(state["optimizer_step"])
    for name, value in state["loss_scaler"].items():
        setattr(optimizer.loss_scaler, name, value)
    for name in ENGINE_COUNTERS:
        setattr(engine, name, state["engine"][name])
    _restore_random_generators(shard, device)
    if _digests(engine) != state["digests"]:
        raise RestoreError("parameters or optimizer state differ from what was saved, though the checksum holds")
    return msgspec.convert(state["train"], TrainState)


def finite(engine: Any) -> bool:
    """Whether all numbers of this rank are. A sum is not when one of its parts is not, and takes no memory."""
    return all(math.isfinite(float(tensor.sum())) for tensor in _tensors(engine).values())


def _restore_partitions(shard: Shard, engine: Any) -> None:
    """Parameter by parameter, since the sub-groups may be others than when the shard was written."""
    ours, saved = _layout(engine), shard.state["layout"]
    shapes, saved_shapes = (dict(parameter for group in layout for parameter in group) for layout in (ours, saved))
    if differing := sorted(name for name in {*shapes, *saved_shapes} if shapes.get(name) != saved_shapes.get(name)):
        raise RestoreError(
            f"the checkpoint has another {differing[0]} ({saved_shapes.get(differing[0])}, here"
            f" {shapes.get(differing[0])}) and {len(differing) - 1} more differences; it is of another model"
        )
    places = {place.parameter: place for place in _places(ours, shard.identity.world_size)}
    tensors = _partitioned(engine)
    for kind in KINDS:
        for number, group in enumerate(saved):
            flat = _from_bytes(shard.data(f"{kind}.{number}"), torch.float32)
            for place in _places([group], shard.identity.world_size):
                target = places[place.parameter]
                values = flat[place.offset : place.offset + place.size]
                tensors[f"{kind}.{target.group}"].data[target.offset : target.offset + target.size] = values


class _Place(NamedTuple):
    """Of one parameter's partition in the flat tensor of a sub-group."""

    parameter: str
    group: int
    offset: int
    size: int
    """Padding included: equal on all ranks."""


def _places(layout: list[list[Any]], world_size: int) -> Iterator[_Place]:
    for number, group in enumerate(layout):
        offset = 0
        for name, shape in group:
            size = -(-math.prod(shape) // world_size)
            yield _Place(name, number, offset, size)
            offset += size


def _tensors(engine: Any) -> dict[str, torch.Tensor]:
    return {**_partitioned(engine), **buffers(engine)}


def _partitioned(engine: Any) -> dict[str, torch.Tensor]:
    tensors = {}
    for number, flat in enumerate(engine.optimizer.fp32_partitioned_groups_flat):
        tensors[f"parameters.{number}"] = flat
        for moment in MOMENTS:
            tensors[f"{moment}.{number}"] = engine.optimizer.optimizer.state[flat][moment]
    return tensors


def _partitioned_names(groups: int) -> list[str]:
    return [f"{kind}.{number}" for kind in KINDS for number in range(groups)]


def buffers(engine: Any) -> dict[str, torch.Tensor]:
    persistent = engine.module.state_dict(keep_vars=True).keys()
    return {f"buffer.{name}": buffer for name, buffer in engine.module.named_buffers() if name in persistent}


def _optimizer_step(optimizer: Any) -> float:
    """Every sub-group makes every step."""
    (step,) = {float(moments["step"]) for moments in _moments(optimizer)}
    return step


def _moments(optimizer: Any) -> Iterator[dict[str, torch.Tensor]]:
    for flat in optimizer.fp32_partitioned_groups_flat:
        yield optimizer.optimizer.state[flat]


def _layout(engine: Any) -> list[list[Any]]:
    """For each sub-group its parameters in order, with their shapes: enough to find any element in any shard."""
    names = {parameter.ds_id: name for name, parameter in engine.module.named_parameters()}
    return [
        [[names[parameter.ds_id], list(parameter.ds_shape)] for parameter in group]
        for group in engine.optimizer.fp16_groups
    ]


def parameters_digest(engine: Any) -> int:
    return _digests(engine)["parameters"]


def _digests(engine: Any) -> dict[str, int]:
    """Of this rank's part. Those of all ranks add up to the digest of the whole, whatever the world size."""
    tensors = _tensors(engine)
    names = {parameter.ds_id: name for name, parameter in engine.module.named_parameters()}
    totals = dict.fromkeys(KINDS, 0)
    for number, group in enumerate(engine.optimizer.fp16_groups):
        pieces, offset = [], 0
        for parameter in group:
            start, real = partition(parameter)
            pieces.append(Piece(names[parameter.ds_id], offset, start, real))
            offset += parameter.partition_numel()
        for kind in totals:
            totals[kind] = (totals[kind] + digest(tensors[f"{kind}.{number}"], pieces)) % 2**64
    return totals


def _random_generators(device: Device) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {
        "rng.torch": torch.get_rng_state(),
        "rng.python": torch.tensor(words, dtype=torch.int64),
        "rng.numpy": torch.from_numpy(np.asarray(keys, dtype=np.int64)),
    }
    if not device.is_cpu:
        tensors["rng.device"] = device.module.get_rng_state()
    return tensors, {"python": [version, gauss], "numpy": [int(position), int(has_gauss), float(cached)]}


def _restore_random_generators(shard: Shard, device: Device) -> None:
    version, gauss = shard.state["rng"]["python"]
    random.setstate((version, tuple(_from_bytes(shard.data("rng.python"), torch.int64).tolist()), gauss))
    keys = _from_bytes(shard.data("rng.numpy"), torch.int64).numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, *shard.state["rng"]["numpy"]))
    torch.set_rng_state(_from_bytes(shard.data("rng.torch"), torch.uint8))
    if not device.is_cpu:
        device.module.set_rng_state(_from_bytes(shard.data("rng.device"), torch.uint8))


def _from_bytes(data: memoryview, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype)


def _scalars(instance: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if isinstance(value, bool | int | float | str)}


def _require_equal(ours: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    for name, value in ours.items():
        if saved.get(name) != value:
            raise RestoreError(
                f"the checkpoint was made with another {name}: {saved.get(name)!r}, now {value!r};"
                " a changed model, data set, sequence length, seed or world size needs a new checkpoint.run"
            )
