"""Writes a one-layer OCI image as the tar stream that containerd imports. Called by images.py."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import IO, Any

CHUNK = 1 << 20


def sha256_of(path: Path) -> str:
    """The digest of a file without reading it into memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write(out: IO[bytes], name: str, layer: Path, settings: dict[str, Any], architecture: str = "amd64") -> None:
    """Writes image `name` with an uncompressed layer tar; `settings` is the image's runtime config."""
    layer_digest = sha256_of(layer)
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [
                {
                    "mediaType": "application/vnd.oci.image.layer.v1.tar",
                    "digest": f"sha256:{layer_digest}",
                    "size": layer.stat().st_size,
                }
            ],
        }
    )
    described = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    described["annotations"] = {"io.containerd.image.name": name}
    index = _json({"schemaVersion": 2, "manifests": [described]})
    with tarfile.open(fileobj=out, mode="w|") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        for blob in (config, manifest):
            _add(archive, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)
        entry = tarfile.TarInfo(f"blobs/sha256/{layer_digest}")
        entry.size = layer.stat().st_size
        with layer.open("rb") as file:
            archive.addfile(entry, file)


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def _descriptor(media_type: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(blob).hexdigest()}", "size": len(blob)}


def _add(archive: tarfile.TarFile, name: str, blob: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(blob)
    archive.addfile(entry, io.BytesIO(blob))
