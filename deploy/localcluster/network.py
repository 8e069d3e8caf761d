"""The bridge, which also marks whose cluster this machine runs, and the removal of what CNI and kube-proxy left.

The marker is the bridge's alias, kept by the kernel: it is there exactly as long as the bridge is, whatever happens to
files, and a second cluster (which would share the bridge, the ports and kube-proxy's chains) reads it and refuses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

from localcluster.layout import BRIDGE, BRIDGE_IP, POD_CIDR, Layout
from localcluster.output import Failure

ALIAS = "deepseekjob:"
TABLES = ("iptables", "ip6tables")
OWN_CHAINS = re.compile(r"^(KUBE-|CNI-)")


def owner() -> Path | None:
    """The run folder of the cluster on this machine, or None when there is no cluster."""
    alias = Path(f"/sys/class/net/{BRIDGE}/ifalias")
    if not alias.exists():
        return None
    deadline = time.monotonic() + 2
    while True:  # the other one may be between making the bridge and naming it
        text = alias.read_text().strip() if alias.exists() else ""
        if text.startswith(ALIAS):
            return Path(text.removeprefix(ALIAS))
        if time.monotonic() > deadline:
            raise Failure(
                f"the network interface {BRIDGE} exists and is not of a DeepSeekJob cluster; "
                f"remove it with `ip link delete {BRIDGE}` if nothing needs it, then run again"
            )
        time.sleep(0.05)


def refuse_second(layout: Layout) -> None:
    """Refuses when another cluster is on this machine."""
    first = owner()
    if first is not None and first != layout.run:
        raise Failure(
            f"this machine already runs the cluster of {first}, and one machine holds one cluster; "
            f"use that one, or end it with `DEEPSEEKJOB_CACHE={first.parent} python3 deploy/localcluster down`"
        )


def claim(layout: Layout) -> None:
    """Makes the bridge in our name, or completes it."""
    refuse_second(layout)
    if owner() is None:
        _ip("link", "add", "name", BRIDGE, "type", "bridge")
        _ip("link", "set", BRIDGE, "alias", f"{ALIAS}{layout.run}")
        refuse_second(layout)
    prefix = POD_CIDR.split("/")[1]
    if f"inet {BRIDGE_IP}/" not in _ip("-4", "addr", "show", "dev", BRIDGE):
        _ip("addr", "add", f"{BRIDGE_IP}/{prefix}", "dev", BRIDGE)
    # Set to itself it is fixed. Else it is the lowest of the ports' and changes as pods come and go, and a pod that has
    # an open connection to another one keeps the old one for as long as that lives: it reaches nothing on the node.
    _ip("link", "set", BRIDGE, "address", Path(f"/sys/class/net/{BRIDGE}/address").read_text().strip())
    _ip("link", "set", BRIDGE, "up")


def delete_interfaces() -> None:
    """Removes the pods' interfaces that hang on the bridge, then the bridge."""
    ports = Path(f"/sys/class/net/{BRIDGE}/brif")
    for port in sorted(ports.iterdir()) if ports.exists() else []:
        # Deleting the network namespace at the other end may remove it at the same time.
        if (Path("/sys/class/net") / port.name).exists():
            subprocess.run(["ip", "link", "delete", port.name], capture_output=True)
    if Path(f"/sys/class/net/{BRIDGE}").exists():
        _ip("link", "delete", BRIDGE)


def cleaning_script(saved: str) -> str:
    """Input for `iptables-restore --noflush` that removes the chains of CNI and kube-proxy, and what jumps to them.

    `saved` is the output of iptables-save; the result is empty when there is nothing to remove.
    """
    script: list[str] = []
    table = ""
    chains: list[str] = []
    rules: list[str] = []

    def close() -> None:
        if chains or rules:
            flush = [f"-F {chain}" for chain in chains]
            delete = [f"-X {chain}" for chain in chains]
            script.extend([f"*{table}", *rules, *flush, *delete, "COMMIT"])

    for line in saved.splitlines():
        if line.startswith("*"):
            table, chains, rules = line[1:], [], []
        elif line.startswith(":"):
            chain = line[1:].split(" ")[0]
            if OWN_CHAINS.match(chain):
                chains.append(chain)
        elif line.startswith("-A "):
            words = line.split(" ")
            target = words[words.index("-j") + 1] if "-j" in words else ""
            if OWN_CHAINS.match(target) and not OWN_CHAINS.match(words[1]):
                rules.append("-D " + line[3:])
        elif line == "COMMIT":
            close()
    return "\n".join(script) + "\n" if script else ""


def clean_rules() -> None:
    """Removes the chains of CNI and kube-proxy from all tables."""
    for command in TABLES:
        if shutil.which(f"{command}-save") is None:
            continue
        saved = subprocess.run([f"{command}-save"], capture_output=True, text=True)
        script = cleaning_script(saved.stdout)
        if script:
            result = subprocess.run([f"{command}-restore", "--noflush"], input=script, capture_output=True, text=True)
            if result.returncode != 0:
                raise Failure(
                    f"`{command}-restore --noflush` refused to remove the cluster's chains: {result.stderr.strip()}; "
                    f"look at `{command}-save` and remove the chains KUBE-* and CNI-* by hand"
                )


def rules_left() -> list[str]:
    """Chains of the cluster that exist, as `iptables CHAIN`."""
    found = []
    for command in TABLES:
        if shutil.which(f"{command}-save") is None:
            continue
        saved = subprocess.run([f"{command}-save"], capture_output=True, text=True).stdout
        names = [line[1:].split(" ")[0] for line in saved.splitlines() if line.startswith(":")]
        found += [f"{command} {name}" for name in names if OWN_CHAINS.match(name)]
    return found


def _ip(*arguments: str) -> str:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if result.returncode != 0:
        raise Failure(f"`ip {' '.join(arguments)}` failed: {result.stderr.strip()}; run as root on a Linux machine")
    return result.stdout
