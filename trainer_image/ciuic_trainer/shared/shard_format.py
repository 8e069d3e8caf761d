"""The bytes of one rank's checkpoint shard: a safetensors file, made to be written straight into a buffer.

Layout: 8 bytes little-endian length, a JSON header padded to 8 bytes, the raw tensor data. Everything that is not a
tensor stands as JSON strings in the header's `__metadata__`: the identity of the shard, and `state`. Any safetensors
reader opens it. The trainer writes shards, the agent only checks their identity.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ciuic_api.lineage import CheckpointId

FORMAT = "ciuic-shard-1"
_LENGTH_BYTES = 8
_ALIGNMENT_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Element types by their safetensors names."""


class ShardFormatError(ValueError):
    """These bytes are not a shard of ours."""


@dataclass(frozen=True, kw_only=True)
class ShardIdentity:
    checkpoint: CheckpointId
    rank: int
    world_size: int


@dataclass(frozen=True)
class TensorSpec:
    name: str
    dtype: str
    """A key of ITEM_BYTES."""
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class ShardLayout:
    header: bytes
    specs: tuple[TensorSpec, ...]
    """In the order in which their data follow the header."""

    @property
    def total_bytes(self) -> int:
        return len(self.header) + sum(spec.size_bytes for spec in self.specs)

    def chunks(self, data: Callable[[TensorSpec], memoryview]) -> Iterator[memoryview]:
        """The whole shard in order. `data` is asked for one tensor at a time, so no second copy of the shard exists."""
        yield memoryview(self.header)
        for spec in self.specs:
            if not spec.size_bytes:
                continue  # memoryview.cast refuses empty arrays
            view = data(spec).cast("B")
            if view.nbytes != spec.size_bytes:
                raise ShardFormatError(f"{spec.name}: {view.nbytes} bytes given, {spec.size_bytes} announced")
            yield view


def layout(identity: ShardIdentity, specs: Sequence[TensorSpec], state: Mapping[str, Any]) -> ShardLayout:
    """`state` is whatever JSON the trainer needs beside the tensors; floats survive to the last bit."""
    ordered = sorted(specs, key=lambda spec: (-ITEM_BYTES[spec.dtype], spec.name))  # keeps every tensor aligned
    if len({spec.name for spec in ordered}) != len(ordered):
        raise ShardFormatError("two tensors have the same name")
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "step": str(identity.checkpoint.step),
            "attempt": str(identity.checkpoint.attempt),
            "rank": str(identity.rank),
            "world_size": str(identity.world_size),
            "state": json.dumps(state),
        }
    }
    offset = 0
    for spec in ordered:
        end = offset + spec.size_bytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return ShardLayout(len(text).to_bytes(_LENGTH_BYTES, "little") + text, tuple(ordered))


@dataclass(frozen=True)
class Shard:
    """A parsed shard. Its tensors are views into the payload: valid while the payload is."""

    identity: ShardIdentity
    state: dict[str, Any]
    specs: dict[str, TensorSpec]
    _offsets: dict[str, int]
    _payload: memoryview

    def data(self, name: str) -> memoryview:
        """The raw bytes of one tensor, for torch.frombuffer or numpy.frombuffer."""
        start = self._offsets[name]
        return self._payload[start : start + self.specs[name].size_bytes]


def parse(payload: memoryview) -> Shard:
    if payload.nbytes < _LENGTH_BYTES:
        raise ShardFormatError("shorter than its length field")
    length = int.from_bytes(payload[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_HEADER_BYTES or start > payload.nbytes:
        raise ShardFormatError(f"a header of {length} bytes does not fit into {payload.nbytes}")
    try:
        entries = json.loads(bytes(payload[_LENGTH_BYTES:start]))
        metadata = entries.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise ShardFormatError(f"format {metadata['format']!r}; this version reads {FORMAT!r}")
        identity = ShardIdentity(
            checkpoint=CheckpointId(int(metadata["step"]), int(metadata["attempt"])),
            rank=int(metadata["rank"]),
            world_size=int(metadata["world_size"]),
        )
        state = json.loads(metadata["state"])
        specs = {name: TensorSpec(name, entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
        offsets = {name: start + entry["data_offsets"][0] for name, entry in entries.items()}
        ends = [offsets[name] + spec.size_bytes for name, spec in specs.items()]
    except ShardFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ShardFormatError(f"unreadable header: {error!r}") from error
    if max(ends, default=start) != payload.nbytes:
        raise ShardFormatError(f"the header describes {max(ends, default=start)} bytes, the shard has {payload.nbytes}")
    return Shard(identity, state, specs, offsets, payload)
