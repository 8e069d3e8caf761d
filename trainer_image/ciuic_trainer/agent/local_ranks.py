"""The ranks of this pod in one attempt: how they are started and what is seen of them. Used by `runtime`."""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import asdict

from ciuic_api.protocol import AgentFailure, Directive, Metrics, PhaseTime, RankState
from ciuic_trainer.shared.progress import Progress, ProgressReader

from . import forking, out_of_memory
from .evidence import Subject
from .forking import ForkServer
from .launch import Launch
from .phase_times import PhaseTimes
from .processes import Ranks
from .reporting import Pace, rank_failure, rank_states


class LocalRanks:
    def __init__(self, launch: Launch, say: Callable[[str], None], told: Callable[[], None]) -> None:
        """`told` is called, on the loop, when the fork server has said something."""
        self._launch = launch
        self._say = say
        self._told = told
        self._attempt = 0
        self._fork_server: ForkServer | None = None
        self._readers: dict[int, ProgressReader] = {}
        self._pace = Pace(0)
        self._phase_times = PhaseTimes()
        self._memory = out_of_memory.Memory()
        """As it was when the ranks were started."""
        self.processes = Ranks()

    def begin(self) -> None:
        """Room for another attempt; the processes of the one before have ended."""
        self.processes = Ranks(fork_server=self._fork_server)
        self._readers = {}
        self.prefork()

    def prefork(self) -> None:
        """A process to fork ranks from, unless there is one or none is worth it. One that failed early is not tried again."""
        server = self._fork_server
        if server is not None and (server.state is not forking.State.ENDED or not server.was_ready):
            return
        modules = self._launch.preloaded()
        if not modules:
            return
        loop = asyncio.get_running_loop()
        server = ForkServer(modules, self._say, forget=loop.remove_reader)
        self._fork_server = self.processes.fork_server = server
        channel = server.start(self._launch.environ(), time.monotonic())
        loop.add_reader(channel, self._hear_fork_server, server)

    def _hear_fork_server(self, server: ForkServer) -> None:
        server.read()
        self._told()

    def is_importing(self, now: float) -> bool:
        return self._fork_server is not None and self._fork_server.is_importing(now)

    def start(self, directive: Directive, output_ended: Callable[[], None]) -> int:
        """How many were started. Raises OSError, before the first of them lives, when their files can not be written."""
        starts = self._launch.ranks(directive)
        self._attempt = directive.attempt
        self._phase_times = PhaseTimes()
        self._memory = out_of_memory.look()
        self._pace = Pace(directive.restore.checkpoint.step if directive.restore else 0)
        for rank in starts:
            self._readers[rank.number] = ProgressReader(rank.progress_file)
            self.processes.start(rank.number, rank.command, rank.environ, output_ended)
        return len(starts)

    # --- what is seen of them -------------------------------------------------------------------------------------

    def look(self) -> None:
        self._phase_times.look({number: reader.read() for number, reader in self._readers.items()})

    def states(self, now: float) -> tuple[RankState, ...]:
        return rank_states(self.processes.members, self._readers, now)

    def exit_codes(self) -> tuple[int | None, ...]:
        return tuple(rank.exit_code for rank in self.processes.members.values())

    def phase_times(self) -> tuple[PhaseTime, ...]:
        return self._phase_times.told()

    def metrics(self, now: float) -> Metrics | None:
        """Of rank 0, where it is here."""
        first = self._readers.get(0)
        return self._pace.metrics(first.read(), now) if first is not None else None

    def failure(self, now: float) -> AgentFailure | None:
        killed = ""
        if -signal.SIGKILL in self.exit_codes():
            killed = out_of_memory.sentence(self._memory, out_of_memory.look())
        return rank_failure(list(self.processes.members.values()), now, killed)

    def subjects(self) -> list[Subject]:
        """As evidence needs them."""
        return [
            Subject(
                rank=rank.rank,
                pid=rank.running_pid,
                exit_code=rank.exit_code,
                stacks_file=self._launch.stacks_file(self._attempt, rank.rank),
                progress=asdict(seen) if (seen := self._seen(rank.rank)) else {},
                lines=tuple(rank.lines),
            )
            for rank in self.processes.members.values()
        ]

    def _seen(self, rank: int) -> Progress | None:
        return self._readers[rank].read()
