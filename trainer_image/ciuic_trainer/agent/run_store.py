"""The checkpoints of one run in S3: owner, attempts, shards, manifests. Synchronous; used by `uploads`, `run_watch`
and `memory`, from their threads.

OWNER.json                       whose run it is; changed by compare-and-set
attempts/<n>.json                parent and restored checkpoint; written once, before the attempt's first manifest
steps/<step>.a<attempt>/rank-%05d         a shard
steps/<step>.a<attempt>/rank-%05d.json    its record: size and checksum, written after it
manifests/<step>.a<attempt>.json          makes the checkpoint exist; written once, when every record is there
"""

import io
import zlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import msgspec

from ciuic_api.contract import difference
from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import Owner

from .records import Damaged, Manifest, ShardRecord, chain, merged, parse_checkpoint, read_manifest, superfluous
from .store import Exists, Missing, Refused, Store

AT_ONCE = 8
"""Requests for small objects of which there is one per rank or attempt."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class RunStore:
    def __init__(self, store: Store, prefix: str, *, world_size: int, contract: str) -> None:
        self._store = store
        self._prefix = prefix
        self._world_size = world_size
        self._contract = contract
        self._recorded: set[Attempt] = set()
        """Attempt records known to be written."""
        self._attempts: dict[str, tuple[str, Attempt]] = {}
        """By key, with the ETag: a record is written once, so it is read once."""

    def _key(self, *parts: str) -> str:
        return "/".join((self._prefix, *parts))

    def _shard_key(self, checkpoint: CheckpointId, rank: int) -> str:
        return self._key("steps", str(checkpoint), f"rank-{rank:05d}")

    # --- whose run it is ------------------------------------------------------------------------------------------

    def probe(self, nonce: str) -> None:
        """Write, read, write on both conditions, delete: what checkpoints will need. Raises Refused or Unreachable."""
        key = self._key(f".probe-{nonce}")
        etag = self._store.put(key, b"probe", new=True)
        try:
            if self._store.get(key)[0] != b"probe":
                raise Refused(f"bucket {self._store.bucket} gives back something else than was written")
            self._must_refuse("If-None-Match", lambda: self._store.put(key, b"again", new=True))
            self._store.put(key, b"changed", etag=etag)
            self._must_refuse("If-Match", lambda: self._store.put(key, b"again", etag=etag))
        finally:
            self._store.delete(key)

    def _must_refuse(self, condition: str, write: Callable[[], object]) -> None:
        try:
            write()
        except Exists:
            return
        raise Refused(f"bucket {self._store.bucket} ignores {condition}, so two attempts could overwrite each other")

    def owner(self) -> tuple[Owner | None, str]:
        try:
            data, etag = self._store.get(self._key("OWNER.json"))
        except Missing:
            return None, ""
        try:
            return msgspec.json.decode(data, type=Owner), etag
        except msgspec.DecodeError as error:
            raise Refused(f"{self._key('OWNER.json')} can not be read ({error}): correct or delete it") from error

    def claim(self, mine: Owner, take_over: str) -> Owner | None:
        """Write OWNER.json for this attempt. Returns who stands in the way: another job, or a later attempt; else None."""
        known, etag = self.owner()
        if known == mine:
            return None
        if known is not None:
            stranger = known.uid != mine.uid
            if (stranger and known.uid != take_over) or (not stranger and known.attempt > mine.attempt):
                return known
        data = msgspec.json.encode(mine)
        try:
            if known is None:
                self._store.put(self._key("OWNER.json"), data, new=True)
            else:
                self._store.put(self._key("OWNER.json"), data, etag=etag)
        except Exists:
            other, _ = self.owner()
            return other if other != mine else None
        return None

    # --- what there is --------------------------------------------------------------------------------------------

    def attempts(self) -> list[Attempt]:
        """All records, by number."""
        listed = [
            entry
            for entry in self._store.list(self._key("attempts/"))
            if _name(entry.key).removesuffix(".json").isdecimal()
        ]
        fresh = [entry for entry in listed if self._attempts.get(entry.key, ("",))[0] != entry.etag]
        for entry, link in zip(fresh, self._each(lambda found: self._attempt(found.key), fresh), strict=True):
            self._attempts[entry.key] = (entry.etag, link)
        return sorted((self._attempts[entry.key][1] for entry in listed), key=lambda attempt: attempt.attempt)

    def _attempt(self, key: str) -> Attempt:
        data, _ = self._store.get(key)
        try:
            return msgspec.json.decode(data, type=Attempt)
        except msgspec.DecodeError as error:
            raise Refused(
                f"{key} can not be read ({error}): bring it back, or choose another checkpoint.run"
            ) from error

    def checkpoints(self) -> list[CheckpointId]:
        """Those that have a manifest."""
        names = [_name(entry.key).removesuffix(".json") for entry in self._store.list(self._key("manifests/"))]
        return [checkpoint for name in names if (checkpoint := parse_checkpoint(name)) is not None]

    def manifest(self, checkpoint: CheckpointId) -> Manifest:
        """Raises Damaged or Missing."""
        data, _ = self._store.get(self._key("manifests", f"{checkpoint}.json"))
        return read_manifest(data, checkpoint)

    def check_present(self, manifest: Manifest) -> None:
        """Raises Damaged when a shard is not there with its size: as far as a listing can tell."""
        listed = {
            entry.key: entry.size_bytes for entry in self._store.list(self._key("steps", f"{manifest.checkpoint}/"))
        }
        for shard in manifest.shards:
            key = self._shard_key(manifest.checkpoint, shard.rank)
            if key not in listed:
                raise Damaged(f"rank-{shard.rank:05d} is missing")
            if listed[key] != shard.size_bytes:
                raise Damaged(f"rank-{shard.rank:05d} has {listed[key]} bytes instead of {shard.size_bytes}")

    # --- writing --------------------------------------------------------------------------------------------------

    def put_shard(self, record: ShardRecord, body: io.IOBase) -> None:
        """The shard, then its record. Writing it again is harmless: the identity is in the key."""
        key = self._shard_key(record.checkpoint, record.rank)
        self._store.upload(key, body)
        self._store.put(f"{key}.json", msgspec.json.encode(record))

    def put_evidence(self, name: str, data: bytes) -> str:
        """Its address. What was seen of one failure in one pod; beside the checkpoints, and kept as long as they."""
        key = self._key("evidence", name)
        self._store.put(key, data)
        return f"s3://{self._store.bucket}/{key}"

    def put_attempt(self, attempt: Attempt) -> None:
        """Written once. Raises Exists when another process wrote something else under this number."""
        if attempt in self._recorded:
            return
        key = self._key("attempts", f"{attempt.attempt}.json")
        try:
            self._store.put(key, msgspec.json.encode(attempt), new=True)
        except Exists:
            if self._attempt(key) != attempt:
                raise
        self._recorded.add(attempt)

    def commit(self, checkpoint: CheckpointId, lineage: Sequence[Attempt]) -> list[int]:
        """Write the manifest when every shard's record is there. Returns the ranks that are missing; none: it is done.

        `lineage` is written down with it: an attempt that committed nothing is a link without which nobody could
        tell later that the checkpoints of its ancestors count.
        """
        names = {_name(entry.key) for entry in self._store.list(self._key("steps", f"{checkpoint}/"))}
        missing = [rank for rank in range(self._world_size) if f"rank-{rank:05d}.json" not in names]
        if missing:
            return missing
        records = self._each(lambda rank: self._record(checkpoint, rank), range(self._world_size))
        for link in chain(checkpoint.attempt, lineage):
            self.put_attempt(link)
        manifest = Manifest(
            checkpoint=checkpoint, world_size=self._world_size, contract=self._contract, shards=tuple(records)
        )
        key = self._key("manifests", f"{checkpoint}.json")
        try:
            self._store.put(key, msgspec.json.encode(manifest), new=True)
        except Exists:
            if self.manifest(checkpoint) != manifest:
                raise
        return []

    def _record(self, checkpoint: CheckpointId, rank: int) -> ShardRecord:
        key = f"{self._shard_key(checkpoint, rank)}.json"
        try:
            record = msgspec.json.decode(self._store.get(key)[0], type=ShardRecord)
        except msgspec.DecodeError as error:
            raise Damaged(f"{key} can not be read: {error}") from error
        if (record.checkpoint, record.rank, record.world_size) != (checkpoint, rank, self._world_size):
            raise Damaged(f"{key} describes another shard")
        return record

    def retain(
        self, tip: int, lineage: Sequence[Attempt], keep_last: int, may_delete: Callable[[], bool]
    ) -> list[CheckpointId]:
        """Delete what is neither among the newest on the lineage nor named as restored. Manifest first, then shards."""
        attempts = merged(self.attempts(), lineage)
        deleted = []
        for checkpoint in superfluous(self.checkpoints(), tip, attempts, keep_last):
            if not may_delete():
                break
            self._store.delete(self._key("manifests", f"{checkpoint}.json"))
            keys = [entry.key for entry in self._store.list(self._key("steps", f"{checkpoint}/"))]
            if not may_delete():
                break
            self._each(self._store.delete, keys)
            deleted.append(checkpoint)
        return deleted

    # --- reading back ---------------------------------------------------------------------------------------------

    def read_shard(
        self, checkpoint: CheckpointId, rank: int, wanted: Callable[[], bool] = lambda: True
    ) -> tuple[ShardRecord, Generator[memoryview, None, None]]:
        """A shard and its content, of which the last piece comes only when all of it is what the manifest says.

        Raises Damaged or Missing, at once or while the content is read.
        """
        manifest = self.manifest(checkpoint)
        if manifest.world_size != self._world_size:
            raise Damaged(f"it is of {manifest.world_size} ranks, the job has {self._world_size}")
        if differs := difference(manifest.contract, self._contract):
            raise Damaged(f"it does not fit this job: {differs}")
        record = next(shard for shard in manifest.shards if shard.rank == rank)
        return record, self._checked(record, wanted)

    def _checked(self, record: ShardRecord, wanted: Callable[[], bool]) -> Generator[memoryview, None, None]:
        crc = size_bytes = 0
        last = memoryview(b"")
        for piece in self._store.ranges(self._shard_key(record.checkpoint, record.rank), record.size_bytes, wanted):
            yield last
            crc, size_bytes, last = zlib.crc32(piece, crc), size_bytes + len(piece), memoryview(piece)
        if (size_bytes, crc) != (record.size_bytes, record.crc32):
            raise Damaged(f"rank-{record.rank:05d} in S3 fails its checksum")
        yield last

    def _each(self, call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        if len(items) < 2:
            return [call(item) for item in items]
        with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="objects") as pool:
            return list(pool.map(call, items))


def _name(key: str) -> str:
    return key.rsplit("/", 1)[1]
