"""The checkpoint store of the simulation: what S3 would hold, with the same conditional writes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import Owner, RunState, StoreState
from ciuic_trainer.agent.records import chain


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

    def claim(self, mine: Owner, take_over: str) -> bool:
        """Compare-and-set: another job's run is refused unless its owner is known to be dead, and so is a later attempt's."""
        known = self.owner
        if not self.up:
            return False
        if known is not None and known.uid != mine.uid and known.uid != take_over:
            return False
        if known is not None and known.uid == mine.uid and known.attempt > mine.attempt:
            return False
        self.owner = mine
        return True

    def put_shard(self, checkpoint: CheckpointId, slot: int) -> bool:
        if self.up:
            self.shards.setdefault(checkpoint, set()).add(slot)
        return self.up

    def commit(self, checkpoint: CheckpointId, nodes: int, lineage: Sequence[Attempt]) -> bool:
        """Records first, with If-None-Match, then the manifest when all shards are there."""
        if not self.up or len(self.shards.get(checkpoint, ())) < nodes:
            return False
        for link in chain(checkpoint.attempt, lineage):
            self.attempts.setdefault(link.attempt, link)
        self.manifests.add(checkpoint)
        return True

    def delete(self, checkpoint: CheckpointId) -> None:
        self.manifests.discard(checkpoint)
        self.shards.pop(checkpoint, None)

    def hold_an_earlier_job(self, steps: Sequence[int], nodes: int) -> None:
        """Attempt 1 of a job object that is gone wrote these."""
        self.owner = Owner(uid="earlier", cluster="cluster-1", attempt=1)
        self.attempts[1] = Attempt(attempt=1)
        for step in steps:
            checkpoint = CheckpointId(step, 1)
            self.shards[checkpoint] = set(range(nodes))
            self.manifests.add(checkpoint)
