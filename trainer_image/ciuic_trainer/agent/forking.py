"""The agent's side of the fork server: start it, know how it is, have a rank forked. Used by `processes` and `runtime`.

A process that has imported torch, DeepSpeed and transformers once saves each later rank those seconds. It is never
needed: what it can not do, or is not there to do, is done by exec.
"""

import ast
import enum
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .fork_server import MAX_MESSAGE_BYTES, Fork, Forked

IMPORT_SECONDS = 300.0
"""What takes longer has got stuck, and is given up: ranks that are started by exec get stuck under the watchdog's eyes."""
ANSWER_SECONDS = 5.0
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
"""Of these libraries some start their threads when they are imported, and a process with threads can not be forked."""
TRAINER_MODULES = ("ciuic_trainer.train.preload",)
HEAVY_MODULES = ("torch", "deepspeed", "transformers", "accelerate", "numpy")
"""Of what a researcher's script imports, these are worth it, and known to start no thread and open no device."""


class State(enum.StrEnum):
    OFF = "off"
    IMPORTING = "importing"
    READY = "ready"
    ENDED = "ended"


class CannotFork(Exception):
    """Says why; the rank is to be started by exec."""


@dataclass(frozen=True)
class Program:
    """What a Python runs: a module or a script."""

    module: str
    script: str
    arguments: tuple[str, ...]


def program(command: Sequence[str], path: str) -> Program | None:
    """Of a command that this very Python would run; None for any other."""
    found = shutil.which(command[0], path=path)
    ours = Path(sys.executable)
    if found is None or Path(found).parent.absolute() != ours.parent.absolute() or not ours.samefile(found):
        return None
    rest = list(command[1:])
    while rest and rest[0] == "-u":
        rest.pop(0)
    if len(rest) > 1 and rest[0] == "-m":
        return Program(rest[1], "", tuple(rest[2:]))
    if rest and not rest[0].startswith("-") and Path(rest[0]).is_file():
        return Program("", rest[0], tuple(rest[1:]))
    return None


def heavy_imports(text: str) -> tuple[str, ...]:
    """The heavy modules that a script imports by name, wherever in it. None for what is no Python: its rank will say so."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return tuple(name for name in HEAVY_MODULES if name in names)


def modules_for(command: Sequence[str], path: str) -> tuple[str, ...]:
    """What the fork server imports for a job's command; empty: no fork server is worth it."""
    if not command:
        return TRAINER_MODULES
    target = program(command, path)
    if target is None or not target.script:
        return ()
    try:
        return heavy_imports(Path(target.script).read_text(errors="replace"))
    except OSError:
        return ()


class ForkServer:
    """One process. An ended one is not started again: make another."""

    def __init__(
        self, modules: Sequence[str], say: Callable[[str], None], forget: Callable[[socket.socket], object]
    ) -> None:
        """`forget` is called with the socket that `start` returned, before it is closed."""
        self._modules = modules
        self._say = say
        self._forget = forget
        self._deadline = 0.0
        self._channel: socket.socket | None = None
        self.pid: int | None = None
        self.was_ready = False
        self.state = State.OFF

    def start(self, environ: Mapping[str, str], now: float) -> socket.socket:
        """Start importing. The socket is to be watched: `read` it when it has something."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "ciuic_trainer.agent.fork_server", str(theirs.fileno())]
            process = subprocess.Popen(
                [*command, *self._modules],
                env={**environ, **ONE_THREAD},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        process.returncode = 0  # reaped where all children are
        self.pid, self._channel, self.state = process.pid, ours, State.IMPORTING
        self._deadline = now + IMPORT_SECONDS
        return ours

    def is_importing(self, now: float) -> bool:
        """Ranks wait for it: they would import the same."""
        if self.state is State.IMPORTING and now > self._deadline:
            self._end(f"its imports take longer than {IMPORT_SECONDS:.0f} s")
        return self.state is State.IMPORTING

    def read(self) -> None:
        """What it says unasked: that it is ready; or that it has ended."""
        if self._channel is None:
            return
        try:
            message = self._channel.recv(MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(str(error))
            return
        if message:
            self.state, self.was_ready = State.READY, True
        else:
            self._end("its process ended")

    def fork(self, name: str, command: Sequence[str], environ: Mapping[str, str], output: int) -> int:
        """The process id of a rank, a child of the agent. `output` is the descriptor for what it writes."""
        target = program(command, environ.get("PATH", os.defpath))
        if target is None:
            raise CannotFork(f"{command[0]} runs another program than this Python")
        if self.state is not State.READY or self._channel is None:
            raise CannotFork(f"the fork server is {self.state}")
        threads = environ.get("OMP_NUM_THREADS", "1").split(",")[0]
        fork = Fork(
            name=name,
            module=target.module,
            script=target.script,
            arguments=target.arguments,
            environ=dict(environ),
            threads=int(threads) if threads.isdecimal() and int(threads) else 1,
        )
        leave, leave_giver = os.pipe()
        try:
            self._channel.settimeout(ANSWER_SECONDS)
            socket.send_fds(self._channel, [msgspec.json.encode(fork)], [output, leave])
            answer = self._channel.recv(MAX_MESSAGE_BYTES)
            if answer:
                forked = msgspec.json.decode(answer, type=Forked)
                if forked.refused:
                    raise CannotFork(forked.refused)
                os.write(leave_giver, b".")
                return forked.pid
            self._end("its process ended")
        except OSError as error:  # a timeout is one
            self._end(f"no answer: {error}")
        finally:
            os.close(leave)
            os.close(leave_giver)
        raise CannotFork("the fork server did not answer")

    def reaped(self) -> None:
        """Its process is gone, and its number may be another's."""
        if self.state is not State.ENDED:
            self._end("its process ended")
        self.pid = None

    def _end(self, why: str) -> None:
        """Whatever it is doing, nobody asks it any more: a late fork would be a second rank."""
        self._say(f"the fork server is given up ({why}): ranks are started by exec")
        self.state = State.ENDED
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        if self._channel is not None:
            self._forget(self._channel)
            self._channel.close()
            self._channel = None
