"""S3, as the rest of the agent sees it: a few calls with conditional writes and three kinds of error.

Synchronous, called from worker threads. Used by `run_store` alone.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from ciuic_api.agent_config import StoreConfig

CONNECT_SECONDS, READ_SECONDS = 3, 20
DENIED = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "InvalidToken"}
)
CREDENTIALS = "check the keys AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of the Secret in checkpoint.secretName"


class StoreError(Exception):
    """Base of what a call to the store can end with."""


class Unreachable(StoreError):
    """No answer, or the server's own fault: worth trying again."""


class Refused(StoreError):
    """Somebody has to act: credentials, bucket, or a store without conditional writes."""


class Missing(StoreError):
    """No such object."""


class Exists(StoreError):
    """A conditional write met something else than it expected."""


@dataclass(frozen=True)
class Listed:
    key: str
    size_bytes: int


class Store:
    def __init__(self, config: StoreConfig) -> None:
        self.bucket = config.bucket
        self._where = f"bucket {config.bucket}" + (f" at {config.endpoint}" if config.endpoint else "")
        try:
            self._client: Any = boto3.session.Session().client(
                "s3",
                endpoint_url=config.endpoint,
                region_name=config.region or "us-east-1",
                config=Config(
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=READ_SECONDS,
                    retries={"total_max_attempts": 1},  # how long to try is decided where it is known what for
                    s3={"addressing_style": "path" if config.path_style else "auto"},
                    max_pool_connections=16,
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise Refused(f"checkpoint.s3 can not be used: {error}") from error

    def get(self, key: str) -> tuple[bytes, str]:
        """Content and ETag. Raises Missing."""
        answer = self._call("get_object", Key=key)
        try:
            return bytes(answer["Body"].read()), str(answer["ETag"])
        except (BotoCoreError, OSError) as error:
            raise Unreachable(f"{self._where} broke off while {key} was read: {error}") from error

    def stream(self, key: str, chunk_bytes: int) -> Iterator[bytes]:
        answer = self._call("get_object", Key=key)
        try:
            yield from answer["Body"].iter_chunks(chunk_bytes)
        except (BotoCoreError, OSError) as error:
            raise Unreachable(f"{self._where} broke off while {key} was read: {error}") from error

    def put(self, key: str, data: bytes, *, new: bool = False, etag: str | None = None) -> str:
        """Returns the ETag. `new`: only where nothing is; `etag`: only over that version. Raises Exists."""
        condition = {"IfNoneMatch": "*"} if new else {"IfMatch": etag} if etag is not None else {}
        answer = self._call("put_object", Key=key, Body=data, ChecksumAlgorithm="CRC32", **condition)
        return str(answer["ETag"])

    def upload(self, key: str, body: io.IOBase) -> None:
        """A large object in parts, each with its CRC32, which the store checks."""
        try:
            self._client.upload_fileobj(body, self.bucket, key, ExtraArgs={"ChecksumAlgorithm": "CRC32"})
        except (ClientError, BotoCoreError, OSError, RuntimeError) as error:
            cause = error.__cause__ if isinstance(error.__cause__, (ClientError, BotoCoreError)) else error
            raise self._translated(cause, key) from error

    def list(self, prefix: str) -> list[Listed]:
        found: list[Listed] = []
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, **token)
            found += [Listed(entry["Key"], int(entry["Size"])) for entry in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return found
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        self._call("delete_object", Key=key)

    def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, name)(Bucket=self.bucket, **arguments)
        except (ClientError, BotoCoreError, OSError) as error:
            raise self._translated(error, str(arguments.get("Key", ""))) from error

    def _translated(self, error: BaseException, key: str) -> StoreError:
        if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
            return Refused(f"no credentials for {self._where}: set checkpoint.secretName to a Secret that has them")
        if not isinstance(error, ClientError):
            return Unreachable(f"{self._where} does not answer: {error}")
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "NoSuchBucket":
            return Refused(f"{self._where} does not exist: create it, or correct checkpoint.path")
        if code in ("NoSuchKey", "404", "NotFound"):
            return Missing(f"{key} is not in {self._where}")
        if status == 412 or code in ("PreconditionFailed", "ConditionalRequestConflict") or status == 409:
            return Exists(f"{key} in {self._where} was written by somebody else")
        if code in DENIED or status in (401, 403):
            return Refused(f"{self._where} refuses the credentials ({code}): {CREDENTIALS}")
        if status == 501 or code == "NotImplemented":
            return Refused(f"{self._where} does not support conditional writes, which checkpoints need")
        return Unreachable(f"{self._where} answers {status} {code}")
