"""What the person at the terminal sees: lines, progress and failures. Used by every other module here."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STARTED = time.monotonic()
QUIET_SECONDS = 3.0  # what takes longer shows progress
LOG_SECONDS = 30.0  # where lines cannot be overwritten, progress is one line in this many seconds


class Failure(Exception):
    """One sentence that names the thing, its value and what to do; `log` adds the last lines of that file."""

    def __init__(self, sentence: str, log: Path | None = None) -> None:
        super().__init__(sentence)
        self.log = log


def say(text: str) -> None:
    """Prints one line with the seconds since the command started."""
    print(f"[{time.monotonic() - STARTED:6.1f}s] {text}", flush=True)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log file, indented; says so when there are none."""
    if not path.exists():
        return f"    ({path} does not exist)"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64 * 1024))
        last = file.read().decode(errors="replace").splitlines()[-lines:]
    return "\n".join(f"    {line[:400]}" for line in last) or f"    ({path} is empty)"


def report(failure: Failure) -> None:
    """Prints a failure and the log that belongs to it on stderr."""
    print(f"error: {failure}", file=sys.stderr)
    if failure.log is not None:
        print(f"last lines of {failure.log}:\n{tail(failure.log)}", file=sys.stderr)
    sys.stderr.flush()


class Progress:
    """A step that may take long: overwrites one line on a terminal, else adds a line now and then."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.started = time.monotonic()
        self._shown = self.started
        self._on_line = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def tick(self, detail: str = "") -> None:
        """Called often; shows something only when it is time to."""
        now = time.monotonic()
        text = f"{self.what}: {detail}{', ' if detail else ''}{now - self.started:.0f} s"
        if sys.stdout.isatty():
            if now - self.started > QUIET_SECONDS and now - self._shown > 0.5:
                print(f"\r\033[K[{now - STARTED:6.1f}s] {text}", end="", flush=True)
                self._shown, self._on_line = now, True
        elif now - self._shown > LOG_SECONDS:
            say(text)
            self._shown = now

    def close(self) -> None:
        if self._on_line:
            print("\r\033[K", end="", flush=True)


@contextmanager
def progress(what: str, quiet: bool = False) -> Iterator[Progress]:
    """Shows `what` when done, with its seconds; the caller ticks in between. `quiet`: only when it took long."""
    step = Progress(what)
    try:
        yield step
    finally:
        step.close()
    if not quiet or step.seconds > QUIET_SECONDS:
        say(f"{what}: done in {step.seconds:.1f} s")
