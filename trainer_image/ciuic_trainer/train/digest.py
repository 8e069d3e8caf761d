"""A digest of partitioned tensors that does not depend on how they are partitioned. Used by state.py.

It is a sum modulo 2^64 over all elements of their bits, weighted by place and name: the digests of the ranks add up to
the digest of the whole, and two swapped elements or tensors change it.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_CHUNK = 1 << 20
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Piece:
    """A run of elements of the tensor `name` inside a flat tensor."""

    name: str
    offset: int
    """In the flat tensor."""
    start: int
    """In the named tensor."""
    size: int


@torch.no_grad()
def digest(flat: torch.Tensor, pieces: Sequence[Piece]) -> int:
    """Of the fp32 elements of `flat` that belong to `pieces`."""
    bits = flat.view(torch.int32)
    places = torch.arange(min(_CHUNK, max((piece.size for piece in pieces), default=0)), device=flat.device)
    sums = []
    for piece in pieces:
        for low in range(0, piece.size, _CHUNK):
            size = min(_CHUNK, piece.size - low)
            chunk = bits[piece.offset + low : piece.offset + low + size].long()
            first_place = piece.start + low + 1
            weighted = torch.dot(chunk, places[:size]) + first_place * chunk.sum()
            sums.append(weighted * (zlib.crc32(piece.name.encode()) | 1))
    return int(torch.stack(sums).sum().item()) & _MASK64 if sums else 0
