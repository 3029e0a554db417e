"""TLS credentials from files."""

import pathlib
from typing import Optional, Union

import grpc

from kvasir.errors import InvalidArgumentError

PathLike = Union[str, pathlib.Path]


def tls_credentials(
    ca: PathLike, *, cert: Optional[PathLike] = None, key: Optional[PathLike] = None
) -> grpc.ChannelCredentials:
    """Credentials for https:// targets. The files are read now, once.

    - `ca`: certificates (PEM) of the authorities that signed the servers' certificates
    - `cert`, `key`: certificate and key (PEM) of this client, for servers that demand one
    """
    if (cert is None) != (key is None):
        missing = "cert" if cert is None else "key"
        raise InvalidArgumentError(missing, "is required: give both cert and key, or none")
    chain = None if cert is None else _read("cert", cert)
    private_key = None if key is None else _read("key", key)
    return grpc.ssl_channel_credentials(_read("ca", ca), private_key, chain)


def _read(name: str, path: PathLike) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(name, f"cannot be read: {error}") from error
