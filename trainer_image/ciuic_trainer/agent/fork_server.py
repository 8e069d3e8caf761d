"""The program that ranks are forked from: it has imported what they import, once. Started by `forking`, never by hand.

    python -m ciuic_trainer.agent.fork_server CHANNEL MODULE...

CHANNEL is the number of a SOCK_SEQPACKET socket: it carries one `Fork` with two descriptors, then one `Forked`. One
descriptor takes the rank's output. The other gives it leave to begin: an agent that has given up waiting starts
another process in its place. The modules are imported before anything is said; one that can not be is left to the ranks.

A forked process keeps what the parent has: one thread at most, no accelerator context. Both are looked up before each
fork, and what can not be forked is refused, for the agent to start it by exec.
"""

import atexit
import gc
import importlib
import os
import random
import runpy
import socket
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import NoReturn

import msgspec

from ciuic_trainer.shared import stacks

MAX_MESSAGE_BYTES = 1 << 20
OWN_FRAMES = (__file__, runpy.__file__, "<frozen runpy>", "<frozen importlib._bootstrap>")


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """What the process is called in `ps` and `top`, 15 bytes at most."""
    module: str = ""
    """Run as `python -m` does; empty for a script."""
    script: str = ""
    arguments: tuple[str, ...] = ()
    environ: dict[str, str]
    """The whole environment."""
    threads: int
    """For the rank's arithmetic: the import was made with one."""


class Forked(msgspec.Struct, frozen=True, kw_only=True):
    """Also said once without anything, when the modules are imported."""

    pid: int = 0
    refused: str = ""
    """Why it was not forked."""


def main(arguments: Sequence[str]) -> NoReturn:
    channel = socket.socket(fileno=int(arguments[0]))
    _name("fork-server")
    for name in arguments[1:]:
        _import_if_possible(name)
    channel.send(msgspec.json.encode(Forked()))
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)  # the agent has ended; letting go of what is frozen would take longer and say more
        fork = msgspec.json.decode(message, type=Fork)
        answer = Forked(refused=_obstacle())
        if not answer.refused:
            gc.freeze()  # what is there now is never collected: the pages stay shared with the ranks
            pid = _forked_twice(fork.name)
            if pid == 0:
                channel.close()
                _become(fork, *descriptors)
            answer = Forked(pid=pid)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(msgspec.json.encode(answer))


def _import_if_possible(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever it is, the rank's own import says it better
        print(f"fork server: {name} is not imported ahead: {error!r}", file=sys.stderr, flush=True)


def _obstacle() -> str:
    tasks = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names alone
    if tasks != 1:
        return f"the fork server has {tasks} threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "the fork server has an accelerator context"
    return ""


def _forked_twice(name: str) -> int:
    """The process id of a grandchild, whose parent has ended: it is the agent's child, who reaps it. 0 in itself.

    It has its name before anybody is told of it.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            text = stream.read()
        os.waitpid(child, 0)
        return int(text)
    os.close(reader)
    if os.fork():
        os._exit(0)
    _name(name)
    os.write(writer, str(os.getpid()).encode())
    os.close(writer)
    return 0


def _become(fork: Fork, output: int, leave: int) -> NoReturn:
    """The rank: a process as exec would have made it, but with its modules."""
    if not os.read(leave, 1):
        os._exit(0)
    os.close(leave)
    os.setsid()
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is what is wanted
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(fork.environ)
    _draw_anew()
    # At its end what was frozen is let go as after exec: bindings complain of what is not, on dozens of lines.
    atexit.register(gc.unfreeze)
    stacks.answer(fork.environ)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(fork.threads)
    sys.argv = [fork.script or fork.module, *fork.arguments]
    if fork.script:
        sys.path[0] = os.path.dirname(os.path.abspath(fork.script))  # noqa: PTH100, PTH120 - as python does it
    try:
        if fork.module:
            runpy.run_module(fork.module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(fork.script, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - said as python says it
        traceback.print_exception(type(error), error, _below_ours(error.__traceback__))
        sys.exit(1)
    sys.exit(0)


def _name(name: str) -> None:
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123
        comm.write(name[:15])


def _draw_anew() -> None:
    """Ranks must not draw the same numbers because they have one parent. torch starts from one seed with exec too."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _below_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in OWN_FRAMES:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main(sys.argv[1:])
