"""The memory tier of one rank: a directory of three preallocated buffers in a memory-backed volume.

The trainer copies its shard into a free buffer and goes on; the agent reads it from there and uploads it. Training
never waits for a reader: where no buffer is free, the copy is skipped. The commit word of a buffer is written last, so
a rank that dies in the middle of a copy leaves an incomplete buffer and never a wrong one. The newest complete
checkpoint is never written over. A reader pins a buffer by a shared flock, which ends with its process.

Where a checkpoint is of use only when all ranks have it, all ranks must decide alike. So `reserve` says whether a copy
can be made before anything is written, and `upload_pending` whether an earlier one still waits for its upload: the
trainer reduces both over all ranks and copies, or persists, only when all can.
"""

import errno
import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ciuic_api.lineage import CheckpointId

BUFFERS = 3
HEADER_BYTES = 4096
GROWTH_BYTES = 64 * 1024
"""Room kept behind the payload: the JSON in its header grows and shrinks by some digits."""

_MAGIC = b"CIUICMT1"
_FIELDS = struct.Struct("<8sQQIIQII")
"""magic, step, attempt, rank, world size, payload bytes, payload crc32, persist"""
_CRC = struct.Struct("<I")
_WORD = struct.Struct("<Q")
_COMMIT_OFFSET = 512
_SETTLED_OFFSET = 1024
_COMMITTED = 0x636F6D6D69747465
_SETTLED = 0x736574746C656421


class MemoryTierError(Exception):
    """Base of what can go wrong with the memory tier."""


class MemoryTierFull(MemoryTierError):
    """The volume is smaller than what the buffers need; the message has the numbers."""


class NotHeld(MemoryTierError):
    """No complete buffer holds this checkpoint, or it is being written over right now."""


class ShardCorrupt(MemoryTierError):
    """The payload does not match its checksum."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A complete buffer, as its header says. Whether its payload is sound only `open_verified` tells."""

    checkpoint: CheckpointId
    rank: int
    world_size: int
    size_bytes: int
    crc32: int
    persist: bool
    """The trainer asked for its upload."""
    settled: bool
    """Its upload is done, or is no longer wanted."""

    @property
    def pending(self) -> bool:
        return self.persist and not self.settled


class Buffer:
    """One open buffer file, locked for as long as the object is open."""

    def __init__(self, path: Path, lock: int) -> None:
        """Raises BlockingIOError when somebody holds a lock that excludes `lock`."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, lock | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def held(self) -> Held | None:
        return _read_header(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # closing alone would leave it to a mapping that lives on
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Reservation(Buffer):
    """A buffer that only its holder may write. Its former content counts until `begin`."""

    def begin(self, size_bytes: int) -> None:
        """Nothing in this buffer counts from here on until `commit`."""
        os.pwrite(self._descriptor, _WORD.pack(0), _COMMIT_OFFSET)
        os.pwrite(self._descriptor, _WORD.pack(0), _SETTLED_OFFSET)
        _allocate(self._descriptor, HEADER_BYTES + size_bytes)

    def write(self, chunk: memoryview, offset_bytes: int) -> None:
        """By system calls, not through a mapping: no page faults, and a full volume is an error, not a SIGBUS."""
        while chunk.nbytes:
            written = os.pwrite(self._descriptor, chunk, HEADER_BYTES + offset_bytes)
            chunk, offset_bytes = chunk[written:], offset_bytes + written

    def commit(self, held: Held) -> None:
        """The payload is complete. Releases the buffer."""
        fields = _FIELDS.pack(
            _MAGIC,
            held.checkpoint.step,
            held.checkpoint.attempt,
            held.rank,
            held.world_size,
            held.size_bytes,
            held.crc32,
            held.persist,
        )
        os.pwrite(self._descriptor, fields + _CRC.pack(zlib.crc32(fields)), 0)
        if held.settled:
            os.pwrite(self._descriptor, _WORD.pack(_SETTLED), _SETTLED_OFFSET)
        os.pwrite(self._descriptor, _WORD.pack(_COMMITTED), _COMMIT_OFFSET)
        self.close()


class Pinned(Buffer):
    """A complete buffer that cannot be written over while this is open."""

    def payload(self) -> memoryview:
        """Read-only, and to be read only while the pin is held."""
        held = self.held()
        assert held is not None
        area = mmap.mmap(self._descriptor, HEADER_BYTES + held.size_bytes, access=mmap.ACCESS_READ)
        return memoryview(area)[HEADER_BYTES:]

    def settle(self) -> None:
        os.pwrite(self._descriptor, _WORD.pack(_SETTLED), _SETTLED_OFFSET)


class MemoryTier:
    def __init__(self, directory: Path, rank: int, world_size: int) -> None:
        self._directory = directory
        self._rank = rank
        self._world_size = world_size

    def prepare(self, payload_bytes: int) -> int:
        """Allocate the buffers and say how many fit. At least two are needed: one to keep, one to write."""
        self._directory.mkdir(parents=True, exist_ok=True)
        wanted = HEADER_BYTES + payload_bytes + GROWTH_BYTES
        for number in range(BUFFERS):
            descriptor = os.open(self._path(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                _allocate(descriptor, wanted)
            except MemoryTierFull:
                if number < 2:
                    raise
                self._path(number).unlink()
                return number
            finally:
                os.close(descriptor)
        return BUFFERS

    def held(self) -> list[Held]:
        """All complete buffers, newest first."""
        found = []
        for path in self._paths():
            with suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    held = _read_header(descriptor)
                finally:
                    os.close(descriptor)
                if held is not None and (held.rank, held.world_size) == (self._rank, self._world_size):
                    found.append(held)
        return sorted(found, key=lambda held: held.checkpoint, reverse=True)

    def upload_pending(self) -> bool:
        """Whether a checkpoint that is to be uploaded has not been."""
        return any(held.pending for held in self.held())

    def reserve(self, *, persist: bool) -> Reservation | None:
        """A buffer to write to, or None where all are pinned, kept or waiting for their upload.

        A checkpoint that waits for its upload gives way only to one that is to be uploaded itself.
        """
        newest = next(iter(self.held()), None)
        candidates: list[tuple[tuple[bool, bool, CheckpointId], Reservation]] = []
        for path in self._paths():
            try:
                buffer = Reservation(path, fcntl.LOCK_EX)
            except (BlockingIOError, FileNotFoundError):
                continue
            held = buffer.held()
            pending = held is not None and held.pending
            if (held is not None and newest is not None and held.checkpoint == newest.checkpoint) or (
                pending and not persist
            ):
                buffer.close()
                continue
            candidates.append(((held is not None, pending, held.checkpoint if held else CheckpointId(0, 0)), buffer))
        candidates.sort(key=lambda candidate: candidate[0])
        for _, buffer in candidates[1:]:
            buffer.close()
        return candidates[0][1] if candidates else None

    def write(self, checkpoint: CheckpointId, *, persist: bool, chunks: Iterable[memoryview], size_bytes: int) -> bool:
        """`reserve` and `write_reserved` in one, for who need not agree with other ranks. False: skipped."""
        reservation = self.reserve(persist=persist)
        if reservation is None:
            return False
        self.write_reserved(reservation, checkpoint, persist=persist, chunks=chunks, size_bytes=size_bytes)
        return True

    def write_reserved(
        self,
        reservation: Reservation,
        checkpoint: CheckpointId,
        *,
        persist: bool,
        chunks: Iterable[memoryview],
        size_bytes: int,
        settled: bool = False,
    ) -> None:
        """Copy `chunks`, which must be `size_bytes` in sum, and commit them. Releases the buffer in any case."""
        with reservation:
            reservation.begin(size_bytes)
            offset = crc = 0
            for chunk in chunks:
                if offset + chunk.nbytes > size_bytes:
                    raise MemoryTierError(f"more than the announced {size_bytes} bytes")
                reservation.write(chunk, offset)
                crc = zlib.crc32(chunk, crc)  # of the source: a copy that went wrong is found by the reader
                offset += chunk.nbytes
            if offset != size_bytes:
                raise MemoryTierError(f"{offset} bytes given, {size_bytes} announced")
            reservation.commit(
                Held(
                    checkpoint=checkpoint,
                    rank=self._rank,
                    world_size=self._world_size,
                    size_bytes=size_bytes,
                    crc32=crc,
                    persist=persist,
                    settled=settled,
                )
            )

    def pin(self, checkpoint: CheckpointId) -> tuple[Pinned, Held]:
        """Hold the buffer with this checkpoint, unverified. NotHeld when there is none."""
        for path in self._paths():
            try:
                buffer = Pinned(path, fcntl.LOCK_SH)
            except (BlockingIOError, FileNotFoundError):
                continue
            held = buffer.held()
            if held is not None and held.checkpoint == checkpoint:
                return buffer, held
            buffer.close()
        raise NotHeld(f"checkpoint {checkpoint} is not in memory")

    def open_verified(self, checkpoint: CheckpointId) -> tuple[Pinned, memoryview]:
        """The payload, checked against its checksum, and the pin to close when done with it."""
        pinned, held = self.pin(checkpoint)
        payload = pinned.payload()
        if zlib.crc32(payload) != held.crc32:
            pinned.close()
            raise ShardCorrupt(f"the memory copy of checkpoint {checkpoint} of rank {self._rank} fails its checksum")
        return pinned, payload

    def discard(self, checkpoint: CheckpointId) -> bool:
        """Forget a checkpoint. False when it is pinned."""
        for path in self._paths():
            try:
                buffer = Reservation(path, fcntl.LOCK_EX)
            except (BlockingIOError, FileNotFoundError):
                continue
            with buffer:
                held = buffer.held()
                if held is not None and held.checkpoint == checkpoint:
                    buffer.begin(0)
        return all(held.checkpoint != checkpoint for held in self.held())

    def _path(self, number: int) -> Path:
        return self._directory / f"buffer-{number}"

    def _paths(self) -> list[Path]:
        return [self._path(number) for number in range(BUFFERS)]


def _read_header(descriptor: int) -> Held | None:
    """What the buffer holds, or None when it is not complete."""
    raw = os.pread(descriptor, HEADER_BYTES, 0)
    if len(raw) < HEADER_BYTES or _WORD.unpack_from(raw, _COMMIT_OFFSET)[0] != _COMMITTED:
        return None
    fields = raw[: _FIELDS.size]
    if _CRC.unpack_from(raw, _FIELDS.size)[0] != zlib.crc32(fields):
        return None
    magic, step, attempt, rank, world_size, size_bytes, crc32, persist = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        return None
    return Held(
        checkpoint=CheckpointId(step, attempt),
        rank=rank,
        world_size=world_size,
        size_bytes=size_bytes,
        crc32=crc32,
        persist=bool(persist),
        settled=_WORD.unpack_from(raw, _SETTLED_OFFSET)[0] == _SETTLED,
    )


def _allocate(descriptor: int, size_bytes: int) -> None:
    """Real pages, not a sparse file: writing to a hole of a full volume would kill the process by SIGBUS."""
    if os.fstat(descriptor).st_size >= size_bytes:
        return
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG):
            raise
        volume = os.fstatvfs(descriptor)
        free, total = volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize
        raise MemoryTierFull(
            f"a memory-tier buffer needs {size_bytes} bytes, the volume has {free} of {total} free:"
            " raise spec.checkpoint.memory.sizeLimit"
        ) from error
