"""HTTPS for other devices: this machine's addresses, and a certificate made on the spot.

Browsers give shared memory, WebGPU and the fine clock to secure pages only, and outside this
machine secure means HTTPS. The certificate is this session's own: nobody vouches for it, so the
browser warns, and its fingerprint in the terminal tells that the device talks to this machine.
"""

import datetime
import hashlib
import ipaddress
import shutil
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from driver.errors import LackError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:  # the extra `lan` is not installed; `openssl` may be there
    x509 = None

DAYS = 14
SUBJECT = "driver serve (made on this machine)"

_CONFIG = """[req]
distinguished_name = subject
x509_extensions = extensions
prompt = no
[subject]
CN = {subject}
[extensions]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = {names}
"""


@dataclass(frozen=True)
class Certificate:
    """What a server shows, and how a person recognises it."""

    tls: ssl.SSLContext
    fingerprint: str
    """SHA-256 of the certificate, as browsers show it: `AB:CD:…`."""


def lan_names() -> tuple[str, ...]:
    """The IPv4 addresses by which other devices reach this machine. Raises LackError."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET
    ]
    useful = [
        a for a in found
        if not (ipaddress.ip_address(a).is_loopback or ipaddress.ip_address(a).is_link_local)
    ]  # fmt: skip
    if not useful:
        raise LackError(
            "--lan: this machine has no network address besides loopback; connect it to a network, "
            "or leave out --lan and use a browser on this machine"
        )
    return tuple(dict.fromkeys(useful))


def make_certificate(names: Sequence[str]) -> Certificate:
    """A new key and a certificate for these hosts; neither stays on the disk.

    Raises LackError where neither the package `cryptography` nor the program `openssl` is there.
    """
    with tempfile.TemporaryDirectory(prefix="driver-serve-") as folder:
        cert, key = Path(folder, "cert.pem"), Path(folder, "key.pem")
        if x509:
            _by_package(names, cert, key)
        else:
            _by_openssl(names, cert, key)
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(cert, key)
        der = ssl.PEM_cert_to_DER_cert(cert.read_text())
    digest = hashlib.sha256(der).hexdigest().upper()
    return Certificate(tls, ":".join(digest[at : at + 2] for at in range(0, 64, 2)))


def _by_openssl(names: Sequence[str], cert: Path, key: Path) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise LackError(
            "--lan needs HTTPS, and a certificate is made by the package `cryptography` or by the "
            "program `openssl`; neither is here. Get one of them: "
            "pip install 'browser-train-driver[lan]', or your system's package openssl"
        )
    config = cert.with_name("openssl.cnf")
    alternatives = (f"IP:{n}" if _is_address(n) else f"DNS:{n}" for n in names)
    config.write_text(_CONFIG.format(subject=SUBJECT, names=",".join(alternatives)))
    commands = (
        [program, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key)],
        [program, "req", "-x509", "-new", "-sha256", "-days", str(DAYS), "-config", str(config),
         "-key", str(key), "-out", str(cert)],
    )  # fmt: skip
    for command in commands:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise LackError(
                f"--lan: openssl made no certificate ({done.stderr.strip()[-300:]}); install the "
                "package instead: pip install 'browser-train-driver[lan]'"
            )


def _by_package(names: Sequence[str], cert: Path, key: Path) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SUBJECT)])
    hosts = [
        x509.IPAddress(ipaddress.ip_address(n)) if _is_address(n) else x509.DNSName(n)
        for n in names
    ]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(secret.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # a phone's clock may be behind
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(secret, hashes.SHA256())
    )
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.touch(mode=0o600)
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
