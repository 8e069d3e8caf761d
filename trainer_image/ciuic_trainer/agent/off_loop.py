"""Work that blocks, done in a thread while the agent's loop goes on. Used by what `runtime` starts as tasks."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(threads: Executor, what: Callable[[], Result]) -> Result | Exception:
    """Its result or what it raised: a task that ends by an exception that nobody awaits ends in silence."""
    future = asyncio.get_running_loop().run_in_executor(threads, what)
    await asyncio.wait({future})
    error = future.exception()
    if error is None:
        return future.result()
    if not isinstance(error, Exception):
        raise error
    return error
