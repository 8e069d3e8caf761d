"""When a rank copies its state into the memory tier, and how it comes back. Called by the loop after every step.

Training waits for the copy only; the agent uploads it afterwards. A checkpoint is of use only when all ranks have it,
so all decide alike: each says whether it can, and the copy is made when every one can.
"""

import time
from typing import Any

import torch
import torch.distributed

from ciuic_api.lineage import CheckpointId
from ciuic_api.training import Training
from ciuic_trainer.shared.memory_tier import MemoryTier, Reservation
from ciuic_trainer.shared.messages import CheckpointWritten, Record, Sender
from ciuic_trainer.shared.rank_env import RankEnv
from ciuic_trainer.shared.shard_format import ShardIdentity, layout, parse

from .agreement import require
from .device import Device
from .errors import NonFiniteError, RestoreError
from .log import Log
from .state import Snapshot, TrainState, finite, restore, snapshot

_POLL_SECONDS = 0.05


class Checkpoints:
    def __init__(
        self,
        env: RankEnv,
        training: Training,
        engine: Any,
        device: Device,
        facts: dict[str, Any],
        sender: Sender,
        log: Log,
    ) -> None:
        self._training = training
        self._env = env
        self._engine = engine
        self._device = device
        self._facts = facts
        self._sender = sender
        self._log = log
        self._tier = MemoryTier(env.memory_tier_dir, env.rank, env.world_size)
        if env.checkpoint_every_steps or env.memory_every_steps:
            self._tier.prepare(self._layout(snapshot(engine, TrainState(), device, facts), 0).total_bytes)

    def restore(self, checkpoint: CheckpointId) -> TrainState:
        """From the memory tier, where the agent has put and verified it."""
        started = time.monotonic()
        pinned, payload = self._tier.open_verified(checkpoint)
        with pinned:
            shard = parse(payload)
            expected = ShardIdentity(checkpoint=checkpoint, rank=self._env.rank, world_size=self._env.world_size)
            if shard.identity != expected:
                raise RestoreError(f"asked for {expected}, the shard says {shard.identity}")
            train = restore(shard, self._engine, self._device, self._facts)
        if train.step != checkpoint.step:
            raise RestoreError(f"checkpoint {checkpoint} holds the state of step {train.step}")
        self._log.record("restore", checkpoint=str(checkpoint), milliseconds=_milliseconds(started))
        return train

    def due(self, step: int, *, final: bool) -> bool:
        return any(
            every and (final or step % every == 0)
            for every in (self._env.checkpoint_every_steps, self._env.memory_every_steps)
        )

    def save(self, train: TrainState, *, final: bool) -> None:
        """`final`: nothing comes after it, so wait for a free buffer, and have it uploaded."""
        started = time.monotonic()
        if not self._all(finite(self._engine)):
            raise NonFiniteError(
                f"step {train.step}: parameters or moments are not finite; no checkpoint is made of them"
            )
        require(self._engine, train, self._training, self._device)
        cadence = self._env.checkpoint_every_steps
        persist = cadence > 0 and (final or train.step % cadence == 0)
        if persist and not final and not self._all(not self._tier.upload_pending()):
            persist = False
            self._say(train.step, "UploadPending", "an earlier checkpoint is still being uploaded: this one stays here")
        reservation = self._reserve_on_all(persist=persist)
        while reservation is None and final and time.monotonic() < started + self._env.grace_seconds:
            time.sleep(_POLL_SECONDS)
            reservation = self._reserve_on_all(persist=persist)
        if reservation is None:
            self._say(train.step, "NoFreeBuffer", "all buffers of the memory tier are being read: no copy was made")
            return
        checkpoint = CheckpointId(train.step, self._env.attempt)
        state = snapshot(self._engine, train, self._device, self._facts)
        shard = self._layout(state, train.step)
        self._tier.write_reserved(
            reservation, checkpoint, persist=persist, chunks=shard.chunks(state.data), size_bytes=shard.total_bytes
        )
        self._sender.send(CheckpointWritten(self._env.rank, checkpoint, persist))
        self._log.record(
            "checkpoint",
            step=train.step,
            persist=persist,
            bytes=shard.total_bytes,
            milliseconds=_milliseconds(started),
            parameters_digest=f"{state.state['digests']['parameters']:016x}",
        )

    def _reserve_on_all(self, *, persist: bool) -> Reservation | None:
        reservation = self._tier.reserve(persist=persist)
        if self._all(reservation is not None):
            return reservation
        if reservation is not None:
            reservation.close()
        return None

    def _all(self, ours: bool) -> bool:
        answer = torch.tensor(int(ours), dtype=torch.int32, device=self._device.torch)
        torch.distributed.all_reduce(answer, op=torch.distributed.ReduceOp.MIN)
        return bool(answer.item())

    def _layout(self, state: Snapshot, step: int) -> Any:
        identity = ShardIdentity(
            checkpoint=CheckpointId(step, self._env.attempt), rank=self._env.rank, world_size=self._env.world_size
        )
        return layout(identity, state.specs(), state.state)

    def _say(self, step: int, reason: str, message: str) -> None:
        self._sender.send(Record(self._env.rank, reason, f"step {step}: {message}"))
        self._log.record("checkpoint-skipped", step=step, reason=reason)
        self._log.say(f"step {step}: {message}")


def _milliseconds(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 3)
