"""Real ranks for tests: processes forked from a server that has torch and DeepSpeed loaded, started as the agent would.

No torch here: the process that runs the tests stays light.
"""

import json
import multiprocessing.context
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from ciuic_api.lineage import CheckpointId
from ciuic_api.training import Training
from ciuic_trainer.shared import progress
from ciuic_trainer.shared.memory_tier import Held, MemoryTier
from ciuic_trainer.shared.progress import ProgressReader
from ciuic_trainer.shared.rank_env import RankEnv
from ciuic_trainer.train.log import JSON_LOG_DIR

PATIENCE_SECONDS = 180.0
PAUSE_SECONDS = 0.01
Patch = Callable[[], None]


def fork_server() -> ForkServerContext:
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.environ |= {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ciuic_trainer.train.preload"])
    return context


def call(context: ForkServerContext, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns in a process that has torch."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, function, arguments))
    process.start()
    theirs.close()
    value, error = ours.recv()
    process.join()
    assert error is None, error
    return value


def _answer(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((function(*arguments), None))
    except BaseException:
        connection.send((None, traceback.format_exc()))
        raise


@dataclass
class Attempt:
    envs: list[RankEnv]
    processes: list[ForkServerProcess]
    folder: Path

    def wait(self) -> tuple[int | None, ...]:
        """The exit codes, once all ranks have ended."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode is not None, f"a rank did not end\n{self.outputs()}"
        return tuple(process.exitcode for process in self.processes)

    def reach(self, step: int) -> None:
        """Until every rank has completed `step`."""
        readers = [ProgressReader(env.progress_file) for env in self.envs]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not all(found is not None and found.step >= step for found in (reader.read() for reader in readers)):
            assert all(process.is_alive() for process in self.processes), f"a rank ended early\n{self.outputs()}"
            assert time.monotonic() < deadline, f"step {step} was not reached\n{self.outputs()}"
            time.sleep(PAUSE_SECONDS)

    def send(self, rank: int, number: signal.Signals) -> None:
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, number)

    def output(self, rank: int) -> str:
        return (self.folder / f"output-{rank}").read_text()

    def outputs(self) -> str:
        return "\n".join(f"--- rank {env.rank}\n{self.output(env.rank)[-3000:]}" for env in self.envs)

    def records(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        lines = (self.folder / f"rank-{rank:05d}.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def losses(self, rank: int = 0) -> dict[int, float]:
        return {record["step"]: record["loss"] for record in self.records("step", rank)}

    def evaluations(self) -> dict[int, float]:
        return {record["step"]: record["loss"] for record in self.records("eval")}


@dataclass
class Job:
    context: ForkServerContext
    folder: Path
    training: Training
    world_size: int = 2
    checkpoint_every: int = 0
    memory_every: int = 0
    patch: Patch | None = None
    """Of attempts that are not given one of their own."""
    started: list[Attempt] = field(default_factory=list)

    def start(
        self, number: int, restore: CheckpointId | None = None, patch: Patch | None = None, **env: Any
    ) -> Attempt:
        folder = self.folder / f"attempt-{number}"
        folder.mkdir(parents=True)
        configuration = folder / "training.json"
        configuration.write_text(json.dumps(self.training.to_json()))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        envs, processes = [], []
        for rank in range(self.world_size):
            record = folder / f"progress-{rank}"
            progress.create(record)
            fields: dict[str, Any] = {
                "rank": rank,
                "world_size": self.world_size,
                "local_rank": rank,
                "local_world_size": self.world_size,
                "node_rank": 0,
                "master_addr": "127.0.0.1",
                "master_port": port,
                "attempt": number,
                "progress_file": record,
                "messages_socket": folder / "messages",
                "memory_tier_dir": self.tier_folder(rank),
                "training_file": configuration,
                "restore": restore,
                "checkpoint_every_steps": self.checkpoint_every,
                "memory_every_steps": self.memory_every,
            }
            envs.append(RankEnv(**fields | env))
            environ = envs[-1].to_environ() | {JSON_LOG_DIR: str(folder), "OMP_NUM_THREADS": "1"}
            arguments = (environ, folder / f"output-{rank}", patch or self.patch)
            processes.append(self.context.Process(target=run_rank, args=arguments))
            processes[-1].start()
        self.started.append(Attempt(envs, processes, folder))
        return self.started[-1]

    def tier_folder(self, rank: int) -> Path:
        return self.folder / "memory" / f"rank-{rank}"

    def tier(self, rank: int) -> MemoryTier:
        return MemoryTier(self.tier_folder(rank), rank, self.world_size)

    def held(self, rank: int) -> list[Held]:
        return self.tier(rank).held()

    def newest(self) -> CheckpointId:
        """The newest checkpoint that every rank holds, as the planner would choose it."""
        everywhere = [{held.checkpoint for held in self.held(rank)} for rank in range(self.world_size)]
        return max(set.intersection(*everywhere))

    def stop(self) -> None:
        for attempt in self.started:
            for process in attempt.processes:
                if process.is_alive():
                    process.kill()
                process.join()


@contextmanager
def job(context: ForkServerContext, folder: Path, training: Mapping[str, Any], **options: Any) -> Iterator[Job]:
    running = Job(context, folder, Training.model_validate(training), **options)
    try:
        yield running
    finally:
        running.stop()


def run_rank(environ: dict[str, str], output: Path, patch: Patch | None) -> None:
    """In the forked process: become this rank."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ |= environ
    if patch is not None:
        patch()
    from ciuic_trainer.train.__main__ import main

    sys.exit(main([], os.environ))
