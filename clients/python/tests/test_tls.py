"""TLS: with a certificate on both sides, by the files that a server has."""

import hashlib
import pathlib
import subprocess
from collections.abc import Iterator

import pytest
from conftest import AGENT_VARIABLE, Server

from kvasir import (
    Indexer,
    InvalidArgumentError,
    KvEventPublisher,
    RefusedError,
    RpcError,
    tls_credentials,
)
from kvasir.blocks import BlockManager


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with an authority and a certificate for this machine, made by openssl."""
    folder = tmp_path_factory.mktemp("papers")
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    make_ca = [*new, "-x509", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.pem"]
    names = ["-subj", "/CN=all", "-addext", "subjectAltName=IP:127.0.0.1"]
    by_ca = ["-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "own.key", "-out", "own.pem"]
    usual = ["-addext", "basicConstraints=critical,CA:FALSE"]
    for command in (make_ca, [*new, "-x509", *names, *usual, *by_ca]):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def secured(papers: pathlib.Path) -> Iterator[Server]:
    files = ["--tls-cert", "own.pem", "--tls-key", "own.key", "--tls-client-ca", "ca.pem"]
    flags = [flag if flag.startswith("--") else str(papers / flag) for flag in files]
    server = Server(*flags)
    yield server
    server.kill()


def test_publish_and_find(papers: pathlib.Path, secured: Server) -> None:
    credentials = tls_credentials(
        papers / "ca.pem", cert=papers / "own.pem", key=papers / "own.key"
    )
    target = f"https://{secured.target}"
    with KvEventPublisher(target, "w", "m", 16, credentials=credentials) as publisher:
        publisher.publish_stored(token_ids=list(range(32)), block_hashes=[1, 2])
        publisher.flush(timeout=10)
        with Indexer(target, credentials=credentials) as indexer:
            answer = indexer.find_matches("m", token_ids=list(range(32)), block_size=16)
            assert [match.matched_blocks for match in answer.matches] == [2]


def test_without_a_certificate_nothing_is_answered(papers: pathlib.Path, secured: Server) -> None:
    target = f"https://{secured.target}"
    nameless = tls_credentials(papers / "ca.pem")
    with Indexer(target, credentials=nameless) as indexer, pytest.raises(RpcError):
        indexer.list_workers()
    with Indexer(f"http://{secured.target}") as indexer, pytest.raises(RpcError):
        indexer.list_workers()


def test_a_token_says_who_calls(papers: pathlib.Path) -> None:
    token = "a-token-of-the-test"
    digest = hashlib.sha256(token.encode()).hexdigest()
    identity = f'name = "test"\ntoken-sha256 = "{digest}"\nroles = ["query"]\n'
    (papers / "identities.toml").write_text(f"[[identity]]\n{identity}")
    files = ["--tls-cert", "own.pem", "--tls-key", "own.key", "--identities", "identities.toml"]
    server = Server(*(flag if flag.startswith("--") else str(papers / flag) for flag in files))
    target = f"https://{server.target}"
    try:
        known = tls_credentials(papers / "ca.pem", token=token)
        with Indexer(target, credentials=known) as indexer:
            assert indexer.list_workers() == []
            with pytest.raises(RpcError, match="lacks the role publish"):
                indexer.remove_worker("m", "w")
        for stranger in (None, "another-token"):
            credentials = tls_credentials(papers / "ca.pem", token=stranger)
            refused = pytest.raises(RpcError, match="no identity")
            with Indexer(target, credentials=credentials) as indexer, refused:
                indexer.list_workers()
    finally:
        server.kill()
    with pytest.raises(InvalidArgumentError, match="token"):
        tls_credentials(papers / "ca.pem", token="two words")


def test_blocks_need_the_role_of_their_worker(papers: pathlib.Path, server: Server) -> None:
    text = ""
    engine, reader = 'roles = ["publish"]\nworkers = ["w"]', 'roles = ["query"]'
    for name, roles in [("engine", engine), ("reader", reader)]:
        digest = hashlib.sha256(f"token-of-{name}".encode()).hexdigest()
        text += f'[[identity]]\nname = "{name}"\ntoken-sha256 = "{digest}"\n{roles}\n'
    (papers / "engines.toml").write_text(text)
    files = ["--tls-cert", "own.pem", "--tls-key", "own.key", "--identities", "engines.toml"]
    flags = [flag if flag.startswith("--") else str(papers / flag) for flag in files]
    flags += ["--worker-id", "w", "--model", "m", "--block-size", "4"]
    flags += ["--indexers", f"http://{server.target}"]
    flags += ["--blocks-host", "bytes=16KiB", "--blocks-geometry", "bytes=4096"]
    agent = Server(*flags, variable=AGENT_VARIABLE)
    try:
        for name in ("engine", "reader"):
            known = tls_credentials(papers / "ca.pem", token=f"token-of-{name}")
            with BlockManager(f"https://{agent.target}", credentials=known) as manager:
                if name == "reader":
                    with pytest.raises(RefusedError, match="lacks the role publish"):
                        manager.open_session("m")
                    continue
                with manager.open_session("m") as session:
                    assert len(session.allocate(4)) == 4
        with BlockManager(f"http://{agent.target}") as manager, pytest.raises(RpcError):
            manager.stats()
    finally:
        agent.kill()


def test_what_does_not_go_together_is_refused(papers: pathlib.Path) -> None:
    with pytest.raises(InvalidArgumentError, match="needs credentials"):
        Indexer("https://127.0.0.1:1")
    credentials = tls_credentials(papers / "ca.pem")
    with pytest.raises(InvalidArgumentError, match="has no TLS"):
        Indexer("http://127.0.0.1:1", credentials=credentials)
    with pytest.raises(InvalidArgumentError, match="a socket file has no TLS"):
        BlockManager("unix:/none", credentials=credentials)
    with pytest.raises(InvalidArgumentError, match="key"):
        tls_credentials(papers / "ca.pem", cert=papers / "own.pem")
    with pytest.raises(InvalidArgumentError, match="ca"):
        tls_credentials(papers / "none.pem")
