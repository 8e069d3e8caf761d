"""HTTP to the API server through the official client, as bytes. Used by `kube` alone.

The client's models are left aside: decoding one pod with them costs a millisecond, and they refuse objects of servers
that are newer than they are. What is used of the client is configuration, authentication and the connection pool.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp
import msgspec
from kubernetes.aio import config as kubernetes_config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from .errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    OperatorError,
    Silent,
    Unavailable,
)

CONNECT_SECONDS = 5.0
CALL_SECONDS = 10.0
CONNECTIONS = 100
Query = Sequence[tuple[str, str]]


class _Status(msgspec.Struct, frozen=True):
    """What the server answers instead of an object when a call fails."""

    message: str = ""
    reason: str = ""


_decode_status = msgspec.json.Decoder(_Status).decode


class Transport:
    def __init__(self, client: ApiClient) -> None:
        self._client = client

    @classmethod
    async def connect(cls, kubeconfig: str | None) -> "Transport":
        """With the pod's service account, or with a kubeconfig file. Makes no call yet."""
        configuration = Configuration()
        configuration.connection_pool_maxsize = CONNECTIONS
        try:
            if kubeconfig is None:
                kubernetes_config.load_incluster_config(client_configuration=configuration)
            else:
                await kubernetes_config.load_kube_config(
                    config_file=kubeconfig, client_configuration=configuration, persist_config=False
                )
        except kubernetes_config.ConfigException as error:
            why = str(error).rstrip(".")
            raise OperatorError(
                f"no API server is known: {why}; run it in a pod or name a file in KUBECONFIG"
            ) from error
        return cls(ApiClient(configuration))

    async def close(self) -> None:
        await self._client.close()

    async def call(
        self,
        method: str,
        path: str,
        query: Query = (),
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
        seconds: float = CALL_SECONDS,
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
        try:
            response = await self._send(method, path, query, body, content_type, accept, timeout)
            async with response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable(method, path, error) from error
        if response.status >= 300:
            raise _refusal(method, path, response, content)
        return bytes(content)

    async def lines(self, path: str, query: Query, silence_seconds: float) -> AsyncGenerator[bytes]:
        """The lines of a watch stream until the server ends it; Silent when nothing comes for too long.

        Close it with contextlib.aclosing: an abandoned stream holds its connection.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence_seconds)
        try:
            response = await self._send("GET", path, query, None, "application/json", "application/json", timeout)
            async with response:
                if response.status >= 300:
                    raise _refusal("WATCH", path, response, await response.read())
                rest = bytearray()
                # Not the client's own line iteration: it fails on lines that are longer than its buffer.
                async for chunk in response.content.iter_any():
                    rest += chunk
                    *whole, rest = rest.split(b"\n")
                    for line in whole:
                        yield bytes(line)
        except aiohttp.SocketTimeoutError as error:
            raise Silent(f"WATCH {path}: nothing came for {silence_seconds:.0f} s") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _unreachable("WATCH", path, error) from error

    async def _send(
        self,
        method: str,
        path: str,
        query: Query,
        body: Any,
        content_type: str,
        accept: str,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        method, url, headers, body, _ = await self._client.param_serialize(
            method,
            path,
            query_params=list(query),
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        sent = await self._client.call_api(method, url, headers, body, _request_timeout=timeout)
        response: aiohttp.ClientResponse = sent.response
        return response


def _unreachable(method: str, path: str, error: Exception) -> Unavailable:
    return Unavailable(f"{method} {path}: {type(error).__name__} {error}".rstrip())


def _refusal(method: str, path: str, response: aiohttp.ClientResponse, content: bytes) -> KubeError:
    try:
        status = _decode_status(content)
    except msgspec.DecodeError:
        status = _Status(message=content[:200].decode(errors="replace"))
    words = status.message or response.reason or ""
    message = f"{method} {path}: {response.status} {words}"
    if response.status == 429 or response.status >= 500:
        after = response.headers.get("Retry-After", "")
        return Unavailable(message, words, float(after) if after.isdecimal() else 0.0)
    if response.status == 409:
        return AlreadyExists(message, words) if status.reason == "AlreadyExists" else Conflict(message, words)
    kinds: dict[int, type[KubeError]] = {
        400: Invalid,
        401: Forbidden,
        403: Forbidden,
        404: NotFound,
        410: Gone,
        422: Invalid,
    }
    return kinds.get(response.status, KubeError)(message, words)
