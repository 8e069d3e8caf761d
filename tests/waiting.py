"""Waiting for conditions, for tests: as short as the condition allows, with a limit and a word about what never came."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_SECONDS = 0.02


async def eventually(what: str, condition: Callable[[], T], seconds: float = 20.0, pause: float = PAUSE_SECONDS) -> T:
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s; last seen: {found!r}"
        await asyncio.sleep(pause)
