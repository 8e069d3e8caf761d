"""`up`, `down`, `status` and starting or stopping one component. Called by __main__.py."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from localcluster import (
    binaries,
    cgroups,
    components,
    configs,
    images,
    machine,
    mounts,
    network,
    packages,
    pki,
    probes,
    s3,
)
from localcluster.components import COMPONENTS
from localcluster.layout import BRIDGE_IP, NODE, S3_ACCESS_KEY, S3_BUCKET, S3_PORT, S3_SECRET_KEY, Layout
from localcluster.output import Failure, progress, say


def up(layout: Layout) -> None:
    """Makes the cluster be there, from whatever state an earlier command or a kill left it in."""
    network.refuse_second(layout)
    packages.ensure(layout, packages.NEEDED)
    binaries.ensure(layout)
    network.claim(layout)
    for folder in (layout.run / "tmp", layout.run / "s3", layout.node_store, layout.log):
        folder.mkdir(parents=True, exist_ok=True)
    machine.remember(layout)
    machine.apply_settings()
    cgroups.create()
    pki.ensure(layout)
    configs.write(layout)
    fresh = not (layout.run / "etcd").exists()
    started = [component.name for component in COMPONENTS if _ensure(layout, component, fresh)]
    for component in COMPONENTS:
        components.wait_ready(layout, component)
    s3.ensure_bucket()
    if started:
        _settle(layout)
        say(f"started {', '.join(started)}")
    say(f"the cluster is up: export KUBECONFIG={layout.kubeconfig} PATH={layout.bin}:$PATH")


def _ensure(layout: Layout, component: components.Component, fresh: bool) -> bool:
    for need in component.needs:
        components.wait_ready(layout, components.named(need))
    if not components.start(layout, component):
        return False
    if component.name == "containerd":
        components.wait_ready(layout, component)
        if fresh and images.remove_containers(layout):
            components.stop(layout, component)  # it has read the containers of an earlier cluster into its memory
            components.start(layout, component)
            components.wait_ready(layout, component)
        images.ensure_pause(layout)
    return True


def _settle(layout: Layout) -> None:
    """Waits for what a first pod needs beyond ready components."""
    kubectl = [str(layout.bin / "kubectl"), "--kubeconfig", str(layout.kubeconfig)]
    manifest = layout.config / "dns.yaml"
    applied = subprocess.run(
        [*kubectl, "apply", "--server-side", "--force-conflicts", "-f", str(manifest)], capture_output=True, text=True
    )
    if applied.returncode != 0:
        raise Failure(f"kubectl refused {manifest}: {applied.stderr.strip()}; run `up` again")
    with progress("service account and cluster DNS") as step:
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        components.wait(layout, "controller-manager", lambda: probes.api(layout, account)[0], step)
        components.wait(layout, "proxy", lambda: probes.service_dns(layout), step)


def down(layout: Layout, purge: bool) -> None:
    """Ends the cluster and removes everything of it but cached programs and (without `purge`) images."""
    owner = network.owner()
    if owner is not None and owner != layout.run:
        say(f"the cluster on this machine is of {owner}; it is left alone")
    else:
        for component in reversed(COMPONENTS):
            with progress(f"{component.name} stopped") as step:
                components.stop(layout, component)
                if component.name == "kubelet":  # nothing starts pods again, and containerd still sees them end
                    step.tick("ending the pods")
                    cgroups.kill([f"{cgroups.GROUP}/kubepods", cgroups.BUILDKIT])
        cgroups.kill([cgroups.GROUP])
        mounts.unmount_below(layout.cache)
        network.delete_interfaces()
        network.clean_rules()
        cgroups.remove()
        machine.restore(layout)
    _delete(layout.run)
    if purge:
        _delete(layout.node_store)
    say(f"the cluster is gone; kept in {layout.cache}: programs{'' if purge else ' and images (--purge removes them)'}")


def _delete(folder: Path) -> None:
    """Deletes a folder, but never through a mount into what is mounted there."""
    mounted = mounts.below(folder)
    if mounted:
        raise Failure(f"{mounted[0]} is still mounted, so {folder} is not deleted; unmount it and run `down` again")
    if folder.exists():
        shutil.rmtree(folder)


def status(layout: Layout) -> bool:
    """Prints one line per component; True when all are ready."""
    owner = network.owner()
    if owner is None:
        print("no cluster on this machine; `python3 deploy/localcluster up` makes one")
        return False
    if owner != layout.run:
        print(f"the cluster on this machine is of {owner}")
        return False
    healthy = True
    for component in COMPONENTS:
        record = components.running(layout, component)
        why = component.probe(layout) if record else "is not running"
        healthy = healthy and not why
        process = f"process {record.pid}" if record else "-"
        print(f"{component.name:<20} {process:<16} {why or 'ready'}")
        if why:
            print(f"{'':<20} log: {component.log_file(layout)}")
    print(f"kubeconfig  {layout.kubeconfig}\nprograms    {layout.bin}")
    print(f"S3          http://{BRIDGE_IP}:{S3_PORT}/{S3_BUCKET}  key {S3_ACCESS_KEY}  secret {S3_SECRET_KEY}")
    why, body = probes.api(layout, f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}&limit=500")
    if not why:
        print(f"pods        {len(json.loads(body)['items'])} on {NODE}")
    if not healthy:
        print("`python3 deploy/localcluster up` starts what does not run")
    return healthy


def start_one(layout: Layout, name: str) -> None:
    """Starts one component of the live cluster and waits until it is ready."""
    _must_be_ours(layout)
    component = components.named(name)
    if components.start(layout, component):
        components.wait_ready(layout, component)
    say(f"{name} is ready")


def stop_one(layout: Layout, name: str) -> None:
    """Stops one component of the live cluster; its data stay."""
    _must_be_ours(layout)
    stopped = components.stop(layout, components.named(name))
    say(f"{name} is stopped" if stopped else f"{name} was not running")


def _must_be_ours(layout: Layout) -> None:
    network.refuse_second(layout)
    if network.owner() is None:
        raise Failure("there is no cluster on this machine; `python3 deploy/localcluster up` makes one")
