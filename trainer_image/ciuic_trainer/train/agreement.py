"""What every rank holds alike is compared between the ranks, by digest. Used by the loop and checkpoint.py.

Parameters and moments exist once under ZeRO-3; persistent buffers, the loop's state and the configuration exist on every
rank. Where they drift apart (a flipped bit, a wrong version), the ranks would train different models without a sign.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.distributed

from ciuic_api.training import Training

from .device import Device
from .errors import DisagreementError
from .state import TrainState, buffers, parameters_digest

_SIGN = 1 << 63


def require(engine: Any, train: TrainState, training: Training, device: Device) -> None:
    """Raises DisagreementError on every rank alike. All ranks call it together."""
    ours = {
        "configuration": _digest(training.model_dump_json().encode()),
        "state of the training": _digest(msgspec.json.encode(train)),
    }
    for name, buffer in buffers(engine).items():
        ours[name] = _digest(buffer.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    numbers = torch.tensor([value - _SIGN for value in ours.values()], dtype=torch.int64, device=device.torch)
    ranks = [torch.empty_like(numbers) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(ranks, numbers)
    found = dict(zip(ours, zip(*(digests.tolist() for digests in ranks), strict=True), strict=True))
    if sentence := disagreement(found):
        raise DisagreementError(f"step {train.step}: {sentence}")


def disagreement(found: Mapping[str, Sequence[int]]) -> str | None:
    """About the first thing whose digests, one of each rank, are not all equal. Pure."""
    for name, digests in found.items():
        common, _ = max(Counter(digests).items(), key=lambda item: (item[1], -digests.index(item[0])))
        if others := [str(rank) for rank, digest in enumerate(digests) if digest != common]:
            return f"rank {', '.join(others)} of {len(digests)} has another {name} than rank {digests.index(common)}"
    return None


def whole_digest(engine: Any, device: Device) -> str:
    """Of all parameters, the same at every world size."""
    ours = parameters_digest(engine)
    total = torch.tensor(ours - (ours >> 63 << 64), dtype=torch.int64, device=device.torch)
    torch.distributed.all_reduce(total)  # wraps around, as the digest does
    return f"{int(total) % 2**64:016x}"


def _digest(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
