"""The daemons of the cluster in the order in which they start, with their commands, probes and what to do about them."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from localcluster import cgroups, probes, processes
from localcluster.layout import (
    API_PORT,
    BRIDGE_IP,
    NODE,
    S3_ACCESS_KEY,
    S3_PORT,
    S3_SECRET_KEY,
    SERVICE_CIDR,
    Layout,
)
from localcluster.output import Failure, Progress, progress

ETCD = "http://127.0.0.1:2379"


@dataclass(frozen=True)
class Component:
    """One daemon. `needs` are ready before it starts; `remedy` completes "... did not become ready; "."""

    name: str
    command: Callable[[Layout], list[str]]
    probe: Callable[[Layout], str]
    needs: tuple[str, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    config: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    seconds: float = 60.0
    remedy: str = "mend what the log says and run `up` again"

    def record_file(self, layout: Layout) -> Path:
        return layout.records / f"{self.name}.json"

    def log_file(self, layout: Layout) -> Path:
        return layout.log / f"{self.name}.log"

    def fingerprint(self, layout: Layout) -> str:
        """Changes with the program, its arguments and its configuration files: then `up` restarts it."""
        command = self.command(layout)
        digest = hashlib.sha256(repr((command, Path(command[0]).resolve(), self.environment)).encode())
        for name in self.config:
            digest.update((layout.config / name).read_bytes())
        return digest.hexdigest()[:16]


def _etcd(layout: Layout) -> list[str]:
    return [
        str(layout.bin / "etcd"), "--name=localcluster", f"--data-dir={layout.run / 'etcd'}",
        f"--listen-client-urls={ETCD}", f"--advertise-client-urls={ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380", "--log-level=warn",
        "--unsafe-no-fsync",  # a throw-away cluster: it survives killed processes, not a power cut
    ]  # fmt: skip


def _apiserver(layout: Layout) -> list[str]:
    pki = layout.pki
    return [
        str(layout.bin / "kube-apiserver"), f"--etcd-servers={ETCD}", f"--secure-port={API_PORT}",
        "--bind-address=0.0.0.0", f"--advertise-address={BRIDGE_IP}", f"--cert-dir={layout.run / 'apiserver'}",
        f"--tls-cert-file={pki / 'apiserver.crt'}", f"--tls-private-key-file={pki / 'apiserver.key'}",
        f"--client-ca-file={pki / 'ca.crt'}", f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_CIDR}", "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",  # else logs and exec look the node's name up in DNS
        "--allow-privileged=true", "--endpoint-reconciler-type=lease",
    ]  # fmt: skip


def _controller_manager(layout: Layout) -> list[str]:
    return [
        str(layout.bin / "kube-controller-manager"), f"--kubeconfig={layout.run / 'controller-manager.conf'}",
        f"--service-account-private-key-file={layout.pki / 'sa.key'}", f"--root-ca-file={layout.pki / 'ca.crt'}",
        "--use-service-account-credentials", "--leader-elect=false", "--bind-address=127.0.0.1",
    ]  # fmt: skip


def _scheduler(layout: Layout) -> list[str]:
    return [
        str(layout.bin / "kube-scheduler"), f"--kubeconfig={layout.run / 'scheduler.conf'}",
        "--leader-elect=false", "--bind-address=127.0.0.1",
    ]  # fmt: skip


def _kubelet(layout: Layout) -> list[str]:
    return [
        str(layout.bin / "kubelet"), f"--config={layout.config / 'kubelet.yaml'}",
        f"--kubeconfig={layout.run / 'node.conf'}", f"--hostname-override={NODE}", f"--node-ip={BRIDGE_IP}",
        f"--root-dir={layout.run / 'kubelet'}", f"--cert-dir={layout.run / 'kubelet-pki'}",
    ]  # fmt: skip


COMPONENTS = (
    Component(
        "etcd", _etcd, probes.etcd, ports=(("127.0.0.1", 2379), ("127.0.0.1", 2380)),
        remedy="`down` and `up` again begin with an empty cluster when its data are damaged",
    ),
    Component(
        "containerd",
        lambda layout: [str(layout.bin / "containerd"), "-c", str(layout.config / "containerd.toml")],
        probes.containerd, config=("containerd.toml",),
        remedy="`down --purge` and `up` again begin with an empty image store when it is damaged",
    ),
    Component(
        "apiserver", _apiserver, probes.apiserver, needs=("etcd",), ports=(("0.0.0.0", API_PORT),),
    ),
    Component(
        "s3",
        lambda layout: [str(layout.bin / "versitygw"), "--port", f"{BRIDGE_IP}:{S3_PORT}", "--health", "/health",
                        "--quiet", "posix", str(layout.run / "s3")],
        probes.s3, ports=((BRIDGE_IP, S3_PORT),),
        environment=(("ROOT_ACCESS_KEY", S3_ACCESS_KEY), ("ROOT_SECRET_KEY", S3_SECRET_KEY)),
        remedy="its data folder must be on a file system with extended attributes",
    ),
    Component(
        "buildkitd",
        lambda layout: [str(layout.bin / "buildkitd"), "--config", str(layout.config / "buildkitd.toml")],
        probes.buildkitd, needs=("containerd",), config=("buildkitd.toml",),
    ),
    Component(
        "controller-manager", _controller_manager, probes.controller_manager, needs=("apiserver",),
        ports=(("127.0.0.1", 10257),),
    ),
    Component(
        "scheduler", _scheduler, probes.scheduler, needs=("apiserver",), ports=(("127.0.0.1", 10259),),
    ),
    Component(
        "kubelet", _kubelet, probes.kubelet, needs=("apiserver", "containerd"),
        ports=(("0.0.0.0", 10250), ("127.0.0.1", 10248)), config=("kubelet.yaml",), seconds=120,
    ),
    Component(
        "proxy",
        lambda layout: [str(layout.bin / "kube-proxy"), f"--config={layout.config / 'proxy.yaml'}"],
        probes.proxy, needs=("apiserver",), ports=(("0.0.0.0", 10256), ("127.0.0.1", 10249)),
        config=("proxy.yaml",), remedy="iptables must work on this machine: try `iptables-save`",
    ),
    Component(
        "coredns",
        lambda layout: [str(layout.bin / "coredns"), "-conf", str(layout.config / "Corefile")],
        probes.coredns, needs=("apiserver",), ports=((BRIDGE_IP, 53),), config=("Corefile",),
    ),
)  # fmt: skip


def named(name: str) -> Component:
    """The component of that name; the error lists the names."""
    for component in COMPONENTS:
        if component.name == name:
            return component
    raise Failure(f"there is no component {name!r}; there are {', '.join(c.name for c in COMPONENTS)}")


def running(layout: Layout, component: Component) -> processes.Record | None:
    """The record of the component's process when it runs."""
    record = processes.read(component.record_file(layout))
    return record if record is not None and processes.alive(record) else None


def start(layout: Layout, component: Component) -> bool:
    """Starts the process unless it runs as it should; does not wait for it. False when there was nothing to do."""
    fingerprint = component.fingerprint(layout)
    record = running(layout, component)
    if record is not None and record.fingerprint == fingerprint:
        return False
    if record is not None:
        stop(layout, component)
    for host, port in component.ports:
        _check_free(component, host, port)
    temporary = layout.run / "tmp"  # mounts that a killed daemon leaves in it are found by `down`
    temporary.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name not in ("NOTIFY_SOCKET", "KUBECONFIG")}
    processes.start(
        component.command(layout),
        component.record_file(layout),
        component.log_file(layout),
        fingerprint,
        cgroups.system_procs_file(),
        inherited
        | {"PATH": f"{layout.bin}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}", "TMPDIR": str(temporary)}
        | dict(component.environment),
    )
    return True


def stop(layout: Layout, component: Component) -> bool:
    """Stops the process and waits until it is gone. False when it did not run."""
    return processes.stop(component.record_file(layout), component.name)


def wait_ready(layout: Layout, component: Component) -> None:
    """Waits until the probe succeeds; fails at once when the process ends."""

    def probe() -> str:
        if running(layout, component) is None:
            raise Failure(
                f"{component.name} ended soon after its start; {component.remedy}", component.log_file(layout)
            )
        return component.probe(layout)

    with progress(f"{component.name} ready", quiet=True) as step:
        wait(layout, component.name, probe, step)


def wait(layout: Layout, name: str, probe: Callable[[], str], step: Progress) -> None:
    """Polls until the probe returns ""; else says that this component did not get that far."""
    component = named(name)
    deadline = time.monotonic() + component.seconds
    while why := probe():
        if time.monotonic() > deadline:
            raise Failure(
                f"{name} did not become ready within {component.seconds:.0f} s ({why}); {component.remedy}",
                component.log_file(layout),
            )
        step.tick(why)
        time.sleep(0.1)


def _check_free(component: Component, host: str, port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Failure(
                f"{component.name} needs port {port} of {host}, which cannot be had ({error.strerror}); "
                f"`ss -lntp 'sport = :{port}'` tells which process holds it: end that one and run again"
            ) from error
