"""What one operator process is told by its environment. Parsed once, by `__main__`."""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ciuic_api.protocol import PATH

from .receivers import Receiver, receivers

LEASE_NAMESPACE = "kube-system"
LEASE_NAME = "deepseekjob-operator"
"""One for the whole cluster: two operators that both watch all namespaces would fight over every job."""


class SettingsError(ValueError):
    """An environment variable that cannot be used; the message names it, its value and the remedy."""


@dataclass(frozen=True, kw_only=True)
class ExitHook:
    """A test hook: the process ends itself at a point where a crash is most dangerous. Never set in production.

    `CIUIC_TEST_EXIT_AT=<point>[:<field>:<number>]` with point `after-persist` (the status is written, nothing is done
    yet) or `after-act` (all is done, the next write is not made), and field `attempt` or `nextIncarnation`. It fires
    when a write raises that field to the number or beyond; without field and number at each new attempt. Both fields
    only grow, so a restarted process passes the point that it ended at.
    """

    point: Literal["after-persist", "after-act"]
    field: Literal["attempt", "nextIncarnation"] = "attempt"
    number: int | None = None

    def due(self, before: int, after: int) -> bool:
        return before < after if self.number is None else before < self.number <= after


@dataclass(frozen=True, kw_only=True)
class Settings:
    release_name: str = "deepseekjob"
    release_namespace: str = "deepseekjob-system"
    """Together the identity of this installation: the Lease and the hub's CA belong to it."""
    pod_name: str = ""
    pod_uid: str = ""
    """Of the operator's own pod; empty outside a cluster. A Lease held by the same pod was held by a process that died."""
    hub_host: str = "deepseekjob.deepseekjob-system.svc"
    """Name or address at which rank pods reach the hub; the hub's certificate is issued for it."""
    hub_port: int = 8443
    hub_ca_secret: str = "deepseekjob-hub-ca"
    """Secret of the release namespace that keeps the hub's certificate authority."""
    metrics_port: int = 8080
    """Serves /metrics, /healthz and /readyz."""
    lease_seconds: float = 30.0
    """A holder that has not renewed for this long may be replaced. It stops writing after two thirds of it."""
    kubeconfig: str | None = None
    """Outside a cluster: path of a kubeconfig file."""
    log_level: str = "INFO"
    receivers: tuple[Receiver, ...] = ()
    """Of CIUIC_ALERT_RECEIVERS: the chart's alerts.receivers, without their Secrets."""
    alerts_folder: str = "/etc/deepseekjob/alerts"
    """Holds a folder for each receiver, with the files `url` and `secret`: its Secret, mounted."""
    exit_hook: ExitHook | None = None
    """Of CIUIC_TEST_EXIT_AT."""

    @property
    def release(self) -> str:
        return f"{self.release_namespace}/{self.release_name}"

    @property
    def hub_url(self) -> str:
        return f"wss://{self.hub_host}:{self.hub_port}{PATH}"


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Raises SettingsError. What is absent or empty has its default."""

    def text(name: str, default: str) -> str:
        return environ.get(name) or default

    release, namespace = (
        text("CIUIC_RELEASE_NAME", "deepseekjob"),
        text("CIUIC_RELEASE_NAMESPACE", "deepseekjob-system"),
    )
    level = text("CIUIC_LOG_LEVEL", "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise SettingsError(f"CIUIC_LOG_LEVEL is {level!r}; write DEBUG, INFO, WARNING or ERROR")
    return Settings(
        release_name=release,
        release_namespace=namespace,
        pod_name=text("CIUIC_POD_NAME", ""),
        pod_uid=text("CIUIC_POD_UID", ""),
        hub_host=text("CIUIC_HUB_HOST", f"{release}.{namespace}.svc"),
        hub_port=_port(environ, "CIUIC_HUB_PORT", 8443),
        hub_ca_secret=text("CIUIC_HUB_CA_SECRET", f"{release}-hub-ca"),
        metrics_port=_port(environ, "CIUIC_METRICS_PORT", 8080),
        lease_seconds=_seconds(environ, "CIUIC_LEASE_SECONDS", 30.0),
        kubeconfig=environ.get("KUBECONFIG") or None,
        log_level=level,
        receivers=_receivers(environ.get("CIUIC_ALERT_RECEIVERS", "")),
        alerts_folder=text("CIUIC_ALERTS_FOLDER", "/etc/deepseekjob/alerts"),
        exit_hook=_exit_hook(environ.get("CIUIC_TEST_EXIT_AT", "")),
    )


def _port(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name) or str(default)
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise SettingsError(f"{name} is {text!r}; write a port from 1 to 65535")
    return int(text)


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name) or str(default)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) or float(text) < 3:
        raise SettingsError(f"{name} is {text!r}; write seconds, at least 3")
    return float(text)


def _receivers(text: str) -> tuple[Receiver, ...]:
    try:
        return receivers(text) if text else ()
    except ValueError as error:
        raise SettingsError(
            f"CIUIC_ALERT_RECEIVERS is {text[:80]!r}; write a JSON list of {{name, type, language}}: {error}"
        ) from error


def _exit_hook(text: str) -> ExitHook | None:
    if not text:
        return None
    found = re.fullmatch(r"(after-persist|after-act)(?::(attempt|nextIncarnation):([0-9]+))?", text)
    if found is None:
        raise SettingsError(
            f"CIUIC_TEST_EXIT_AT is {text!r}; write after-persist or after-act, with :attempt:<n> or :nextIncarnation:<n>"
        )
    point: Literal["after-persist", "after-act"] = "after-persist" if found[1] == "after-persist" else "after-act"
    if found[2] is None:
        return ExitHook(point=point)
    field: Literal["attempt", "nextIncarnation"] = "attempt" if found[2] == "attempt" else "nextIncarnation"
    return ExitHook(point=point, field=field, number=int(found[3]))
