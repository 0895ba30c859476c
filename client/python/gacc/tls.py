# SPDX-License-Identifier: Apache-2.0
"""TLS and the token of a gaccd on another machine: the files that the environment names, checked before gRPC gets them, and what is wrong when no
connection comes about. gRPC itself says little of that, and tries again for as long as a call lasts."""
from __future__ import annotations

import os
import socket
import ssl
import time
from typing import Any, NamedTuple, Optional

from .errors import GaccError

NAMES = ("GACC_TLS_CA", "GACC_TLS_CERT", "GACC_TLS_KEY")
LOOK_S, AGAIN_S = 3.0, 0.3  # for each step of a look; between two


def read(variable: str) -> Optional[bytes]:
    """The file that it names; None: it is not set."""
    path = os.environ.get(variable)
    if not path:
        return None
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as e:
        raise GaccError(f"{variable}: {path}: {e.strerror}", reason="IO_ERROR",
                        hint=f"name a file that this process may read, or unset {variable}") from None


def token() -> Optional[str]:
    """The first line of GACC_TOKEN_FILE."""
    found = read("GACC_TOKEN_FILE")
    if found is None:
        return None
    line = (found.splitlines() or [b""])[0].strip()
    if not line or not line.isascii() or not line.decode().isprintable():
        raise GaccError(f"GACC_TOKEN_FILE: {os.environ['GACC_TOKEN_FILE']}: its first line is no token", reason="INVALID_ARGUMENT",
                        hint="it is a copy of gaccd's listen.token_file")
    return line.decode()


class Files(NamedTuple):
    """What the three files have, and a context made of them."""
    authority: bytes
    certificate: bytes
    key: bytes
    context: ssl.SSLContext


def files() -> Optional[Files]:
    """None: without TLS."""
    given = [n for n in NAMES if os.environ.get(n)]
    if not given:
        return None
    if len(given) < len(NAMES):
        lacking = ", ".join(n for n in NAMES if n not in given)
        raise GaccError(f"GACC_TLS_CERT, GACC_TLS_KEY and GACC_TLS_CA go together, but {len(given)} of them {'is' if len(given) == 1 else 'are'} set",
                        reason="INVALID_ARGUMENT", hint=f"set {lacking}, too, or none of them: gaccd asks for a certificate of its clients")
    authority, certificate, private = (read(n) or b"" for n in NAMES)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    ca, cert, key = (os.environ[n] for n in NAMES)
    try:
        context.load_verify_locations(ca)
    except (ssl.SSLError, OSError):
        raise GaccError(f"GACC_TLS_CA: {ca}: no certificate in PEM", reason="INVALID_ARGUMENT", hint="it is the ca.pem of gaccd's cluster") from None
    try:
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, OSError) as e:
        why = "no certificate and key in PEM without a password"
        if getattr(e, "reason", "") == "KEY_VALUES_MISMATCH":
            why = "the key is not that of the certificate"
        raise GaccError(f"GACC_TLS_CERT: {cert}, GACC_TLS_KEY: {key}: {why}", reason="INVALID_ARGUMENT",
                        hint="deploy/make-certs.sh makes both: NAME.pem and NAME.key") from None
    return Files(authority, certificate, private, context)


def look(host: str, port: int, mine: Optional[Files]) -> tuple[bool, Optional[GaccError]]:
    """After a call without an answer: (somebody listens there, what is wrong with TLS). Waits some seconds at most."""
    for _ in range(2):
        try:
            return _handshake(host, port, mine)
        except _Closed:
            time.sleep(AGAIN_S)  # once may be a gaccd that ends
    return True, _refused(f"{host}:{port}", "it closes the connection")


class _Closed(Exception):
    """After a handshake that went well on this side: in TLS 1.3 gaccd judges our certificate then, and says no word."""


def _handshake(host: str, port: int, mine: Optional[Files]) -> tuple[bool, Optional[GaccError]]:
    at, is_done = f"{host}:{port}", False
    try:
        plain = socket.create_connection((host, port), LOOK_S)
    except OSError:
        return False, None
    context = mine.context if mine else _without_checks()
    try:
        plain.settimeout(LOOK_S)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            if not mine:
                return True, _has_tls(at)
            is_done = True
            if not secure.recv(1):
                raise _Closed
    except ssl.SSLCertVerificationError as e:
        return True, _failed(f"gaccd's certificate at {at} is not accepted: {e.verify_message}",
                             "GACC_TLS_CA must be that of gaccd's certificate, which must name the host of the endpoint")
    except ssl.SSLError as e:
        reason = str(e.reason or "")
        if mine and reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return True, _failed(f"gaccd at {at} has no TLS", f"unset {', '.join(NAMES)}, or set tls.cert, tls.key and tls.ca of gaccd")
        if "ALERT" in reason:
            return True, _refused(at, reason.split("ALERT_", 1)[-1].replace("_", " ").lower()) if mine else _has_tls(at)
        if is_done:
            raise _Closed from None
    except socket.timeout:
        pass
    except OSError:  # it closes, as a gaccd that starts or ends
        if is_done:
            raise _Closed from None
    finally:
        plain.close()
    return True, None


def _failed(what: str, hint: str) -> GaccError:
    return GaccError(what, reason="TLS", hint=hint)


def _refused(at: str, said: str) -> GaccError:
    return _failed(f"gaccd at {at} does not accept the certificate in GACC_TLS_CERT, {os.environ.get('GACC_TLS_CERT', '')}: {said}",
                   "it must be of the CA in gaccd's tls.ca, not expired and not revoked")


def _has_tls(at: str) -> GaccError:
    return _failed(f"gaccd at {at} has TLS, and GACC_TLS_CA, GACC_TLS_CERT and GACC_TLS_KEY are not set",
                   "set them: deploy/make-certs.sh DIRECTORY admin/NAME makes the files")


def _without_checks() -> Any:
    """To find out whether there is TLS, and nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context
