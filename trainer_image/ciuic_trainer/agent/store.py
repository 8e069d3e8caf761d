"""S3, as the rest of the agent sees it: a few calls with conditional writes and a few kinds of error.

Synchronous, called from worker threads. Used by `run_store` alone.
"""

import io
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    SSLError,
)

from ciuic_api.agent_config import StoreConfig

CONNECT_SECONDS, READ_SECONDS = 3, 10
UPLOAD_ATTEMPTS = 4
"""Of each part, so that one lost answer does not cost the other parts of a large shard."""
PART_BYTES = 8 * 1024**2
PARTS_AT_ONCE = 4
"""Of each upload and download: bounds its memory."""
RANGE_ATTEMPTS = 3
RANGE_PAUSE_SECONDS = 0.5
DENIED = frozenset(
    {
        "AccessDenied",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "XAdminUserNotFound",  # of versitygw, with status 404
    }
)
ELSEWHERE = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
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
    etag: str


class Store:
    def __init__(self, config: StoreConfig) -> None:
        self.bucket = config.bucket
        self._where = f"bucket {config.bucket}" + (f" at {config.endpoint}" if config.endpoint else "")
        session = boto3.session.Session()
        self._client = self._connected(session, config, attempts=1)  # how long to try is decided where it is known why
        self._uploader = self._connected(session, config, attempts=UPLOAD_ATTEMPTS)
        self._transfer = TransferConfig(
            multipart_threshold=2 * PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )

    def _connected(self, session: Any, config: StoreConfig, attempts: int) -> Any:
        try:
            return session.client(
                "s3",
                endpoint_url=config.endpoint,
                region_name=config.region or "us-east-1",
                config=Config(
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=READ_SECONDS,
                    retries={"total_max_attempts": attempts, "mode": "standard"},
                    s3={"addressing_style": "path" if config.path_style else "auto"},
                    max_pool_connections=16,
                    response_checksum_validation="when_required",  # shards are checked against their manifest
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise Refused(f"checkpoint.s3 can not be used: {error}") from error

    # --- small objects --------------------------------------------------------------------------------------------

    def get(self, key: str) -> tuple[bytes, str]:
        """Content and ETag. Raises Missing."""
        answer = self._call("get_object", Key=key)
        return self._read(answer, key), str(answer.get("ETag", ""))  # what was put there by other means may have none

    def put(self, key: str, data: bytes, *, new: bool = False, etag: str | None = None) -> str:
        """Returns the ETag. `new`: only where nothing is; `etag`: only over that version. Raises Exists."""
        condition = {"IfNoneMatch": "*"} if new else {"IfMatch": etag} if etag is not None else {}
        answer = self._call("put_object", Key=key, Body=data, ChecksumAlgorithm="CRC32", **condition)
        return str(answer["ETag"])

    def list(self, prefix: str) -> list[Listed]:
        found: list[Listed] = []
        token: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, **token)
            found += [
                Listed(entry["Key"], int(entry["Size"]), str(entry["ETag"])) for entry in page.get("Contents", ())
            ]
            if not page.get("IsTruncated"):
                return found
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        """One at a time: not every store knows the call for many."""
        self._call("delete_object", Key=key)

    # --- large objects --------------------------------------------------------------------------------------------

    def upload(self, key: str, body: io.IOBase) -> None:
        """In parts, each with its CRC32, which the store checks. What reading `body` raises is passed on."""
        try:
            self._uploader.upload_fileobj(
                body, self.bucket, key, ExtraArgs={"ChecksumAlgorithm": "CRC32"}, Config=self._transfer
            )
        except (ClientError, BotoCoreError, OSError) as error:
            raise self._translated(error, key) from error

    def ranges(self, key: str, size_bytes: int, wanted: Callable[[], bool]) -> Iterator[bytes]:
        """An object in order, read by some requests at once. It ends early where the object does, or is not `wanted`."""
        starts = iter(range(0, size_bytes, PART_BYTES))
        coming: deque[Future[bytes]] = deque()
        pool = ThreadPoolExecutor(max_workers=PARTS_AT_ONCE, thread_name_prefix="download")
        try:
            while wanted():
                while len(coming) < PARTS_AT_ONCE and (start := next(starts, None)) is not None:
                    coming.append(pool.submit(self._range, key, start, min(start + PART_BYTES, size_bytes)))
                if not coming:
                    return
                yield coming.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _range(self, key: str, start: int, end: int) -> bytes:
        for attempt in range(RANGE_ATTEMPTS):
            try:
                answer = self._call("get_object", Key=key, Range=f"bytes={start}-{end - 1}")
                return self._read(answer, key)
            except Unreachable:
                if attempt == RANGE_ATTEMPTS - 1:
                    raise
                time.sleep(RANGE_PAUSE_SECONDS * (attempt + 1))
            except _NoSuchRange:
                break
        return b""

    # --- errors ---------------------------------------------------------------------------------------------------

    def _read(self, answer: Any, key: str) -> bytes:
        try:
            return bytes(answer["Body"].read())
        except (BotoCoreError, OSError) as error:
            raise Unreachable(f"{self._where} broke off while {key} was read: {error}") from error

    def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, name)(Bucket=self.bucket, **arguments)
        except (ClientError, BotoCoreError, OSError) as error:
            raise self._translated(error, str(arguments.get("Key", ""))) from error

    def _translated(self, error: Exception, key: str) -> StoreError:
        if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
            return Refused(f"no credentials for {self._where}: set checkpoint.secretName to a Secret that has them")
        if isinstance(error, ParamValidationError):
            return Refused(f"{self._where} is no place for checkpoints: {error}")
        if isinstance(error, SSLError) and "certificate" in str(error).lower():
            return Refused(f"the certificate of {self._where} is not trusted: {error}")
        if not isinstance(error, ClientError):
            return Unreachable(f"{self._where} does not answer: {error}")
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code == "NoSuchBucket":
            return Refused(f"{self._where} does not exist: create it, or correct checkpoint.path")
        if code in ("NoSuchKey", "404", "NotFound"):
            return Missing(f"{key} is not in {self._where}")
        if status == 416:
            return _NoSuchRange(f"{key} in {self._where} is shorter than expected")
        if status in (409, 412):
            return Exists(f"{key} in {self._where} was written by somebody else")
        if code in ELSEWHERE or status == 301:
            return Refused(f"{self._where} is in another region ({code or status}): set checkpoint.s3.region")
        if code == "RequestTimeTooSkewed":
            return Refused(f"{self._where} does not accept this node's clock: set it right")
        if code in DENIED or status in (401, 403):
            return Refused(f"{self._where} refuses the credentials ({code or status}): {CREDENTIALS}")
        if status == 501 or code == "NotImplemented":
            return Refused(f"{self._where} does not support conditional writes, which checkpoints need")
        return Unreachable(f"{self._where} answers {status} {code}")


class _NoSuchRange(StoreError):
    """The object ends before this range."""
