"""The environment by which the agent tells a rank what it is and where things are.

Written by the agent (`to_environ`), read once by the trainer at its start (`RankEnv.from_environ`). The torchrun names
are the ones an ordinary script expects; the CIUIC_ names are ours, and a script may ignore them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ciuic_api.lineage import CheckpointId

ATTEMPT = "CIUIC_ATTEMPT"
PROGRESS_FILE = "CIUIC_PROGRESS_FILE"
MESSAGES_SOCKET = "CIUIC_MESSAGES_SOCKET"
MEMORY_TIER_DIR = "CIUIC_MEMORY_TIER_DIR"
TRAINING_FILE = "CIUIC_TRAINING_FILE"
RESTORE = "CIUIC_RESTORE"
CHECKPOINT_EVERY_STEPS = "CIUIC_CHECKPOINT_EVERY_STEPS"
MEMORY_EVERY_STEPS = "CIUIC_MEMORY_EVERY_STEPS"
ACCELERATOR = "CIUIC_ACCELERATOR"
CONTRACT = "CIUIC_CONTRACT"
JOB = "CIUIC_JOB"
GRACE_SECONDS = "CIUIC_GRACE_SECONDS"


class RankEnvError(ValueError):
    """The process was not started by the agent, or by one of another version."""


@dataclass(frozen=True, kw_only=True)
class RankEnv:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    """The slot."""
    master_addr: str
    master_port: int
    attempt: int
    progress_file: Path
    messages_socket: Path
    memory_tier_dir: Path
    """Of this rank alone: `MemoryTier(env.memory_tier_dir, env.rank, env.world_size)`."""
    training_file: Path | None = None
    """JSON of `spec.training` with its defaults; None for a script of the researcher's own."""
    restore: CheckpointId | None = None
    """Already verified and in the memory tier when the rank starts. None: start at step 0."""
    checkpoint_every_steps: int = 0
    """Cadence of copies that the agent uploads (`persist=True`); 0: none are made."""
    memory_every_steps: int = 0
    """Cadence of copies that stay in the memory tier; 0: only the ones that are uploaded."""
    accelerator: str = "cpu"
    """Row of ciuic_api.accelerators.VENDORS."""
    contract: str = ""
    job: str = ""
    """`<namespace>/<name>`"""
    grace_seconds: int = 30
    """After SIGTERM the rank has this long to write a last checkpoint and leave with protocol.STOPPED_EXIT_CODE."""

    def to_environ(self) -> dict[str, str]:
        env = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "GROUP_RANK": str(self.node_rank),
            "GROUP_WORLD_SIZE": str(self.world_size // self.local_world_size),
            "NODE_RANK": str(self.node_rank),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.world_size),
            "ROLE_NAME": "default",
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "TORCHELASTIC_RUN_ID": self.job or "none",
            "TORCHELASTIC_RESTART_COUNT": str(max(0, self.attempt - 1)),
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            ATTEMPT: str(self.attempt),
            PROGRESS_FILE: str(self.progress_file),
            MESSAGES_SOCKET: str(self.messages_socket),
            MEMORY_TIER_DIR: str(self.memory_tier_dir),
            CHECKPOINT_EVERY_STEPS: str(self.checkpoint_every_steps),
            MEMORY_EVERY_STEPS: str(self.memory_every_steps),
            ACCELERATOR: self.accelerator,
            CONTRACT: self.contract,
            JOB: self.job,
            GRACE_SECONDS: str(self.grace_seconds),
        }
        if self.training_file is not None:
            env[TRAINING_FILE] = str(self.training_file)
        if self.restore is not None:
            env[RESTORE] = str(self.restore)
        return env

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "RankEnv":
        def text(name: str) -> str:
            try:
                return environ[name]
            except KeyError:
                raise RankEnvError(f"{name} is not set: ranks are started by the agent, not by hand") from None

        def number(name: str) -> int:
            try:
                return int(text(name))
            except ValueError:
                raise RankEnvError(f"{name}={environ[name]!r} is not a whole number") from None

        return cls(
            rank=number("RANK"),
            world_size=number("WORLD_SIZE"),
            local_rank=number("LOCAL_RANK"),
            local_world_size=number("LOCAL_WORLD_SIZE"),
            node_rank=number("NODE_RANK"),
            master_addr=text("MASTER_ADDR"),
            master_port=number("MASTER_PORT"),
            attempt=number(ATTEMPT),
            progress_file=Path(text(PROGRESS_FILE)),
            messages_socket=Path(text(MESSAGES_SOCKET)),
            memory_tier_dir=Path(text(MEMORY_TIER_DIR)),
            training_file=Path(environ[TRAINING_FILE]) if TRAINING_FILE in environ else None,
            restore=parse_checkpoint(environ[RESTORE]) if RESTORE in environ else None,
            checkpoint_every_steps=number(CHECKPOINT_EVERY_STEPS),
            memory_every_steps=number(MEMORY_EVERY_STEPS),
            accelerator=text(ACCELERATOR),
            contract=text(CONTRACT),
            job=text(JOB),
            grace_seconds=number(GRACE_SECONDS),
        )


def parse_checkpoint(text: str) -> CheckpointId:
    """The inverse of `str(CheckpointId)`: `120.a3`."""
    step, separator, attempt = text.partition(".a")
    if not separator or not step.isdecimal() or not attempt.isdecimal():
        raise RankEnvError(f"{text!r} does not name a checkpoint: expected <step>.a<attempt>")
    return CheckpointId(int(step), int(attempt))
