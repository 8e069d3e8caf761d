"""Asks a component whether it is ready: each probe returns "" or, in a few words, why not. Used by components.py."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

from localcluster.layout import API_PORT, BRIDGE_IP, DNS_IP, KUBERNETES_IP, NODE, S3_PORT, Layout

TIMEOUT = 2.0


def http(url: str, context: ssl.SSLContext | None = None) -> tuple[str, bytes]:
    """("", body) of a 200 answer, else (why not, b"")."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT, context=context) as answer:
            return "", answer.read()
    except urllib.error.HTTPError as error:
        return f"answers {error.code}", b""
    except (OSError, ValueError) as error:
        return f"does not answer: {getattr(error, 'reason', error)}", b""


def api(layout: Layout, path: str) -> tuple[str, bytes]:
    """A GET on the API server as admin."""
    try:
        context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
    except OSError as error:
        return f"no certificates in {layout.pki}: {error.strerror}", b""
    return http(f"https://127.0.0.1:{API_PORT}{path}", context)


def etcd(_: Layout) -> str:
    return http("http://127.0.0.1:2379/health")[0]


def apiserver(layout: Layout) -> str:
    return api(layout, "/readyz")[0]


def controller_manager(_: Layout) -> str:
    return http("https://127.0.0.1:10257/healthz", _any_certificate())[0]


def scheduler(_: Layout) -> str:
    return http("https://127.0.0.1:10259/healthz", _any_certificate())[0]


def kubelet(layout: Layout) -> str:
    why, _ = http("http://127.0.0.1:10248/healthz")
    if why:
        return why
    why, body = api(layout, f"/api/v1/nodes/{NODE}")
    if why:
        return f"node {NODE}: API server {why}"
    for condition in json.loads(body)["status"].get("conditions", []):
        if condition["type"] == "Ready":
            return "" if condition["status"] == "True" else f"node {NODE} is not ready: {condition['message']}"
    return f"node {NODE} has no conditions yet"


def proxy(_: Layout) -> str:
    return http("http://127.0.0.1:10256/healthz")[0]


def containerd(layout: Layout) -> str:
    return _command([str(layout.bin / "ctr"), "--address", str(layout.containerd_socket), "version"])


def buildkitd(layout: Layout) -> str:
    return _command([str(layout.bin / "buildctl"), "--addr", f"unix://{layout.buildkit_socket}", "debug", "workers"])


def s3(_: Layout) -> str:
    return http(f"http://{BRIDGE_IP}:{S3_PORT}/health")[0]


def coredns(_: Layout) -> str:
    name = "kubernetes.default.svc.cluster.local"
    found = resolve(name, BRIDGE_IP)
    return "" if found == KUBERNETES_IP else f"{name} resolves to {found or 'nothing'} instead of {KUBERNETES_IP}"


def service_dns(_: Layout) -> str:
    """Whether the cluster's DNS address works, and with it kube-proxy."""
    found = resolve("kubernetes.default.svc.cluster.local", DNS_IP)
    return "" if found == KUBERNETES_IP else f"the Service address {DNS_IP} answers {found or 'nothing'}"


def resolve(name: str, server: str) -> str:
    """The first A record of a name, asked of one server; "" when there is none."""
    question = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    query = struct.pack(">HHHHHH", 0x4444, 0x0100, 1, 0, 0, 0) + question + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(TIMEOUT)
        try:
            udp.connect((server, 53))
            udp.send(query)
            answer = udp.recv(2048)
        except OSError:
            return ""
    answers = struct.unpack(">H", answer[6:8])[0]
    return socket.inet_ntoa(answer[-4:]) if answers and len(answer) > len(query) else ""


def _any_certificate() -> ssl.SSLContext:
    """These two make a certificate of their own at each start; the probe stays on loopback."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _command(command: list[str]) -> str:
    if not Path(command[0]).exists():
        return f"{command[0]} does not exist"
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return "does not answer"
    return "" if result.returncode == 0 else (result.stderr.strip().splitlines() or ["fails"])[-1]
