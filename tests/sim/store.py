"""The checkpoint store of the simulation: what S3 would hold, with the same conditional writes."""

from dataclasses import dataclass, field

from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import Owner, RunState, StoreState


@dataclass
class Store:
    up: bool = True
    owner: Owner | None = None
    attempts: dict[int, Attempt] = field(default_factory=dict)
    shards: dict[CheckpointId, set[int]] = field(default_factory=dict)
    """Slots whose shard is there."""
    manifests: set[CheckpointId] = field(default_factory=set)

    def look(self, attempt: int, claimed: int) -> RunState:
        if not self.up:
            return RunState(
                store=StoreState.UNREACHABLE, message="down", scanned_attempt=attempt, claimed_attempt=claimed
            )
        return RunState(
            store=StoreState.OK,
            owner=self.owner,
            attempts=tuple(self.attempts[number] for number in sorted(self.attempts)),
            manifests=tuple(sorted(self.manifests, reverse=True)),
            scanned_attempt=attempt,
            claimed_attempt=claimed,
        )

    def claim(self, uid: str, cluster: str, attempt: int) -> bool:
        """Compare-and-set: an attempt older than the owner's is refused."""
        if not self.up or (self.owner is not None and self.owner.attempt > attempt):
            return False
        self.owner = Owner(uid=uid, cluster=cluster, attempt=attempt)
        return True

    def put_shard(self, checkpoint: CheckpointId, slot: int) -> bool:
        if self.up:
            self.shards.setdefault(checkpoint, set()).add(slot)
        return self.up

    def commit(self, checkpoint: CheckpointId, nodes: int, record: Attempt) -> bool:
        """Record first, with If-None-Match, then the manifest when all shards are there."""
        if not self.up or len(self.shards.get(checkpoint, ())) < nodes:
            return False
        self.attempts.setdefault(record.attempt, record)
        self.manifests.add(checkpoint)
        return True
