"""The hub's certificate authority and its server certificate. Used by `__main__` at start.

The authority is made once by the operator that holds the Lease and kept in a Secret without an owner: pods carry it, so
it has to survive upgrades. The server certificate is made anew at each start and exists in memory only.
"""

import base64
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .errors import AlreadyExists, OperatorError
from .kube import JsonObject, Kube

LIFETIME = timedelta(days=3653)
CLOCK_SLACK = timedelta(days=1)
"""A node whose clock is behind must not find the certificate not valid yet."""


@dataclass(frozen=True)
class Pair:
    certificate_pem: bytes
    key_pem: bytes


async def obtain_authority(kube: Kube, namespace: str, secret: str, now: datetime) -> Pair:
    """The authority in the Secret; made and stored when there is none."""
    found = await kube.get_secret(namespace, secret)
    if found is None:
        try:
            found = await kube.create_secret(namespace, _as_secret(namespace, secret, make_authority(now)))
        except AlreadyExists:
            found = await kube.get_secret(namespace, secret)
    data: dict[str, Any] = (found or {}).get("data") or {}
    if "tls.crt" not in data or "tls.key" not in data:
        raise OperatorError(
            f"Secret {namespace}/{secret} holds no tls.crt and tls.key; delete it and restart the operator,"
            " or name another by CIUIC_HUB_CA_SECRET"
        )
    return Pair(base64.b64decode(data["tls.crt"]), base64.b64decode(data["tls.key"]))


def _as_secret(namespace: str, name: str, pair: Pair) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "deepseekjob"}},
        "type": "kubernetes.io/tls",
        "data": {
            "tls.crt": base64.b64encode(pair.certificate_pem).decode(),
            "tls.key": base64.b64encode(pair.key_pem).decode(),
        },
    }


def make_authority(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "deepseekjob hub authority")])
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(name, name, key.public_key(), now, now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def make_server(authority: Pair, host: str, now: datetime) -> Pair:
    """For the name or address that pods are told; it ends with its authority."""
    issuer = x509.load_pem_x509_certificate(authority.certificate_pem)
    issuer_key = serialization.load_pem_private_key(authority.key_pem, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "deepseekjob hub")])
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, issuer.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative_name(host)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def server_context(pair: Pair) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Python's TLS takes certificates from files only; the folder is gone before anybody can connect.
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "server.pem"
        file.touch(mode=0o600)
        file.write_bytes(pair.certificate_pem + pair.key_pem)
        context.load_cert_chain(file)
    return context


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SLACK)
        .not_valid_after(until)
    )


def _key_usage(digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
