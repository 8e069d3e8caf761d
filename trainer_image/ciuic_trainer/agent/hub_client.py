"""The agent's end of the WebSocket: reports out, directives in, and again when it breaks. Used by `runtime`.

Nothing here can stop training: while the operator is away the ranks go on, and uploads with them.
"""

import asyncio
import random
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp

from ciuic_api.agent_config import AgentConfig
from ciuic_api.protocol import (
    HEADER_JOB,
    HEADER_JOB_UID,
    HEADER_NAMESPACE,
    MAX_REPORT_BYTES,
    REPORT_INTERVAL_SECONDS,
    Directive,
    Report,
    decode_directive,
    encode,
)

RECONNECT_SECONDS = (0.2, 5.0)
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 15.0
"""The operator answers each report; a connection on which it does not is as good as none."""


class HubClient:
    def __init__(
        self,
        config: AgentConfig,
        token_path: Path,
        report: Callable[[], Report],
        hear: Callable[[Directive], None],
        say: Callable[[str], None],
    ) -> None:
        self._config = config
        self._token_path = token_path
        self._report = report
        self._hear = hear
        self._say = say
        self._changed = asyncio.Event()
        self._complaint = ""

    def changed(self) -> None:
        """Something is worth telling at once."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            try:
                await self._converse()
                failures = 0
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                failures += 1
                self._complain(f"operator not reached, trying again: {type(error).__name__} {error}")
            low, high = RECONNECT_SECONDS
            await asyncio.sleep(random.uniform(low, min(high, low * 2 ** min(failures, 6)) + low))

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            self._say(sentence)

    async def _converse(self) -> None:
        headers = {
            "Authorization": f"Bearer {self._token_path.read_text().strip()}" if self._token_path.exists() else "",
            HEADER_NAMESPACE: self._config.namespace,
            HEADER_JOB: self._config.job,
            HEADER_JOB_UID: self._config.job_uid,
        }
        trust: ssl.SSLContext | bool = True
        if self._config.hub_ca_pem:
            trust = ssl.create_default_context(cadata=self._config.hub_ca_pem)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.ws_connect(
                self._config.hub_url, headers=headers, ssl=trust, max_msg_size=MAX_REPORT_BYTES, compress=0
            ) as socket,
        ):
            self._complaint = ""
            self._say("connected to the operator")
            speaking = asyncio.create_task(self._speak(socket))
            try:
                await self._listen(socket)
            finally:
                speaking.cancel()
                await asyncio.gather(speaking, return_exceptions=True)
            self._complain(f"the operator closed the connection (code {socket.close_code})")

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            self._changed.clear()
            await socket.send_bytes(encode(self._report()))
            try:
                async with asyncio.timeout(REPORT_INTERVAL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = await socket.receive(timeout=SILENCE_SECONDS * 4)
            if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                self._hear(decode_directive(message.data))
            else:
                return
