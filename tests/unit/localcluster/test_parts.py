"""The pure parts: mounts, control groups, versions, signatures, archives, registries, configuration."""

import hashlib
import io
import json
import shutil
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
from localcluster import archives, binaries, cgroups, configs, images, mounts, output, packages, registries, s3
from localcluster.layout import HERE, Layout

MOUNTINFO = r"""21 26 0:20 / /proc rw - proc proc rw
30 26 0:27 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids
31 26 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup rw
40 26 0:40 / /cache/run\040folder/pods/vol rw - tmpfs tmpfs rw
"""


def test_mount_points_with_blanks_are_read() -> None:
    assert mounts.mount_points(MOUNTINFO)[-1] == "/cache/run folder/pods/vol"


def test_all_cgroup_hierarchies_are_found() -> None:
    assert cgroups.hierarchies(MOUNTINFO) == [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified")]


def test_members_of_a_group_and_the_groups_below(tmp_path: Path) -> None:
    (tmp_path / "pod").mkdir()
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "pod" / "cgroup.procs").write_text("7\n8\n0\n")  # 0 is a process outside our process namespace
    assert list(cgroups.members(tmp_path)) == [7, 8]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version devel go1.27-abc", (1, 27, 0)),
        ("gccgo 12", (0, 0, 0)),
    ],
)
def test_go_version(text: str, version: tuple[int, int, int]) -> None:
    assert binaries.go_version(text) == version


def test_the_key_of_a_program_follows_its_version_and_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "HERE", tmp_path)
    (tmp_path / "it").mkdir()
    source = tmp_path / "it" / "main.go"
    source.write_text("1")
    target = binaries.Target("it", "1.0", (".",), local="it")
    keys = {target.key, binaries.Target("it", "1.1", (".",), local="it").key}
    source.write_text("2")
    assert len(keys | {target.key}) == 3


def test_every_go_mod_pins_the_version_that_is_named() -> None:
    for target in binaries.TARGETS:
        if target.local and target.name != "pause":
            assert f"v{target.version}" in (HERE / target.local / "go.mod").read_text()


def test_a_request_is_signed_as_aws_documents_it() -> None:
    """Against an independent signer."""
    botocore_auth = pytest.importorskip("botocore.auth")
    request_class = pytest.importorskip("botocore.awsrequest").AWSRequest
    credentials = pytest.importorskip("botocore.credentials").Credentials("key", "secret")
    moment = datetime.now(UTC)
    request = request_class("PUT", "http://127.0.0.1:7070/ckpt", headers={"X-Amz-Content-SHA256": s3.EMPTY})
    signer = botocore_auth.S3SigV4Auth(credentials, "s3", s3.REGION)
    signer.add_auth(request)
    theirs = datetime.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs((theirs - moment).total_seconds()) < 60
    ours = s3.authorization("PUT", "/ckpt", "127.0.0.1:7070", theirs, "key", "secret")
    assert ours["authorization"] == request.headers["Authorization"]


def test_an_archive_is_a_complete_oci_image(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    layer.write_bytes(b"content")
    out = io.BytesIO()
    archives.write(out, "localhost/it:1", layer, {"Entrypoint": ["/it"]})
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        blobs = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    manifest_of = json.loads(blobs["index.json"])["manifests"][0]
    assert manifest_of["annotations"] == {"io.containerd.image.name": "localhost/it:1"}
    manifest = json.loads(blobs[_path(manifest_of["digest"])])
    assert blobs[_path(manifest["layers"][0]["digest"])] == b"content"
    config = json.loads(blobs[_path(manifest["config"]["digest"])])
    assert config["config"] == {"Entrypoint": ["/it"]}
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(b'content').hexdigest()}"]


def _path(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def test_pips_settings_reach_a_build_and_environment_wins() -> None:
    listing = "global.cert='/c.pem'\nglobal.index-url='http://one.invalid'\n:env:.index-url='http://two.invalid/a b'\n"
    pip = registries.pip_settings(listing)
    assert pip == {"cert": "/c.pem", "index-url": "http://two.invalid/a b"}
    assert registries.shell_assignments(pip, {"HTTPS_PROXY": "p", "SECRET": "s"}).splitlines() == [
        "export PIP_INDEX_URL='http://two.invalid/a b'",
        "export UV_DEFAULT_INDEX='http://two.invalid/a b'",
        "export HTTPS_PROXY=p",
    ]


@pytest.mark.parametrize(
    ("sources", "mirror"),
    [
        ("Types: deb\nURIs: http://mirror.invalid/debian\nSuites: bookworm\n", "http://mirror.invalid/debian"),
        ("deb [signed-by=/k] https://mirror.invalid/debian bookworm main\n", "https://mirror.invalid/debian"),
        ("deb http://mirror.invalid/debian-security bookworm-security main\n", ""),
        ("deb https://packages.invalid/node nodistro main\n", ""),
    ],
)
def test_the_debian_mirror_of_this_machine(sources: str, mirror: str) -> None:
    assert registries.first_mirror(sources) == mirror


def test_a_ca_bundle_that_does_not_exist_is_not_used(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    assert registries.ca_bundle({"cert": "/nowhere"}, {"SSL_CERT_FILE": str(bundle)}) == bundle
    assert registries.ca_bundle({}, {}) is None


def test_every_template_is_filled_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/sbin/runc")
    monkeypatch.setattr(packages, "cni_folder", lambda: Path("/usr/lib/cni"))
    layout = Layout(tmp_path)
    configs.write(layout)
    written = [path for path in layout.config.rglob("*") if path.is_file()]
    assert len(written) == len(list((HERE / "config").iterdir()))
    assert not [path for path in written if "$" in path.read_text()]
    conflist = json.loads((layout.config / "cni" / "bridge.conflist").read_text())
    assert conflist["plugins"][0]["ipam"]["dataDir"] == f"{layout.run}/ipam"


def test_a_failure_shows_the_last_lines_of_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "it.log"
    log.write_text("\n".join(f"line {number}" for number in range(100)))
    output.report(output.Failure("it did not start; start it again", log))
    printed = capsys.readouterr().err
    assert printed.startswith("error: it did not start; start it again\n")
    assert printed.rstrip().endswith("line 99") and "line 80" not in printed


def test_the_base_image_follows_its_package_list(monkeypatch: pytest.MonkeyPatch) -> None:
    before = images.base_name()
    monkeypatch.setattr(images, "BASE_PACKAGES", ("python3",))
    assert images.base_name() != before
