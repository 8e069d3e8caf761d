"""kopf's side: it watches DeepSeekJobs and tells the reconciler, nothing else. Used by `__main__`.

Only `on.event`: it writes nothing to the object. Daemons, timers and change handlers would add finalizers or
annotations, and a job with a finalizer could not be deleted while the operator is down.
"""

import dataclasses
import logging
import os
from typing import Any

import kopf

from ciuic_api import GROUP, PLURAL, VERSION

from .reconcile import Reconciler


async def job_event(event: dict[str, Any], memo: kopf.Memo, **_: Any) -> None:
    reconciler: Reconciler = memo.reconciler
    body = event["object"]
    if event["type"] == "DELETED":
        reconciler.job_gone(body["metadata"]["uid"])
    else:
        reconciler.job_seen(body, from_stream=True)


def registry(kubeconfig: str | None) -> kopf.OperatorRegistry:
    """kopf asks for credentials anew whenever the server refuses the ones it has."""
    handlers = kopf.OperatorRegistry()
    kopf.on.event(GROUP, VERSION, PLURAL, id="job_event", registry=handlers)(job_event)
    login = service_account if kubeconfig is None else kopf.login_with_kubeconfig
    kopf.on.login(id="login", registry=handlers)(login)
    return handlers


def service_account(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """At the address that our own client uses: kopf's default is a name, which needs a cluster DNS that works."""
    found = kopf.login_with_service_account(**kwargs)
    if found is None:
        return None
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return dataclasses.replace(found, server=f"https://{address}")


def settings() -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    chosen.peering.standalone = True
    chosen.posting.enabled = False
    chosen.scanning.disabled = True
    chosen.watching.server_timeout = 290
    chosen.watching.connect_timeout = 10
    chosen.watching.reconnect_backoff = 1
    chosen.watching.chunk_size = 500
    chosen.networking.request_timeout = 30
    chosen.networking.connect_timeout = 5
    chosen.networking.error_backoffs = [0.5, 1, 2, 4, 8, 15]
    chosen.process.ultimate_exiting_timeout = 25
    logging.getLogger("kopf").setLevel(logging.WARNING)
    return chosen
