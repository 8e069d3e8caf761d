"""The pod's log: the agent's own sentences and the ranks' lines. Called from any thread; nothing that happens to the
log may stop a rank, whose output would then have nobody to read it.
"""

import sys
from contextlib import suppress


def write_line(line: bytes) -> None:
    with suppress(OSError, ValueError):  # the reader of our output is gone, or its disk is full
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def say(text: str) -> None:
    write_line(f"[agent] {text}".encode(errors="replace"))
