"""Process 1 of a rank pod: `python -m ciuic_trainer.agent`. Configuration comes in CIUIC_AGENT_CONFIG."""

import asyncio
import os
import sys
import traceback
from pathlib import Path

from ciuic_api import agent_config

from . import processes
from .hub_client import HubClient
from .output import say
from .runtime import Runtime

LAST_WORD_SECONDS = 1.0
AGAIN_SECONDS = 5.0


async def serve(config: agent_config.AgentConfig, memory: Path, scratch: Path, token: Path) -> int:
    runtime = Runtime(config, dict(os.environ), memory, scratch)
    hub = HubClient(config, token, runtime.report, runtime.hear, say)
    runtime.changed = hub.changed
    connection = asyncio.create_task(stay_connected(hub))
    try:
        code = await runtime.run()
        await hub.last_word(LAST_WORD_SECONDS)
        return code
    finally:
        connection.cancel()


async def stay_connected(hub: HubClient) -> None:
    """A mistake of ours in what is said or heard must not leave the ranks without anybody who speaks for them."""
    while True:
        task = asyncio.create_task(hub.run())
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        error = task.exception()
        if error is not None:
            say("".join(traceback.format_exception(error)))
        await asyncio.sleep(AGAIN_SECONDS)


def main() -> None:
    text = os.environ.get(agent_config.ENV)
    if text is None:
        sys.exit(f"{agent_config.ENV} is not set: this is process 1 of a rank pod and is started by the operator")
    config = agent_config.decode(text)
    processes.become_subreaper()
    if config.disable_transparent_huge_pages:
        processes.disable_transparent_huge_pages()
    memory = Path(os.environ.get("CIUIC_MEMORY_PATH") or agent_config.MEMORY_TIER_PATH)
    scratch = Path(os.environ.get("CIUIC_SCRATCH_PATH") or "/tmp/ciuic")
    token = Path(os.environ.get("CIUIC_TOKEN_PATH") or agent_config.TOKEN_PATH)
    memory.mkdir(parents=True, exist_ok=True)
    code = 1
    try:
        code = asyncio.run(serve(config, memory, scratch, token))
    except Exception as error:
        traceback.print_exception(error)
        raise
    finally:
        # Threads of the store may be in the middle of a call: nobody waits for them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
