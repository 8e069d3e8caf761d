"""The agent's end of the WebSocket: reports out, directives in, and again when it breaks. Built by `__main__`.

Nothing here can stop training: while the operator is away the ranks go on, and uploads with them.
"""

import asyncio
import random
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec

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
CLOSE_SECONDS = 1.0
HEARTBEAT_SECONDS = 10.0
"""Pings: a connection whose other end is gone without a word is noticed within one and a half times this."""
SHORT_SECONDS = 5.0
"""A connection that lives no longer than this counts as a failed one: the next comes after a longer pause."""
REFUSAL_CHARACTERS = 500


class HubRefused(Exception):
    """The operator did not take the connection; the sentence is its own."""


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
        self._spoken = asyncio.Condition()
        self._begun = self._sent = 0
        self._complaint = ""

    def changed(self) -> None:
        """Something is worth telling at once."""
        self._changed.set()

    async def last_word(self, seconds: float) -> None:
        """Sends what is so now, if that is possible in this time."""
        goal = self._begun + 1
        self._changed.set()
        try:
            async with asyncio.timeout(seconds), self._spoken:
                await self._spoken.wait_for(lambda: self._sent >= goal)
        except TimeoutError:
            return

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._converse()
            except HubRefused as refusal:
                self._complain(f"the operator refuses the connection, trying again: {refusal}")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._complain(f"operator not reached, trying again: {type(error).__name__} {error}")
            lasted = asyncio.get_running_loop().time() - began
            failures = failures + 1 if lasted < SHORT_SECONDS else 0
            low, high = RECONNECT_SECONDS
            await asyncio.sleep(random.uniform(low, min(high, low * 2 ** min(failures + 1, 6))))

    def _complain(self, sentence: str) -> None:
        if sentence != self._complaint:
            self._complaint = sentence
            self._say(sentence)

    async def _converse(self) -> None:
        async with aiohttp.ClientSession(raise_for_status=_with_sentence) as session:
            async with asyncio.timeout(CONNECT_SECONDS):
                socket = await session.ws_connect(
                    self._config.hub_url,
                    headers=self._headers(),
                    ssl=self._trust(),
                    max_msg_size=MAX_REPORT_BYTES,
                    heartbeat=HEARTBEAT_SECONDS,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                    compress=0,
                )
            self._complaint = ""
            self._say("connected to the operator")
            tasks = [asyncio.create_task(self._speak(socket)), asyncio.create_task(self._listen(socket))]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                await socket.close()
            for outcome in outcomes:
                if isinstance(outcome, Exception):
                    raise outcome
            self._complain(f"the operator closed the connection (code {socket.close_code})")

    def _headers(self) -> dict[str, str]:
        token = self._token_path.read_text().strip() if self._token_path.exists() else ""
        return {
            "Authorization": f"Bearer {token}",
            HEADER_NAMESPACE: self._config.namespace,
            HEADER_JOB: self._config.job,
            HEADER_JOB_UID: self._config.job_uid,
        }

    def _trust(self) -> ssl.SSLContext | bool:
        pem = self._config.hub_ca_pem
        return ssl.create_default_context(cadata=pem) if pem else True

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            self._changed.clear()
            self._begun += 1
            await socket.send_bytes(encode(self._report()))
            async with self._spoken:
                self._sent = self._begun
                self._spoken.notify_all()
            try:
                async with asyncio.timeout(REPORT_INTERVAL_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Until the connection ends."""
        async for message in socket:
            if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                return
            try:
                self._hear(decode_directive(message.data))
            except msgspec.DecodeError as error:
                self._complain(f"the operator said something that can not be read: {error}")


async def _with_sentence(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = (await response.text(errors="replace"))[:REFUSAL_CHARACTERS]
        raise HubRefused(f"{response.status} {text.strip()}")
