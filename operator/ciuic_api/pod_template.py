"""`spec.podTemplate`: what of it the API server reads and refuses. Part of `job`."""

from typing import Any

from .names import PROTOCOL_ENV
from .schema import cel

_MAP: dict[str, Any] = {
    "type": "object",
    "maxProperties": 64,
    "additionalProperties": {"type": "string", "maxLength": 4096},
}
_ENV_ITEM: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 256}},
    "required": ["name"],
    "x-kubernetes-preserve-unknown-fields": True,
}
_CONTAINER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 63},
        "env": {"type": "array", "maxItems": 128, "items": _ENV_ITEM},
    },
    "required": ["name"],
    "x-kubernetes-preserve-unknown-fields": True,
}
_POD_SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {
        "hostPID": {"type": "boolean"},
        "shareProcessNamespace": {"type": "boolean"},
        "restartPolicy": {"type": "string", "maxLength": 16},
        "containers": {"type": "array", "maxItems": 16, "items": _CONTAINER},
    },
    "x-kubernetes-preserve-unknown-fields": True,
}
_PROTOCOL_NAMES = ", ".join(f"'{name}'" for name in PROTOCOL_ENV)
POD_TEMPLATE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Refines the rank pods: metadata and pod spec are merged over what the operator builds. The container"
    " `trainer` is the one that trains; env given here wins, except names that the protocol owns.",
    "properties": {
        "metadata": {"type": "object", "properties": {"labels": _MAP, "annotations": _MAP}},
        "spec": _POD_SPEC,
    },
    "x-kubernetes-validations": [
        cel(
            "!has(self.spec) || !has(self.spec.hostPID) || !self.spec.hostPID",
            "podTemplate.spec.hostPID must not be true: the agent must be process 1 of its pod; remove it",
        ),
        cel(
            "!has(self.spec) || !has(self.spec.shareProcessNamespace) || !self.spec.shareProcessNamespace",
            "podTemplate.spec.shareProcessNamespace must not be true: the agent must be process 1; remove it",
        ),
        cel(
            "!has(self.spec) || !has(self.spec.restartPolicy)",
            "podTemplate.spec.restartPolicy is set by the operator; remove it",
        ),
        cel(
            "!has(self.spec) || !has(self.spec.containers) || self.spec.containers.all(c, !has(c.env) ||"
            f" c.env.all(e, !(e.name in [{_PROTOCOL_NAMES}])))",
            "podTemplate.spec.containers[].env must not set a name that the operator owns"
            f" ({', '.join(PROTOCOL_ENV)}); remove it",
        ),
    ],
}
"""Hand-written, because CEL cannot look into x-kubernetes-preserve-unknown-fields: what a rule reads is declared here."""
