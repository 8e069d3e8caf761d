"""A rank says where it is: on a signal the interpreter writes the stacks of all its threads into a file.

Set up in the rank before anything of its own runs; read by the agent when nothing moves. The handler is C and needs no
interpreter lock, so a rank answers also from within a native loop. A process that was started by exec inherits no
handler, and the signal would end it: `answers` tells them apart.
"""

import faulthandler
import os
import signal
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

ENV = "CIUIC_STACKS_FILE"
SIGNAL = int(signal.SIGRTMAX) - 4
"""Not one that scripts use themselves, as SIGUSR1 and SIGUSR2 are by some schedulers and libraries."""
PATH_PARTS = 3


def answer(environ: Mapping[str, str]) -> None:
    """From now on this process, and what it forks, answers; not where nobody has named a file to answer into."""
    if ENV not in environ:
        return
    descriptor = os.open(environ[ENV], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(SIGNAL, file=descriptor, all_threads=True, chain=False)


def answers(pid: int) -> bool:
    """Whether the process has a handler for the signal. False when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in text.splitlines() if line.startswith("SigCgt:")), 0)
    return bool(caught >> (SIGNAL - 1) & 1)


def main_thread(dump: str) -> tuple[str, ...]:
    """`file:line function` of each frame, innermost first, of the thread that is written last: the main one."""
    frames: list[str] = []
    for line in dump.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            frames = []
        elif line.startswith('  File "'):
            path, _, rest = line.removeprefix('  File "').partition('", line ')
            number, _, function = rest.partition(" in ")
            parts = PurePosixPath(path).parts[-PATH_PARTS:]
            # `distributed/nn/functional.py` says more than the path of the environment before it
            frames.append(f"{'/'.join(parts)}:{number} {function}")
    return tuple(frames)
