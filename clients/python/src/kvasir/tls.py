"""TLS credentials from files."""

import pathlib
from typing import Optional, Union

import grpc

from kvasir.errors import InvalidArgumentError

PathLike = Union[str, pathlib.Path]


def tls_credentials(
    ca: PathLike,
    *,
    cert: Optional[PathLike] = None,
    key: Optional[PathLike] = None,
    token: Optional[str] = None,
) -> grpc.ChannelCredentials:
    """Credentials for https:// targets. The files are read now, once.

    - `ca`: certificates (PEM) of the authorities that signed the servers' certificates
    - `cert`, `key`: certificate and key (PEM) of this client, for servers that demand one
    - `token`: sent with each call, for servers that know identities by tokens
    """
    if (cert is None) != (key is None):
        missing = "cert" if cert is None else "key"
        raise InvalidArgumentError(missing, "is required: give both cert and key, or none")
    chain = None if cert is None else _read("cert", cert)
    private_key = None if key is None else _read("key", key)
    tls = grpc.ssl_channel_credentials(_read("ca", ca), private_key, chain)
    if token is None:
        return tls
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgumentError("token", "must be one word of visible ASCII characters")
    return grpc.composite_channel_credentials(tls, grpc.access_token_call_credentials(token))


def _read(name: str, path: PathLike) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(name, f"cannot be read: {error}") from error
