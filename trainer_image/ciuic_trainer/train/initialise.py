"""Explicit initial values of every parameter, and the check of them. Called once by engine.py on a fresh model.

Needed because zero.Init leaves what torch.empty found in memory in the fused expert weights. Values depend on (seed,
parameter name, element) alone: each rank fills only its own partition, and any world size makes the same model.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed

from .errors import TrainerError

STANDARD_DEVIATION = 0.02
"""Of every weight that is not a norm, as in transformers."""
_BLOCK = 16384
"""Elements drawn from one generator: a partition costs at most two blocks more than its size."""


@dataclass(frozen=True)
class Expected:
    mean: float
    deviation: float


def expected(name: str) -> Expected:
    is_norm = name.endswith("norm.weight")
    return Expected(1.0, 0.0) if is_norm else Expected(0.0, STANDARD_DEVIATION)


@torch.no_grad()
def initialise(model: Any, seed: int) -> None:
    for name, parameter in model.named_parameters():
        start, real = partition(parameter)
        values = parameter.ds_tensor
        values.zero_()  # the padding behind the last element as well
        if expected(name).deviation == 0.0:
            values[:real] = expected(name).mean
            continue
        for block in _blocks(start, start + real, parameter.ds_numel):
            generator = torch.Generator().manual_seed(_block_seed(seed, name, block.start))
            drawn = torch.empty(len(block)).normal_(0.0, expected(name).deviation, generator=generator)
            low, high = max(block.start, start), min(block.stop, start + real)
            values[low - start : high - start] = drawn[low - block.start : high - block.start].to(values)


@torch.no_grad()
def check(model: Any, device: torch.device, dtype: torch.dtype) -> None:
    """Raises TrainerError on every rank alike when a parameter is not what `initialise` should have made of it."""
    if wrong := [name for name, parameter in model.named_parameters() if parameter.ds_tensor.dtype != dtype]:
        raise TrainerError(f"{len(wrong)} parameters are not {dtype}, {wrong[0]} among them")
    for name, buffer in model.named_buffers():
        if buffer.dtype != torch.float32 or not bool(buffer.isfinite().all()):
            raise TrainerError(f"buffer {name} is {buffer.dtype} or not finite; expected finite torch.float32")
    names, moments = [], []
    for name, parameter in model.named_parameters():
        real = partition(parameter)[1]
        values = parameter.ds_tensor[:real].float()
        names.append((name, parameter.ds_numel))
        moments.append(torch.stack([values.sum(), values.square().sum(), (~values.isfinite()).sum().float()]))
    sums = torch.stack(moments).to(device)
    torch.distributed.all_reduce(sums)
    for (name, size), (total, squares, not_finite) in zip(names, sums.tolist(), strict=True):
        mean = total / size
        deviation = max(0.0, squares / size - mean**2) ** 0.5
        want = expected(name)
        tolerance = want.deviation * (6 / size**0.5 + 0.02) + 1e-3 * abs(want.mean)
        if not_finite or abs(mean - want.mean) > tolerance or abs(deviation - want.deviation) > tolerance:
            raise TrainerError(
                f"initialisation of {name} went wrong: {int(not_finite)} values not finite, mean {mean:.3g}, standard"
                f" deviation {deviation:.3g}; expected mean {want.mean:g}, standard deviation {want.deviation:g}"
            )


def partition(parameter: Any) -> tuple[int, int]:
    """Of a ZeRO-3 parameter on this rank: its first element, and how many it has without padding."""
    size = parameter.ds_tensor.ds_numel
    start = size * parameter.ds_zero_partition_rank
    return start, max(0, min(size, parameter.ds_numel - start))


def _blocks(low: int, high: int, size: int) -> Iterator[range]:
    """The blocks of a parameter of `size` elements that meet [low, high)."""
    for start in range(low - low % _BLOCK, high, _BLOCK):
        yield range(start, min(start + _BLOCK, size))


def _block_seed(seed: int, name: str, start: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}/{start}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
