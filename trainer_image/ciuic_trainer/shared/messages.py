"""Datagrams from a rank to its agent over a Unix socket. Each is a hint: what is true stands in files.

Losing a datagram loses at most some delay, so the sender never blocks, never retries and never raises.
"""

import socket
from pathlib import Path

import msgspec

from ciuic_api.lineage import CheckpointId

MAX_DATAGRAM_BYTES = 64 * 1024


class CheckpointWritten(msgspec.Struct, frozen=True, tag="checkpoint"):
    """A copy was completed in the memory tier: look there now instead of at the next tick."""

    rank: int
    checkpoint: CheckpointId
    persist: bool


class Record(msgspec.Struct, frozen=True, tag="record"):
    """Something a person should see: a skipped step, a setting that could not be honoured."""

    rank: int
    reason: str
    message: str


RankMessage = CheckpointWritten | Record

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RankMessage).decode


class Sender:
    """The rank's side."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, message: RankMessage) -> bool:
        """Whether the agent's socket took it. No reason to stop or to try again when it did not."""
        try:
            self._socket.sendto(_encode(message), self._path)
        except OSError:
            return False
        return True


def bind(path: Path) -> socket.socket:
    """The agent's side: a non-blocking socket at `path`."""
    path.unlink(missing_ok=True)
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.bind(str(path))
    return receiver


def decode(datagram: bytes) -> RankMessage | None:
    """None for what is not a message of ours: any process of the pod may write to the socket."""
    try:
        return _decode(datagram)
    except msgspec.DecodeError:
        return None
