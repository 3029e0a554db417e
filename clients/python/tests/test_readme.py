"""The examples in the documents run, and print what the documents show."""

import ast
import asyncio
import importlib.resources
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any, Optional

import pytest
from conftest import AGENT_VARIABLE, REPOSITORY, Routers, Server
from grpc_tools import protoc
from test_publisher import TOKENS
from test_routing import by_worker, register

from kvasir import Indexer, Router

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)


def run(example: str, target: str, served: str) -> None:
    """Runs an example with the target of a process that this test has started."""
    assert target in example
    exec(compile(example.replace(target, served), str(README), "exec"), {})


def test_the_examples_run(
    server: Server, routers: Routers, capsys: pytest.CaptureFixture[str]
) -> None:
    text = README.read_text()
    find, route, reservation, _, loads, blocks, wire = examples()

    def check_printed() -> None:
        printed = capsys.readouterr().out.strip()
        assert printed
        assert f"prints `{printed}`" in text

    run(find, "127.0.0.1:50051", server.target)
    check_printed()

    with Indexer(server.target) as indexer:
        indexer.register_worker("llama", "gpu-0", 16)
    router = routers()
    run(route, "127.0.0.1:50053", router.target)
    check_printed()
    asyncio.run(run_reservation(reservation, router))

    identity = ["--worker-id", "gpu-0", "--model", "llama", "--block-size", "16"]
    indexers = ["--indexers", f"http://{server.target}"]
    keeper = ["--blocks-host", "bytes=64KiB", "--blocks-geometry", "bytes=4096"]
    agent = Server(*identity, *indexers, *keeper, variable=AGENT_VARIABLE)
    try:
        run(loads, "127.0.0.1:50052", agent.target)
        check_printed()
        run(blocks, "127.0.0.1:50052", agent.target)
        first, second = capsys.readouterr().out.splitlines()
        assert first == second
        assert f"prints `{first}` twice" in text
    finally:
        agent.kill()

    exec(compile(wire, str(README), "exec"), {})
    assert capsys.readouterr().out.count("tcp://127.0.0.1:") == 2


async def run_reservation(example: str, process: Server) -> None:
    """Runs the example with what it takes from the one before."""
    sent = []

    async def send(worker_id: str, dp_rank: int, tokens: Sequence[int]) -> AsyncIterator[int]:
        for token in tokens:
            sent.append((worker_id, dp_rank, token))
            yield token

    async with Router(process.target, "llama") as router:
        names = {"router": router, "prompt": [1, 2, 3], "send": send}
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        await eval(compile(example, str(README), "exec", flags=flags), names)
        assert sent == [("gpu-0", 0, 1), ("gpu-0", 0, 2), ("gpu-0", 0, 3)]
        assert [rank.routed.requests for rank in (await router.loads()).ranks] == [0]


async def test_the_example_with_a_prefill_worker_runs(server: Server, routers: Routers) -> None:
    register(server, "worker-0", "DECODE", "a")
    register(server, "worker-1", "PREFILL", "a")
    computed: list[str] = []

    async def compute(worker_id: str, dp_rank: int, tokens: Sequence[int]) -> str:
        computed.append(worker_id)
        if len(computed) == 2:
            raise ConnectionResetError(worker_id)
        return "transfer"

    async def finish(
        worker_id: str, dp_rank: int, tokens: Sequence[int], transfer: Optional[str]
    ) -> tuple[str, Optional[str]]:
        return worker_id, transfer

    process = routers("--remote-prefill-tokens-min", "1")
    async with Router(process.target, "model") as router:
        names: dict[str, Any] = {"router": router, "compute": compute, "finish": finish}
        exec(compile(examples()[3], str(README), "exec"), names)
        assert await names["generate"](TOKENS) == ("worker-0", "transfer")
        # The second time, the prefill worker fails.
        assert await names["generate"](TOKENS) == ("worker-0", None)
        assert computed == ["worker-1"] * 2
        assert set(by_worker(await router.loads()).values()) == {(0, 0, 0)}


def test_the_contracts_client_runs(server: Server, tmp_path: pathlib.Path) -> None:
    text = (REPOSITORY / "proto/README.md").read_text()
    (client,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert "127.0.0.1:50051" in client
    script = tmp_path / "client.py"
    script.write_text(client.replace("127.0.0.1:50051", server.target))
    known = importlib.resources.files("grpc_tools") / "_proto"
    command = ["protoc", f"-I{REPOSITORY}/proto", f"-I{known}"]
    command += [f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}"]
    files = [f"kvasir/v1/{name}.proto" for name in ["types", "indexer", "ingest"]]
    assert protoc.main([*command, *files]) == 0
    # Without these, Python would find the installed package first.
    for package in ["kvasir", "kvasir/v1"]:
        (tmp_path / package / "__init__.py").touch()
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"\n{done.stdout}```" in text
