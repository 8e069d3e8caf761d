"""Agents without ranks, for tests of the operator: they connect, report and obey as the protocol says, and remember."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp
import msgspec

from ciuic_api import agent_config, names, protocol
from ciuic_api.agent_config import AgentConfig
from ciuic_api.protocol import AgentFailure, AgentState, Directive, Preflight, RankState, Report

PERIOD_SECONDS = 0.2


@dataclass
class PretendAgent:
    """The agent of one rank pod, told what a pod is told: its CIUIC_AGENT_CONFIG and a token."""

    config: AgentConfig
    token: str
    slot: int
    told: list[Directive] = field(default_factory=list)
    """Every directive that differed from the one before."""
    refusals: list[str] = field(default_factory=list)
    closes: list[tuple[int | None, str]] = field(default_factory=list)
    state: AgentState = AgentState.QUIESCED
    attempt: int = 0
    step: int = 0
    exit_code: int | None = None
    failure: AgentFailure | None = None
    sequence: int = 0
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task

    def lose_rank(self, exit_code: int = -9) -> None:
        self.state, self.exit_code = AgentState.EXITED, exit_code
        self.failure = AgentFailure(reason="RankExit", message="killed", rank=self.slot, exit_code=exit_code)

    def report(self) -> Report:
        self.sequence += 1
        idle = self.state is AgentState.QUIESCED
        rank = RankState(rank=self.slot, phase="step", step=self.step, exit_code=self.exit_code)
        return Report(
            boot=f"boot-{id(self)}",
            sequence=self.sequence,
            incarnation=self.config.incarnation,
            attempt=self.attempt,
            state=self.state,
            ranks=() if idle else (rank,),
            failure=self.failure,
            preflight=Preflight(),
            rendezvous="127.0.0.1:29500" if self.slot == 0 else None,
            uploads_done=self.state is AgentState.EXITED,
        )

    def obey(self, directive: Directive) -> None:
        if not self.told or self.told[-1] != directive:
            self.told.append(directive)
        if directive.attempt > self.attempt:
            self.attempt, self.state = directive.attempt, AgentState.QUIESCED
            self.exit_code = self.failure = None
        if directive.attempt == self.attempt and directive.run and self.state is AgentState.QUIESCED:
            self.state = AgentState.RUNNING
        if directive.attempt == self.attempt and directive.stop and self.state is AgentState.RUNNING:
            self.state, self.exit_code = AgentState.EXITED, protocol.STOPPED_EXIT_CODE

    async def _run(self) -> None:
        context = ssl.create_default_context(cadata=self.config.hub_ca_pem)
        headers = {
            "Authorization": f"Bearer {self.token}",
            protocol.HEADER_NAMESPACE: self.config.namespace,
            protocol.HEADER_JOB: self.config.job,
            protocol.HEADER_JOB_UID: self.config.job_uid,
        }
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session:
            while True:
                try:
                    async with session.ws_connect(self.config.hub_url, headers=headers) as socket:
                        await self._speak(socket)
                except aiohttp.WSServerHandshakeError as refusal:
                    self.refusals.append(f"{refusal.status}")
                except (aiohttp.ClientError, ConnectionError):
                    pass  # the operator is down: that is what some tests are about
                await asyncio.sleep(PERIOD_SECONDS)

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while not socket.closed:
            await socket.send_bytes(protocol.encode(self.report()))
            with suppress(TimeoutError):
                message = await socket.receive(timeout=PERIOD_SECONDS)
                if message.type is aiohttp.WSMsgType.BINARY:
                    self.obey(protocol.decode_directive(message.data))
                    await asyncio.sleep(PERIOD_SECONDS / 4)
                elif message.type is aiohttp.WSMsgType.CLOSE:
                    self.closes.append((message.data, message.extra or ""))
                    return
                else:
                    return


def config_of(pod: dict[str, object]) -> AgentConfig:
    """What the operator wrote into a pod for its agent."""
    spec = msgspec.convert(pod["spec"], dict[str, object])
    for container in msgspec.convert(spec["containers"], list[dict[str, object]]):
        if container["name"] == names.CONTAINER:
            for entry in msgspec.convert(container["env"], list[dict[str, object]]):
                if entry["name"] == agent_config.ENV:
                    return agent_config.decode(str(entry["value"]))
    raise AssertionError("the pod has no agent configuration")
