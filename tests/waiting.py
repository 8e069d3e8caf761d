"""Waiting for conditions, for tests: as short as the condition allows, with a limit and a word about what never came."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_SECONDS = 0.02


async def eventually(
    what: str, condition: Callable[[], T | Awaitable[T]], seconds: float = 20.0, pause: float = PAUSE_SECONDS
) -> T:
    """The condition's first true value."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        value: T = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s; last seen: {value!r}"
        await asyncio.sleep(pause)
