"""Makes the checkpoint bucket in the cluster's S3 server by one signed request. Called by `up`."""

from __future__ import annotations

import hashlib
import hmac
import urllib.error
import urllib.request
from datetime import UTC, datetime

from localcluster.layout import BRIDGE_IP, S3_ACCESS_KEY, S3_BUCKET, S3_PORT, S3_SECRET_KEY
from localcluster.output import Failure

REGION = "us-east-1"
EMPTY = hashlib.sha256(b"").hexdigest()


def authorization(method: str, path: str, host: str, moment: datetime, access: str, secret: str) -> dict[str, str]:
    """The headers of a request without body and query, signed with AWS Signature Version 4."""
    stamp, day = moment.strftime("%Y%m%dT%H%M%SZ"), moment.strftime("%Y%m%d")
    headers = {"host": host, "x-amz-content-sha256": EMPTY, "x-amz-date": stamp}
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{EMPTY}"
    scope = f"{day}/{REGION}/s3/aws4_request"
    to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{secret}".encode()
    for part in (*scope.split("/"), to_sign):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    return headers | {"authorization": credential}


def ensure_bucket() -> None:
    """Makes the bucket; that it exists already is fine."""
    host = f"{BRIDGE_IP}:{S3_PORT}"
    path = f"/{S3_BUCKET}"
    headers = authorization("PUT", path, host, datetime.now(UTC), S3_ACCESS_KEY, S3_SECRET_KEY)
    request = urllib.request.Request(f"http://{host}{path}", method="PUT", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        body = error.read().decode(errors="replace")
        if "BucketAlready" not in body:  # ...OwnedByYou, or ...Exists
            raise Failure(f"the S3 server refused to make bucket {S3_BUCKET}: {error.code} {body[:300]}") from error
    except OSError as error:
        raise Failure(f"the S3 server at {host} does not answer ({error}); `start s3` starts it") from error
