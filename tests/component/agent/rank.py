"""What ranks do in the agent's component tests: `rank.py MODE [ARGUMENTS]`. Started by the agent, never imported."""

import json
import os
import random
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

TICK_SECONDS = 0.02


def forever() -> None:
    while True:
        signal.pause()


def stopped(_number: int, _frame: object) -> None:
    print("stopped as asked", flush=True)
    os._exit(75)


def sleep() -> None:
    """Well-behaved: ends with 75 on TERM, and says how often it was asked in the file that is named."""
    signal.signal(signal.SIGTERM, stopped)
    print("sleeps", flush=True)
    forever()


def crash(code: str, *lines: str) -> None:
    for line in lines:
        print(line, flush=True)
    sys.exit(int(code))


def crash_on(trigger: str, *lines: str) -> None:
    """When the file appears."""
    while not Path(trigger).exists():
        time.sleep(TICK_SECONDS)
    crash("1", *lines)


def hang(terms: str = "") -> None:
    """Notes each TERM in the file and goes on."""

    def note(_number: int, _frame: object) -> None:
        if terms:
            with Path(terms).open("a") as file:
                file.write("TERM\n")

    signal.signal(signal.SIGTERM, note)
    print("hangs", flush=True)
    while True:
        time.sleep(10)


def stand_still(how: str, path: str = "") -> None:
    """Ways of not moving, each at a place of its own."""
    print("stands still", flush=True)
    if how == "loop":
        in_a_loop()
    elif how == "native":
        holding_the_interpreter()
    elif how == "lock":
        at_a_lock()
    elif how == "input":
        at_a_pipe(path)


def in_a_loop() -> None:
    while True:
        pass


def holding_the_interpreter() -> None:
    """One call into C that never lets another thread run."""
    re.match(r"(a+)+$", "a" * 40 + "b")


def at_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def at_a_pipe(path: str) -> None:
    with Path(path).open() as pipe:
        pipe.read()


def orphan(port: str) -> None:
    """Leaves a grandchild in another session, without a living parent, that holds a port and does not mind TERM."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            server = socket.create_server(("127.0.0.1", int(port)))
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            while server.fileno() >= 0:
                time.sleep(10)
        os._exit(0)
    os.wait()
    sleep()


def environment(path: str) -> None:
    """Writes down what the rank can see of its environment. What is imported here, the fork server imports for all modes."""
    import numpy

    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    seen = {
        "environ": dict(os.environ),
        "thp": status.get("THP_enabled", "").strip(),
        "name": status["Name"].strip(),
        "argv": sys.argv,
        "drawn": [random.random(), float(numpy.random.random())],
    }
    draft = Path(path).with_suffix(".new")
    draft.write_text(json.dumps(seen))
    draft.rename(path)
    sleep()


def train(control: str, size_bytes: str = "65536") -> None:
    """Completes steps up to the number in the file `control`, with copies into the memory tier as its environment says.

    The state is a byte string that depends on rank, step and attempt, as if each attempt's gradients were perturbed: a
    restored one must be all of the checkpoint that was asked for.
    """
    from ciuic_api.lineage import CheckpointId
    from ciuic_trainer.shared.memory_tier import MemoryTier
    from ciuic_trainer.shared.messages import CheckpointWritten, Sender
    from ciuic_trainer.shared.progress import Phase, ProgressWriter
    from ciuic_trainer.shared.rank_env import RankEnv

    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    env = RankEnv.from_environ(os.environ)
    progress = ProgressWriter(env.progress_file, env.attempt)
    sender = Sender(env.messages_socket)
    tier = MemoryTier(env.memory_tier_dir, env.rank, env.world_size)
    size = int(size_bytes)
    tier.prepare(size)

    def state(checkpoint: CheckpointId) -> bytes:
        return (f"rank {env.rank} step {checkpoint.step} attempt {checkpoint.attempt};".encode() * (size // 8))[:size]

    def save(step: int, persist: bool) -> None:
        checkpoint = CheckpointId(step, env.attempt)
        if not tier.write(checkpoint, persist=persist, chunks=[memoryview(state(checkpoint))], size_bytes=size):
            print(f"step {step}: no free buffer", flush=True)
        sender.send(CheckpointWritten(env.rank, checkpoint, persist))

    step = 0
    if env.restore is not None:
        progress.enter(Phase.RESTORE)
        pinned, payload = tier.open_verified(env.restore)
        step = env.restore.step
        if bytes(payload) != state(env.restore):
            print("RestoreError: not the state that was saved", flush=True)
            sys.exit(1)
        payload.release()
        pinned.close()
        progress.restored(step)
    print(f"rank {env.rank} starts at step {step} of attempt {env.attempt}", flush=True)
    progress.enter(Phase.STEP)
    while True:
        until = int(Path(control).read_text()) if Path(control).exists() else 0
        if asked:
            save(step, persist=env.checkpoint_every_steps > 0)
            print(f"stopped after step {step}", flush=True)
            sys.exit(75)
        if step >= until:
            time.sleep(TICK_SECONDS)
            continue
        step += 1
        progress.step(step, loss=3.0 / step, tokens_per_second=100.0)
        persist = env.checkpoint_every_steps > 0 and step % env.checkpoint_every_steps == 0
        if persist or (env.memory_every_steps and step % env.memory_every_steps == 0):
            save(step, persist)


MODES: dict[str, Callable[..., None]] = {
    "sleep": sleep,
    "crash": crash,
    "crash-on": crash_on,
    "hang": hang,
    "stand-still": stand_still,
    "orphan": orphan,
    "environment": environment,
    "train": train,
}

if __name__ == "__main__":
    MODES[sys.argv[1]](*sys.argv[2:])
