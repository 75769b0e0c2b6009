"""`--web.config.file`: a daemon's TLS, in the format of Prometheus' exporters.

Source: https://prometheus.io/docs/prometheus/latest/configuration/https/. What is not supported is refused by its name,
so that no file promises what does not hold.
"""

from __future__ import annotations

import os
import ssl
from typing import Final, Literal

from laggard.kit.config import Settings, parse
from laggard.kit.errors import UsageError
from laggard.kit.tls_server import VERSIONS, ServerTls, ServerTlsSettings

_VERIFY: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


class TlsServerConfig(Settings, frozen=True):
    cert_file: str
    """The daemon's certificate, with those between it and its authority, in PEM. Paths are relative to this file."""
    key_file: str
    """Its key, without a password."""
    client_ca_file: str = ""
    """The authorities of clients' certificates."""
    client_auth_type: Literal["NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"] = "NoClientCert"
    """The rule on whether clients must show a certificate. Prometheus' other two kinds ask for certificates and do not
    check them."""
    client_allowed_sans: tuple[str, ...] = ()
    """The names, where not empty, of which a client's certificate must have one: a DNS name, IP address, email or
    URI."""
    min_version: Literal["TLS12", "TLS13"] = "TLS12"
    max_version: Literal["TLS12", "TLS13"] = "TLS13"


class WebConfig(Settings, frozen=True):
    tls_server_config: TlsServerConfig | None = None


def load_web_config(path: str) -> ServerTls | None:
    """The TLS that the file asks for; None without a file, or where it asks for none. Raises UsageError."""
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}; check --web.config.file") from None
    config = parse(text, WebConfig, path).tls_server_config
    if config is None:
        return None
    try:
        return ServerTls(_settings(config, os.path.dirname(os.path.abspath(path))))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _settings(config: TlsServerConfig, folder: str) -> ServerTlsSettings:
    verify = _VERIFY[config.client_auth_type]
    if (verify != ssl.CERT_NONE) != bool(config.client_ca_file):
        raise UsageError(
            "client_auth_type and client_ca_file belong together: RequireAndVerifyClientCert with the authorities of"
            " clients' certificates, or neither"
        )
    if config.client_allowed_sans and verify == ssl.CERT_NONE:
        raise UsageError("client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert")
    if VERSIONS[config.min_version] > VERSIONS[config.max_version]:
        raise UsageError(f"min_version {config.min_version} is above max_version {config.max_version}")
    return ServerTlsSettings(
        os.path.join(folder, config.cert_file),
        os.path.join(folder, config.key_file),
        os.path.join(folder, config.client_ca_file) if config.client_ca_file else "",
        verify,
        config.client_allowed_sans,
        VERSIONS[config.min_version],
        VERSIONS[config.max_version],
    )
