"""The JSON beside a run's shards, and which checkpoints may be looked at or deleted. Pure; used by `run_store`."""

from collections.abc import Iterable, Sequence

import msgspec

from ciuic_api.lineage import Attempt, CheckpointId, fork_steps, on_lineage

NEWEST_KEPT = 2


class Damaged(Exception):
    """A checkpoint that can not be used; the sentence says why."""


class ShardRecord(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    world_size: int
    checkpoint: CheckpointId
    size_bytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    checkpoint: CheckpointId
    world_size: int
    contract: str
    shards: tuple[ShardRecord, ...]


def read_manifest(data: bytes, checkpoint: CheckpointId) -> Manifest:
    """Raises Damaged where it does not describe every rank's shard of that checkpoint."""
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise Damaged(f"its manifest can not be read: {error}") from error
    if manifest.checkpoint != checkpoint or any(shard.checkpoint != checkpoint for shard in manifest.shards):
        raise Damaged("its manifest names shards of another checkpoint")
    if sorted(shard.rank for shard in manifest.shards) != list(range(manifest.world_size)):
        raise Damaged("its manifest does not name every rank's shard")
    return manifest


def parse_checkpoint(name: str) -> CheckpointId | None:
    """`120.a3`, as keys have it; None for what is no checkpoint's name."""
    step, separator, attempt = name.partition(".a")
    if not separator or not step.isdecimal() or not attempt.isdecimal():
        return None
    return CheckpointId(int(step), int(attempt))


def merged(recorded: Iterable[Attempt], told: Iterable[Attempt]) -> list[Attempt]:
    """The links that S3 has and those that the operator knows, which are written down first."""
    links = {link.attempt: link for link in recorded} | {link.attempt: link for link in told}
    return [links[number] for number in sorted(links)]


def chain(tip: int, attempts: Sequence[Attempt]) -> list[Attempt]:
    """The known links that lead to `tip`, oldest first, itself included."""
    known = {link.attempt: link for link in attempts}
    return [known[number] for number in reversed(list(fork_steps(tip, attempts))) if number in known]


def in_order_of_use(found: Iterable[CheckpointId], tip: int, attempts: Sequence[Attempt]) -> list[CheckpointId]:
    """Those on the lineage of `tip`, newest first, then the others, newest first."""
    everything = sorted(found, reverse=True)
    mine = on_lineage(everything, tip, attempts)
    return [*mine, *(checkpoint for checkpoint in everything if checkpoint not in set(mine))]


def superfluous(
    found: Iterable[CheckpointId], tip: int, attempts: Sequence[Attempt], keep_last: int
) -> list[CheckpointId]:
    """Checkpoints on the lineage of `tip` that may go, oldest first. What is on dead branches is left to the sweep."""
    named = {attempt.restored for attempt in attempts}
    mine = on_lineage(found, tip, attempts)
    return [checkpoint for checkpoint in reversed(mine[max(keep_last, NEWEST_KEPT) :]) if checkpoint not in named]
