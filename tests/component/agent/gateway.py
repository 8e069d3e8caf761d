"""A real S3 server on loopback for one test, which can be stopped and started. Its buckets are directories."""

import os
import socket
import subprocess
import time
from pathlib import Path

from api_server import binary, free_ports
from ciuic_api.agent_config import StoreConfig

ACCESS_KEY, SECRET_KEY = "component", "component-secret"
START_SECONDS = 20.0


class Gateway:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]
        self.bucket = "checkpoints"
        self.bucket_path = folder / "data" / self.bucket
        self.bucket_path.mkdir(parents=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def config(self, prefix: str = "runs/team/tiny", **changes: object) -> StoreConfig:
        fields: dict[str, object] = {
            "bucket": self.bucket,
            "prefix": prefix,
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "path_style": True,
        }
        return StoreConfig(**(fields | changes))  # type: ignore[arg-type]

    def environment(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def start(self) -> None:
        environment = os.environ | {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        with (self._folder / "gateway.log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary("versitygw"), "--port", f"127.0.0.1:{self.port}", "posix", str(self.bucket_path.parent)],
                env=environment,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                    return
            except OSError:
                log_text = (self._folder / "gateway.log").read_text()
                assert self._process.poll() is None and time.monotonic() < deadline, f"no S3 server: {log_text}"
                time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def objects(self, prefix: str = "runs/team/tiny") -> list[str]:
        """Keys below the run, as the server's directory has them."""
        root = self.bucket_path / prefix
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
