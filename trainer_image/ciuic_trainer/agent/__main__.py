"""Process 1 of a rank pod: `python -m ciuic_trainer.agent`. Configuration comes in CIUIC_AGENT_CONFIG."""

import asyncio
import os
import sys
from pathlib import Path

from ciuic_api import agent_config

from . import processes
from .hub_client import HubClient
from .runtime import Runtime, say


async def serve(config: agent_config.AgentConfig, memory: Path, scratch: Path, token: Path) -> int:
    runtime = Runtime(config, dict(os.environ), memory, scratch)
    hub = HubClient(config, token, runtime.report, runtime.hear, say)
    runtime.changed = hub.changed
    connection = asyncio.create_task(hub.run())
    try:
        return await runtime.run()
    finally:
        connection.cancel()


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
    # Threads of the store may be in the middle of a call: nobody waits for them.
    code = asyncio.run(serve(config, memory, scratch, token))
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
