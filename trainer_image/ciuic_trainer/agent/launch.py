"""What the ranks of an attempt are started with: command, environment, files. Used by `runtime`."""

import json
import os
import random
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ciuic_api.accelerators import VENDORS
from ciuic_api.agent_config import ENV as CONFIG_ENV
from ciuic_api.agent_config import AgentConfig
from ciuic_api.protocol import Directive
from ciuic_trainer.shared import progress, stacks
from ciuic_trainer.shared.memory_tier import MemoryTier
from ciuic_trainer.shared.rank_env import RankEnv

from .forking import modules_for

SECRET_PREFIXES = ("AWS_",)
PORTS = range(20000, 30000)
"""Below what Linux gives to outgoing connections (32768) and to NodePorts (30000)."""
TRIED_PORTS = 100


@dataclass(frozen=True)
class RankStart:
    number: int
    command: tuple[str, ...]
    environ: Mapping[str, str]
    progress_file: Path


class Launch:
    def __init__(self, config: AgentConfig, environ: Mapping[str, str], memory: Path, scratch: Path) -> None:
        self._config = config
        self._environ = environ
        self._memory = memory
        self._scratch = scratch
        self.socket_path = scratch / "messages.sock"
        scratch.mkdir(parents=True, exist_ok=True)

    @property
    def world_size(self) -> int:
        return self._config.nodes * self._config.ranks_per_node

    def tiers(self, slot: int) -> dict[int, MemoryTier]:
        """The memory tier of each rank of the slot."""
        first = slot * self._config.ranks_per_node
        numbers = range(first, first + self._config.ranks_per_node)
        return {number: MemoryTier(self._memory / f"rank-{number:05d}", number, self.world_size) for number in numbers}

    def rendezvous(self) -> str:
        """Address of this pod and a port that is free now, should it be slot 0.

        Not one that the system may give to an outgoing connection before rank 0 listens.
        """
        address = self._environ.get("CIUIC_POD_IP") or "127.0.0.1"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        for port in random.sample(PORTS, TRIED_PORTS):
            with socket.socket(family) as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
                return f"{address}:{port}"
        raise OSError(f"of {TRIED_PORTS} ports between {PORTS[0]} and {PORTS[-1]} none is free")

    def ranks(self, directive: Directive) -> list[RankStart]:
        """Writes the files that ranks read, and says how to start them."""
        folder = self._folder(directive.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        training = None
        if self._config.training is not None:
            training = folder / "training.json"
            training.write_text(json.dumps(self._config.training))
        address, _, port = directive.rendezvous.rpartition(":")
        base = self.environ()
        starts = []
        for local in range(self._config.ranks_per_node):
            number = directive.slot * self._config.ranks_per_node + local
            record = folder / f"progress-{number:05d}"
            progress.create(record)
            rank = RankEnv(
                rank=number,
                world_size=self.world_size,
                local_rank=local,
                local_world_size=self._config.ranks_per_node,
                node_rank=directive.slot,
                master_addr=address,
                master_port=int(port),
                attempt=directive.attempt,
                progress_file=record,
                messages_socket=self.socket_path,
                memory_tier_dir=self._memory / f"rank-{number:05d}",
                training_file=training,
                restore=directive.restore.checkpoint if directive.restore else None,
                checkpoint_every_steps=self._config.checkpoint_every_steps,
                memory_every_steps=self._config.memory_every_steps,
                accelerator=self._config.accelerator,
                contract=self._config.contract,
                job=f"{self._config.namespace}/{self._config.job}",
                grace_seconds=self._config.grace_seconds,
            )
            environ = base | rank.to_environ() | {stacks.ENV: str(self.stacks_file(directive.attempt, number))}
            starts.append(RankStart(number, self._command(), environ, record))
        return starts

    def stacks_file(self, attempt: int, rank: int) -> Path:
        """What the rank answers into when it is asked where it stands."""
        return self._folder(attempt) / f"stacks-{rank:05d}"

    def _folder(self, attempt: int) -> Path:
        return self._scratch / f"attempt-{attempt}"

    def _command(self) -> tuple[str, ...]:
        return self._config.command or (sys.executable, "-u", "-m", "ciuic_trainer.train")

    def preloaded(self) -> tuple[str, ...]:
        """What a fork server would import; empty: ranks are started by exec."""
        if not self._config.prefork:
            return ()
        return modules_for(self._config.command, self._environ.get("PATH", os.defpath))

    def environ(self) -> dict[str, str]:
        """The container's environment without what is the agent's own; what the user has set there wins."""
        base = {
            name: value
            for name, value in self._environ.items()
            if name != CONFIG_ENV and not name.startswith(SECRET_PREFIXES)
        }
        vendor = VENDORS[self._config.accelerator]
        if self._config.interface is not None:
            for name, prefix in vendor.interface_env:
                base.setdefault(name, f"{prefix}{self._config.interface}")
        cores = len(os.sched_getaffinity(0))
        base.setdefault("OMP_NUM_THREADS", str(max(1, cores // self._config.ranks_per_node)))
        base.setdefault("DS_ACCELERATOR", vendor.device)
        base.setdefault("PYTHONUNBUFFERED", "1")
        base.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking whether there is a GPU opens no context on it
        return base
