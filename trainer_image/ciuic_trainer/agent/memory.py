"""The pod's part of the memory tier, over all of its ranks: what it holds, and how a checkpoint comes back into it.

Called from threads of `runtime`; nothing here blocks for the store longer than one call does.
"""

import errno
from collections.abc import Callable, Mapping
from contextlib import closing

from ciuic_api.lineage import CheckpointId, counts
from ciuic_api.protocol import Directive
from ciuic_trainer.shared.memory_tier import MemoryTier, MemoryTierFull, NotHeld, ShardCorrupt

from .records import Damaged
from .run_store import RunStore

Tiers = Mapping[int, MemoryTier]
"""By rank."""


class NoRoom(Exception):
    """The volume is too small: no fault of the checkpoint."""


class Busy(Exception):
    """Buffers are being read by an upload: it ends soon."""


class NotWanted(Exception):
    """Another attempt came in between."""


def held(tiers: Tiers) -> tuple[CheckpointId, ...]:
    """What every rank has, as the headers say."""
    return _common([{found.checkpoint for found in tier.held()} for tier in tiers.values()])


def verified(tiers: Tiers, say: Callable[[str], None]) -> tuple[CheckpointId, ...]:
    """What every rank has, read and compared with its checksum."""
    sound: list[set[CheckpointId]] = []
    for tier in tiers.values():
        mine: set[CheckpointId] = set()
        for found in tier.held():
            try:
                check(tier, found.checkpoint)
            except (NotHeld, ShardCorrupt) as error:
                say(str(error))
                continue
            mine.add(found.checkpoint)
        sound.append(mine)
    return _common(sound)


def _common(each: list[set[CheckpointId]]) -> tuple[CheckpointId, ...]:
    return tuple(sorted(set.intersection(*each), reverse=True)) if each else ()


def check(tier: MemoryTier, checkpoint: CheckpointId) -> None:
    """Raises NotHeld or ShardCorrupt."""
    pinned, payload = tier.open_verified(checkpoint)
    payload.release()
    pinned.close()


def discard_dead_branches(tiers: Tiers, directive: Directive, say: Callable[[str], None]) -> None:
    """What is not on the lineage. A copy that an upload reads stays for the moment: the upload discards it at its end."""
    for rank, tier in tiers.items():
        for found in tier.held():
            if not counts(found.checkpoint, directive.attempt, directive.lineage) and tier.discard(found.checkpoint):
                say(f"rank {rank}: the memory copy {found.checkpoint} is of a dead branch and is discarded")


def fetch(
    tiers: Tiers, checkpoint: CheckpointId, run: RunStore | None, wanted: Callable[[], bool], say: Callable[[str], None]
) -> None:
    """Bring the checkpoint into the memory of every rank, whole: from the memory copy, or from S3 where it is not sound.

    Raises Damaged or a StoreError when it can not be had; NoRoom, Busy or NotWanted.
    """
    for rank, tier in tiers.items():
        try:
            check(tier, checkpoint)
            continue
        except NotHeld:
            pass
        except ShardCorrupt as error:
            say(f"{error}: it is fetched from S3")
        if run is None:
            raise Damaged("the memory copy is gone and there is no store")
        if not tier.discard(checkpoint):  # else the unsound copy would be found instead of the fetched one
            raise Busy(f"an upload reads the memory copy of rank {rank}")
        _fetch_shard(tier, rank, checkpoint, run, wanted)
        say(f"rank {rank}: checkpoint {checkpoint} came from S3")


def _fetch_shard(
    tier: MemoryTier, rank: int, checkpoint: CheckpointId, run: RunStore, wanted: Callable[[], bool]
) -> None:
    record, pieces = run.read_shard(checkpoint, rank, wanted)
    with closing(pieces):
        try:
            tier.prepare(record.size_bytes)
            reservation = tier.reserve(persist=True)
            if reservation is None:
                raise Busy(f"no buffer of rank {rank} is free")
            tier.write_reserved(reservation, checkpoint, persist=False, chunks=pieces, size_bytes=record.size_bytes)
        except MemoryTierFull as error:
            raise NoRoom(str(error)) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise NoRoom(f"the memory tier is full ({error}): raise checkpoint.memory.sizeLimit") from error
        except Damaged:
            if not wanted():
                raise NotWanted from None
            raise
