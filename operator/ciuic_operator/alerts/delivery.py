"""Sends what one receiver's mailbox holds. One task for each receiver; made and run by `desk`.

Whatever a chat server does, it happens here: a hung, slow or broken one delays its own messages and nothing else.
"""

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import aiohttp

from ..metrics import Metrics
from ..receivers import Receiver
from .formats import FORMATS
from .formats.wire import Answer, Outcome, Outgoing, Verdict
from .model import Alert, Message
from .policy import Mailbox
from .secrecy import Secrets, problem, redacted

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
ANSWER_BYTES = 4096
"""Of an answer that are read."""


class Courier:
    def __init__(
        self,
        receiver: Receiver,
        folder: Path,
        metrics: Metrics,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.receiver = receiver
        self._folder = folder
        """Its Secret, mounted: read for each message, so that a changed or late Secret needs no restart."""
        self._metrics = metrics
        self._now = now
        self._clock = clock
        self._mailbox = Mailbox()
        self._put = asyncio.Event()
        self._said = ""
        metrics.receiver(receiver.name)

    def put(self, alert: Alert) -> None:
        self._mailbox.put(alert, self._clock())
        self._put.set()

    def withdraw(self, job_uid: str) -> None:
        self._mailbox.withdraw(job_uid)

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Until it is cancelled."""
        while True:
            self._put.clear()
            wait = self._mailbox.due_in(self._clock())
            if wait is None or wait > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._put.wait()
                continue
            await self.deliver(session)

    async def deliver(self, session: aiohttp.ClientSession) -> None:
        """One message with all that the mailbox gives out."""
        before = self._mailbox.dropped
        batch = self._mailbox.take(self._clock())
        if batch.entries:
            message = Message(
                receiver=self.receiver.name,
                language=self.receiver.language,
                alerts=batch.alerts,
                dropped=batch.dropped,
            )
            try:
                verdict, asked_seconds = await self._exchange(session, message)
            except asyncio.CancelledError:
                self._mailbox.failed(batch, self._clock())
                raise
            match verdict.outcome:
                case Outcome.SENT:
                    self._mailbox.sent(batch, self._clock())
                    self._metrics.alerts_sent(self.receiver.name, len(batch.entries))
                case Outcome.LATER:
                    self._mailbox.failed(batch, self._clock(), asked_seconds)
                case Outcome.REFUSED:
                    self._mailbox.refused(batch, self._clock())
            self._say(verdict)
        self._metrics.alerts_dropped(self.receiver.name, self._mailbox.dropped - before)

    async def _exchange(self, session: aiohttp.ClientSession, message: Message) -> tuple[Verdict, float]:
        secrets = Secrets(*(_content(self._folder / name) for name in ("url", "secret")))
        if unusable := problem(secrets):
            return Verdict(Outcome.LATER, unusable), 0.0
        form = FORMATS[self.receiver.type]
        try:
            answer = await _post(session, form.compose(message, secrets, self._now()))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            return Verdict(Outcome.LATER, redacted(words, secrets)), 0.0
        except Exception:  # noqa: BLE001 - a mistake of ours must cost no more than this message; logged by _say, redacted
            return Verdict(Outcome.REFUSED, redacted(traceback.format_exc(), secrets)), 0.0
        verdict = form.judge(answer)
        return Verdict(verdict.outcome, redacted(verdict.why, secrets)), answer.retry_after_seconds

    def _say(self, verdict: Verdict) -> None:
        """A failure is logged when it is new."""
        if verdict.outcome is not Outcome.SENT:
            self._metrics.alert_failed(self.receiver.name)
        if verdict.why == self._said:
            return
        if verdict.outcome is Outcome.SENT:
            log.info("alerts reach receiver %s again", self.receiver.name)
        else:
            then = "tried again later" if verdict.outcome is Outcome.LATER else "not tried again"
            log.warning("alerts for receiver %s are not delivered, %s: %s", self.receiver.name, then, verdict.why)
        self._said = verdict.why


async def _post(session: aiohttp.ClientSession, outgoing: Outgoing) -> Answer:
    # A redirect would carry the message, and a signature, to somebody whom nobody has named.
    async with session.post(
        outgoing.url,
        data=outgoing.body,
        headers={"Content-Type": "application/json; charset=utf-8", **outgoing.headers},
        allow_redirects=False,
        timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS),
    ) as response:
        body = await response.content.read(ANSWER_BYTES)
        asked = response.headers.get("Retry-After", "")
        return Answer(
            status=response.status,
            body=body.decode(errors="replace"),
            retry_after_seconds=float(asked) if asked.isdecimal() else 0.0,
        )


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
