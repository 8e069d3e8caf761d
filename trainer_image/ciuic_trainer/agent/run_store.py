"""The checkpoints of one run in S3: owner, attempts, shards, manifests. Synchronous; used by `uploads` and `runtime`.

OWNER.json                       whose run it is; changed by compare-and-set
attempts/<n>.json                parent and restored checkpoint; written once, before the attempt's first manifest
steps/<step>.a<attempt>/rank-%05d         a shard
steps/<step>.a<attempt>/rank-%05d.json    its record: size and checksum, written after it
manifests/<step>.a<attempt>.json          makes the checkpoint exist; written once, when every record is there
"""

import io
import zlib
from collections.abc import Callable, Sequence

import msgspec

from ciuic_api.lineage import Attempt, CheckpointId, fork_steps
from ciuic_api.protocol import Owner, RunState, StoreState

from .store import Exists, Missing, Refused, Store, Unreachable

LOOKED_AT = 8
"""Newest manifests that are checked when the run is looked at."""
ATTEMPTS_TOLD = 32
NEWEST_KEPT = 2
CHUNK_BYTES = 8 * 1024**2


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


class Damaged(Exception):
    """A checkpoint that can not be used; the sentence says why."""


class RunStore:
    def __init__(self, store: Store, prefix: str, *, world_size: int, contract: str) -> None:
        self._store = store
        self._prefix = prefix
        self._world_size = world_size
        self._contract = contract

    def _key(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts))

    # --- whose run it is ------------------------------------------------------------------------------------------

    def probe(self, nonce: str) -> None:
        """Write, read, write again on condition, delete: what checkpoints will need. Raises Refused or Unreachable."""
        key = self._key(f".probe-{nonce}")
        self._store.put(key, b"probe", new=True)
        try:
            self._store.put(key, b"again", new=True)
        except Exists:
            pass
        else:
            raise Refused(
                f"bucket {self._store.bucket} ignores If-None-Match, so two attempts could overwrite each other"
            )
        finally:
            self._store.delete(key)

    def owner(self) -> tuple[Owner | None, str]:
        try:
            data, etag = self._store.get(self._key("OWNER.json"))
        except Missing:
            return None, ""
        return msgspec.json.decode(data, type=Owner), etag

    def claim(self, mine: Owner, take_over: str) -> bool:
        """Write OWNER.json for this attempt. False when the run is another's, or a later attempt's already."""
        known, etag = self.owner()
        if known is not None:
            stranger = known.uid != mine.uid
            if (stranger and known.uid != take_over) or (not stranger and known.attempt > mine.attempt):
                return False
            if known == mine:
                return True
        data = msgspec.json.encode(mine)
        try:
            if known is None:
                self._store.put(self._key("OWNER.json"), data, new=True)
            else:
                self._store.put(self._key("OWNER.json"), data, etag=etag)
        except Exists:
            return False
        return True

    # --- looking --------------------------------------------------------------------------------------------------

    def look(self) -> RunState:
        """What the run holds, as far as listing and manifests tell. Errors of the store become its state."""
        try:
            return self._look()
        except Unreachable as error:
            return RunState(store=StoreState.UNREACHABLE, message=str(error))
        except Refused as error:
            return RunState(store=StoreState.REFUSED, message=str(error))

    def _look(self) -> RunState:
        owner, _ = self.owner()
        attempts = self.attempts()
        names = [entry.key.rsplit("/", 1)[1] for entry in self._store.list(self._key("manifests/"))]
        found = sorted((c for name in names if (c := _parse(name.removesuffix(".json"))) is not None), reverse=True)
        sound: list[CheckpointId] = []
        refused: list[str] = []
        contract = ""
        for checkpoint in _newest_of_each(found):
            try:
                manifest = self.manifest(checkpoint)
                self._check_present(manifest)
            except (Damaged, Missing) as error:
                refused.append(f"{checkpoint}: {error}")
                continue
            contract = contract or manifest.contract
            sound.append(checkpoint)
        return RunState(
            store=StoreState.OK,
            owner=owner,
            attempts=tuple(attempts[-ATTEMPTS_TOLD:]),
            manifests=tuple(sound),
            refused=tuple(refused),
            contract=contract,
        )

    def attempts(self) -> list[Attempt]:
        found = []
        for entry in self._store.list(self._key("attempts/")):
            data, _ = self._store.get(entry.key)
            found.append(msgspec.json.decode(data, type=Attempt))
        return sorted(found, key=lambda attempt: attempt.attempt)

    def manifest(self, checkpoint: CheckpointId) -> Manifest:
        data, _ = self._store.get(self._key("manifests", f"{checkpoint}.json"))
        try:
            manifest = msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise Damaged(f"its manifest can not be read: {error}") from error
        if manifest.checkpoint != checkpoint or any(shard.checkpoint != checkpoint for shard in manifest.shards):
            raise Damaged("its manifest names shards of another checkpoint")
        if sorted(shard.rank for shard in manifest.shards) != list(range(manifest.world_size)):
            raise Damaged("its manifest does not name every rank's shard")
        return manifest

    def _check_present(self, manifest: Manifest) -> None:
        listed = {
            entry.key: entry.size_bytes for entry in self._store.list(self._key("steps", f"{manifest.checkpoint}/"))
        }
        for shard in manifest.shards:
            key = self._shard_key(manifest.checkpoint, shard.rank)
            if key not in listed:
                raise Damaged(f"rank-{shard.rank:05d} is missing")
            if listed[key] != shard.size_bytes:
                raise Damaged(f"rank-{shard.rank:05d} has {listed[key]} bytes instead of {shard.size_bytes}")

    def _shard_key(self, checkpoint: CheckpointId, rank: int) -> str:
        return self._key("steps", str(checkpoint), f"rank-{rank:05d}")

    # --- writing --------------------------------------------------------------------------------------------------

    def put_shard(self, record: ShardRecord, body: io.IOBase) -> None:
        """The shard, then its record. Writing it again is harmless: the identity is in the key."""
        key = self._shard_key(record.checkpoint, record.rank)
        self._store.upload(key, body)
        self._store.put(f"{key}.json", msgspec.json.encode(record))

    def put_attempt(self, attempt: Attempt) -> None:
        """Written once. Raises Exists when another process wrote something else under this number."""
        key = self._key("attempts", f"{attempt.attempt}.json")
        try:
            self._store.put(key, msgspec.json.encode(attempt), new=True)
        except Exists:
            data, _ = self._store.get(key)
            if msgspec.json.decode(data, type=Attempt) != attempt:
                raise

    def commit(self, checkpoint: CheckpointId, attempt: Attempt) -> bool:
        """Write the manifest when every shard's record is there; False when some are not yet."""
        records = []
        for rank in range(self._world_size):
            try:
                data, _ = self._store.get(f"{self._shard_key(checkpoint, rank)}.json")
            except Missing:
                return False
            record = msgspec.json.decode(data, type=ShardRecord)
            if record.checkpoint != checkpoint or record.rank != rank:
                return False
            records.append(record)
        self.put_attempt(attempt)
        manifest = Manifest(
            checkpoint=checkpoint, world_size=self._world_size, contract=self._contract, shards=tuple(records)
        )
        key = self._key("manifests", f"{checkpoint}.json")
        try:
            self._store.put(key, msgspec.json.encode(manifest), new=True)
        except Exists:
            if self.manifest(checkpoint) != manifest:
                raise
        return True

    def retain(self, tip: int, keep_last: int, may_delete: Callable[[], bool]) -> list[CheckpointId]:
        """Delete what is neither among the newest on the lineage nor named as restored. Manifest first, then shards."""
        attempts = self.attempts()
        names = [entry.key.rsplit("/", 1)[1] for entry in self._store.list(self._key("manifests/"))]
        found = [c for name in names if (c := _parse(name.removesuffix(".json"))) is not None]
        deleted = []
        for checkpoint in superfluous(found, tip, attempts, keep_last):
            if not may_delete():
                break
            self._store.delete(self._key("manifests", f"{checkpoint}.json"))
            for entry in self._store.list(self._key("steps", f"{checkpoint}/")):
                self._store.delete(entry.key)
            deleted.append(checkpoint)
        return deleted

    # --- reading back ---------------------------------------------------------------------------------------------

    def read_shard(self, checkpoint: CheckpointId, rank: int) -> tuple[ShardRecord, bytearray]:
        """The shard, checked against the manifest. Raises Damaged or Missing when it is not what it was."""
        manifest = self.manifest(checkpoint)
        if manifest.world_size != self._world_size:
            raise Damaged(f"it is of {manifest.world_size} ranks, the job has {self._world_size}")
        record = next(shard for shard in manifest.shards if shard.rank == rank)
        data = bytearray()
        for chunk in self._store.stream(self._shard_key(checkpoint, rank), CHUNK_BYTES):
            data += chunk
        if len(data) != record.size_bytes or zlib.crc32(data) != record.crc32:
            raise Damaged(f"rank-{rank:05d} in S3 fails its checksum")
        return record, data


def superfluous(
    found: Sequence[CheckpointId], tip: int, attempts: Sequence[Attempt], keep_last: int
) -> list[CheckpointId]:
    """Checkpoints on the lineage of `tip` that may go, oldest first. What is on dead branches is left to the sweep."""
    limits = fork_steps(tip, attempts)
    named = {attempt.restored for attempt in attempts}
    mine = sorted(c for c in found if c.attempt in limits and ((limit := limits[c.attempt]) is None or c.step <= limit))
    return [c for c in mine[: -max(keep_last, NEWEST_KEPT)] if c not in named]


def _newest_of_each(found: Sequence[CheckpointId]) -> list[CheckpointId]:
    """The newest of each attempt, newest first: which of them count is for the lineage to say."""
    taken: dict[int, int] = {}
    chosen = []
    for checkpoint in found:
        taken[checkpoint.attempt] = taken.get(checkpoint.attempt, 0) + 1
        if taken[checkpoint.attempt] <= LOOKED_AT:
            chosen.append(checkpoint)
    return chosen


def _parse(name: str) -> CheckpointId | None:
    step, separator, attempt = name.partition(".a")
    if not separator or not step.isdecimal() or not attempt.isdecimal():
        return None
    return CheckpointId(int(step), int(attempt))
