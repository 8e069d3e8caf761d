"""The hub's authority: made once, kept by its Secret, and good for the names that pods are told."""

import base64
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from cryptography import x509

from ciuic_operator.certificates import make_authority, make_server, obtain_authority, server_context
from ciuic_operator.errors import AlreadyExists, OperatorError
from ciuic_operator.kube import Kube

NOW = datetime(2026, 11, 30, tzinfo=UTC)


class Secrets:
    """The Secrets of one namespace."""

    def __init__(self, found: dict[str, Any] | None = None, lose_race: bool = False) -> None:
        self.found = found
        self.lose_race = lose_race
        self.created = 0

    async def get_secret(self, namespace: str, name: str) -> dict[str, Any] | None:
        return self.found

    async def create_secret(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        self.created += 1
        assert "ownerReferences" not in body["metadata"], "it survives upgrade and uninstall"
        if self.lose_race:
            other = make_authority(NOW)
            self.found = {"data": {"tls.crt": encoded(other.certificate_pem), "tls.key": encoded(other.key_pem)}}
            raise AlreadyExists("secrets exists")
        self.found = body
        return body


def encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


async def test_it_is_made_once_and_then_read() -> None:
    secrets = Secrets()
    first = await obtain_authority(cast(Kube, secrets), "ns", "ca", NOW)
    second = await obtain_authority(cast(Kube, secrets), "ns", "ca", NOW + timedelta(days=300))
    assert first == second and secrets.created == 1
    certificate = x509.load_pem_x509_certificate(first.certificate_pem)
    assert certificate.not_valid_after_utc - NOW > timedelta(days=3650)
    assert certificate.not_valid_before_utc < NOW, "a node's clock may be behind"


async def test_who_loses_the_race_takes_the_winners() -> None:
    secrets = Secrets(lose_race=True)
    taken = await obtain_authority(cast(Kube, secrets), "ns", "ca", NOW)
    assert secrets.found is not None and encoded(taken.certificate_pem) == secrets.found["data"]["tls.crt"]


@pytest.mark.parametrize("data", [None, {}, {"tls.crt": ""}])
async def test_a_secret_without_the_keys_is_said(data: dict[str, str] | None) -> None:
    with pytest.raises(OperatorError, match=r"Secret ns/ca holds no .* delete it"):
        await obtain_authority(cast(Kube, Secrets({"data": data})), "ns", "ca", NOW)


@pytest.mark.parametrize("host", ["deepseekjob-hub.ml.svc", "10.88.0.1", "fd00::1"])
def test_the_server_certificate_is_for_the_host(host: str) -> None:
    authority = make_authority(NOW)
    pair = make_server(authority, host, NOW)
    certificate = x509.load_pem_x509_certificate(pair.certificate_pem)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    assert found == [host]
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem)
    certificate.verify_directly_issued_by(issuer)
    assert certificate.not_valid_after_utc == issuer.not_valid_after_utc
    context = server_context(pair)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
