"""Certificates and kubeconfigs of one cluster, made by openssl when it is created. Called by `up`."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from localcluster.layout import API_PORT, BRIDGE_IP, KUBERNETES_IP, NODE, Layout
from localcluster.output import Failure

DAYS = "3650"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Client:
    """A client certificate; with `kubeconfig`, also a file of that name in the run folder."""

    file: str
    user: str
    group: str = ""
    kubeconfig: str = ""


CLIENTS = (
    Client("admin", "admin", "system:masters", "admin.conf"),
    Client("controller-manager", "system:kube-controller-manager", kubeconfig="controller-manager.conf"),
    Client("scheduler", "system:kube-scheduler", kubeconfig="scheduler.conf"),
    Client("proxy", "system:kube-proxy", kubeconfig="proxy.conf"),
    Client("node", f"system:node:{NODE}", "system:nodes", "node.conf"),
    Client("kubelet-client", "apiserver-kubelet", "system:masters"),
)
SERVER_NAMES = (
    "DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local", "IP:127.0.0.1", f"IP:{KUBERNETES_IP}", f"IP:{BRIDGE_IP}",
)  # fmt: skip


def ensure(layout: Layout) -> None:
    """Makes all certificates in a folder beside and renames it: there are all of them or none."""
    if not layout.pki.is_dir():
        making = layout.run / ".pki-making"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True, mode=0o700)
        _openssl(
            making,
            "req",
            "-x509",
            *KEY,
            "-keyout",
            "ca.key",
            "-out",
            "ca.crt",
            "-subj",
            "/CN=localcluster",
            "-days",
            DAYS,
        )
        _certificate(making, "apiserver", "kube-apiserver", "", f"subjectAltName={','.join(SERVER_NAMES)}")
        for client in CLIENTS:
            _certificate(making, client.file, client.user, client.group, "extendedKeyUsage=clientAuth")
        _openssl(making, "genrsa", "-out", "sa.key", "2048")
        _openssl(making, "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
        making.rename(layout.pki)
    for client in CLIENTS:
        if client.kubeconfig:
            _write_kubeconfig(layout, client)


def _certificate(folder: Path, file: str, name: str, group: str, extension: str) -> None:
    subject = f"/CN={name}" + (f"/O={group}" if group else "")
    (folder / f"{file}.ext").write_text(extension)
    _openssl(folder, "req", *KEY, "-keyout", f"{file}.key", "-out", f"{file}.csr", "-subj", subject)
    _openssl(
        folder, "x509", "-req", "-in", f"{file}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-out", f"{file}.crt", "-days", DAYS, "-extfile", f"{file}.ext",
    )  # fmt: skip


def _openssl(folder: Path, *arguments: str) -> None:
    result = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        raise Failure(f"`openssl {' '.join(arguments)}` failed: {result.stderr.strip()}; check the openssl package")


def _write_kubeconfig(layout: Layout, client: Client) -> None:
    def embedded(name: str) -> str:
        return base64.b64encode((layout.pki / name).read_bytes()).decode()

    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "localcluster",
                "cluster": {
                    "server": f"https://127.0.0.1:{API_PORT}",
                    "certificate-authority-data": embedded("ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": client.user,
                "user": {
                    "client-certificate-data": embedded(f"{client.file}.crt"),
                    "client-key-data": embedded(f"{client.file}.key"),
                },
            }
        ],
        "contexts": [{"name": "localcluster", "context": {"cluster": "localcluster", "user": client.user}}],
        "current-context": "localcluster",
    }
    text = json.dumps(content, indent=1)  # JSON is YAML
    path = layout.run / client.kubeconfig
    if not path.exists() or path.read_text() != text:
        temporary = path.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        temporary.rename(path)
