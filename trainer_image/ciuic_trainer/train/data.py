"""Token shards on disk and the deterministic order in which samples are read from them. Used by the loop, evaluate.py.

A folder made by tokenize.py holds manifest.json and raw little-endian uint32 shards, which are memory-mapped. Sample i
of a split is `length + 1` tokens at a place found by arithmetic, so inputs and next-token targets have `length` each.
Training reads samples in the order of a permutation keyed by (seed, epoch); the only state is how many were consumed.
"""

import bisect
import enum
import itertools
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from .errors import ConfigurationError
from .permutation import Permutation

FORMAT = "ciuic-tokens-1"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"
DTYPE = "<u4"

Tokens = npt.NDArray[np.uint32]


class Split(enum.StrEnum):
    TRAIN = "train"
    HELD_OUT = "held-out"


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    split: Split
    tokens: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    dtype: str
    vocabulary_size: int
    """Every token is below it."""
    end_token: int
    """Stands between two documents."""
    tokenizer_crc32: int
    shards: tuple[Shard, ...]

    def tokens(self, split: Split) -> int:
        return sum(shard.tokens for shard in self.shards if shard.split == split)

    def digest(self) -> str:
        """Equal for equal tokens: stored in checkpoints, compared when one is restored."""
        return f"{zlib.crc32(msgspec.json.encode(self)):08x}"


def read_manifest(folder: Path) -> Manifest:
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except OSError as error:
        raise ConfigurationError(
            f"training.data.path: {folder / MANIFEST} cannot be read ({error.strerror});"
            " make the folder with `python -m ciuic_trainer.train.tokenize TEXT FOLDER`"
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"training.data.path: {folder / MANIFEST} is not a token manifest: {error}") from error
    if (manifest.format, manifest.dtype) != (FORMAT, DTYPE):
        raise ConfigurationError(
            f"training.data.path: {folder / MANIFEST} has format {manifest.format!r} with {manifest.dtype!r} tokens;"
            f" this version reads {FORMAT!r} with {DTYPE!r}: make the folder again with the tokenize command"
        )
    return manifest


class TokenSplit:
    """The samples of one split, in the order of the text."""

    def __init__(self, folder: Path, manifest: Manifest, split: Split, length: int) -> None:
        shards = [shard for shard in manifest.shards if shard.split == split and shard.tokens > length]
        self._arrays = [_open(folder, shard) for shard in shards]
        self._ends = list(itertools.accumulate((shard.tokens - 1) // length for shard in shards))
        self._length = length
        if not shards:
            raise ConfigurationError(
                f"training.data.path: {folder} has no {split} shard longer than training.sequenceLength = {length}"
                " tokens; lower sequenceLength or bring more text"
            )

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, sample: int) -> Tokens:
        """`length + 1` tokens."""
        number = bisect.bisect_right(self._ends, sample)
        start = (sample - (self._ends[number - 1] if number else 0)) * self._length
        return self._arrays[number][start : start + self._length + 1]


@dataclass(frozen=True)
class SampleOrder:
    """Which sample stands at a place of an endless run through a split of `size` samples."""

    size: int
    seed: int
    blacklist: frozenset[int] = frozenset()
    """Samples that are not used; at their places stands the next one of the epoch that is."""

    def epoch(self, place: int) -> int:
        return place // self.size

    def sample(self, place: int) -> int:
        epoch, index = divmod(place, self.size)
        permutation = Permutation(self.size, self.seed << 32 | epoch)
        while (sample := permutation(index)) in self.blacklist and len(self.blacklist) < self.size:
            index = (index + 1) % self.size
        return sample


def batch(split: TokenSplit, order: SampleOrder, first_place: int, count: int) -> npt.NDArray[np.int64]:
    """The samples at places [first_place, first_place + count): (count, length + 1)."""
    rows = [split[order.sample(place)] for place in range(first_place, first_place + count)]
    return np.stack(rows).astype(np.int64)


def _open(folder: Path, shard: Shard) -> Tokens:
    path = folder / shard.file
    try:
        tokens = np.memmap(path, dtype=DTYPE, mode="r")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"training.data.path: {path} cannot be read: {error}") from error
    if tokens.size != shard.tokens or zlib.crc32(tokens.data) != shard.crc32:
        raise ConfigurationError(
            f"training.data.path: {path} is not what its manifest describes ({tokens.size} tokens, expected"
            f" {shard.tokens}, or another checksum); make the folder again with the tokenize command"
        )
    return tokens
