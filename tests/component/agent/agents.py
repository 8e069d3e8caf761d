"""The agent of a rank pod as a real process, with a memory tier that outlives it."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ciuic_api import agent_config
from ciuic_api.agent_config import AgentConfig
from ciuic_api.lineage import Attempt, CheckpointId
from ciuic_api.protocol import Directive, Restore
from ciuic_trainer.agent.processes import descendants
from ciuic_trainer.shared.memory_tier import Held, MemoryTier

RANK_SCRIPT = Path(__file__).with_name("rank.py")
JOB_UID = "11111111-2222-3333-4444-555555555555"


def rank_command(*arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-u", str(RANK_SCRIPT), *(str(argument) for argument in arguments))


@dataclass
class AgentProcess:
    """One pod: folder, configuration, and one life after another of its agent."""

    config: AgentConfig
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def incarnation(self) -> int:
        return self.config.incarnation

    @property
    def memory(self) -> Path:
        return self.folder / "memory"

    @property
    def scratch(self) -> Path:
        assert self._scratch is not None
        return Path(self._scratch.name)

    @property
    def log(self) -> str:
        path = self.folder / "agent.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Of its own and short: a Unix socket's path has room for 107 characters.
        self._scratch = tempfile.TemporaryDirectory(prefix="agent-")
        token = self.folder / "token"
        token.write_text(f"token-{self.incarnation}\n")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", "") or os.pathsep.join(sys.path),
            "HOME": str(self.folder),
            "AWS_EC2_METADATA_DISABLED": "true",
            agent_config.ENV: agent_config.encode(self.config),
            "CIUIC_MEMORY_PATH": str(self.memory),
            "CIUIC_SCRATCH_PATH": self._scratch.name,
            "CIUIC_TOKEN_PATH": str(token),
            "CIUIC_POD_IP": "127.0.0.1",
            **self.environment,
        }
        with (self.folder / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ciuic_trainer.agent"],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def children(self) -> list[int]:
        return descendants(self.process.pid) if self.process is not None and self.process.poll() is None else []

    def ranks(self) -> list[int]:
        """All that lives below the agent but its fork server."""
        return [pid for pid in self.children() if name_of(pid) != "fork-server"]

    def fork_server(self) -> int:
        (pid,) = set(self.children()) - set(self.ranks())
        return pid

    def pause(self) -> None:
        """The agent alone stops, as by SIGSTOP; its ranks go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def unpause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """As when the container is out of memory: agent and ranks are gone at once, the memory tier stays."""
        if self.process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)  # it must not see its ranks die first
        for pid in self.children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.process = None
        if self._scratch is not None:
            self._scratch.cleanup()

    def tier(self, rank: int) -> MemoryTier:
        world_size = self.config.nodes * self.config.ranks_per_node
        return MemoryTier(self.memory / f"rank-{rank:05d}", rank, world_size)

    def in_memory(self, rank: int) -> list[CheckpointId]:
        return [held.checkpoint for held in self.held(rank)]

    def held(self, rank: int) -> list[Held]:
        return self.tier(rank).held()


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def attempt_link(number: int, parent: int | None = None, restored: CheckpointId | None = None) -> Attempt:
    return Attempt(attempt=number, parent=parent, restored=restored)


def quiet(attempt: int, slot: int = 0, **fields: Any) -> Directive:
    """End what runs, get ready."""
    return Directive(attempt=attempt, run=False, slot=slot, **({"claim": slot == 0} | fields))


def go(
    attempt: int,
    rendezvous: str | None,
    slot: int = 0,
    restore: CheckpointId | None = None,
    tier: str = "memory",
    lineage: tuple[Attempt, ...] | None = None,
    **fields: Any,
) -> Directive:
    """Start the ranks of an attempt."""
    assert rendezvous is not None
    base: dict[str, Any] = {
        "attempt": attempt,
        "run": True,
        "slot": slot,
        "rendezvous": rendezvous,
        "restore": Restore(checkpoint=restore, tier=tier) if restore is not None else None,  # type: ignore[arg-type]
        "lineage": lineage if lineage is not None else (attempt_link(attempt, restored=restore),),
        "claim": slot == 0,
    }
    return Directive(**(base | fields))
