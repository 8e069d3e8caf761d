"""One command at a time may change the cluster, and one build; the others wait and say for whom. Used by __main__.py."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from localcluster.layout import Layout
from localcluster.output import Failure, progress

WAIT_SECONDS = 2400.0  # longer than building everything


@contextmanager
def exclusive(layout: Layout, name: str = "lock") -> Iterator[None]:
    """Holds a lock of the cache folder. The kernel releases it when the process ends, however it ends."""
    layout.cache.mkdir(parents=True, exist_ok=True)
    path = layout.cache / name
    with path.open("a+") as file:
        if not _take(file.fileno()):
            file.seek(0)
            with progress(f"waiting for process {file.read().strip() or '?'}") as step:
                deadline = time.monotonic() + WAIT_SECONDS
                while not _take(file.fileno()):
                    if time.monotonic() > deadline:
                        raise Failure(f"{path} has been locked for {WAIT_SECONDS:.0f} s; end the process that holds it")
                    step.tick("one at a time")
                    time.sleep(0.1)
        file.truncate(0)
        file.write(f"{os.getpid()} (localcluster {' '.join(sys.argv[1:])})")
        file.flush()
        yield


def _take(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
