"""What the operator puts into a rank pod for its agent: one JSON value in CIUIC_AGENT_CONFIG, parsed once.

It holds only what stays true for the pod's life. Slot, attempt and everything else that changes come by directive.
"""

from typing import Any

import msgspec

ENV = "CIUIC_AGENT_CONFIG"
TOKEN_PATH = "/var/run/secrets/ciuic.io/token"
MEMORY_TIER_PATH = "/ciuic/memory"
CACHE_ENV = "CIUIC_CACHE_DIR"


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials come from AWS_ACCESS_KEY_ID and its siblings; the agent takes them out of the ranks' environment."""

    bucket: str
    prefix: str
    """Key prefix of the run, without a slash at its end: `<path>/<run>`."""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    job: str
    job_uid: str
    cluster: str
    incarnation: int
    nodes: int
    ranks_per_node: int
    accelerator: str
    hub_url: str
    """`wss://host:port/v1/agent`"""
    hub_ca_pem: str
    contract: str = ""
    """As `ciuic_api.contract` writes it: manifests of another are refused."""
    command: tuple[str, ...] = ()
    """The researcher's own script; empty for the built-in trainer."""
    training: dict[str, Any] | None = None
    """`spec.training` with its defaults, as the API has it (camelCase): the trainer parses it with ciuic_api.training."""
    store: StoreConfig | None = None
    checkpoint_every_steps: int = 0
    memory_every_steps: int = 0
    memory_tier_bytes: int = 0
    interface: str | None = None
    disable_transparent_huge_pages: bool = False
    prefork: bool = True
    """Ranks are forked from a process that has imported torch and the like; False: each is started by exec."""
    grace_seconds: int = 30


def encode(config: AgentConfig) -> str:
    return msgspec.json.encode(config).decode()


def decode(text: str) -> AgentConfig:
    return msgspec.json.decode(text, type=AgentConfig)
