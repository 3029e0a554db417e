"""The examples in the documents run, and print what the documents show."""

import importlib.resources
import os
import pathlib
import re
import subprocess
import sys

import pytest
from conftest import AGENT_VARIABLE, REPOSITORY, Server
from grpc_tools import protoc

README = pathlib.Path(__file__).resolve().parents[1] / "README.md"


def test_the_examples_run(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text()
    find, loads, wire = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    assert "127.0.0.1:50051" in find
    exec(compile(find.replace("127.0.0.1:50051", server.target), str(README), "exec"), {})
    printed = capsys.readouterr().out.strip()
    assert printed
    assert f"prints `{printed}`" in text
    identity = ["--worker-id", "gpu-0", "--model", "llama", "--block-size", "16"]
    indexers = ["--indexers", f"http://{server.target}"]
    agent = Server(*identity, *indexers, variable=AGENT_VARIABLE)
    try:
        assert "127.0.0.1:50052" in loads
        exec(compile(loads.replace("127.0.0.1:50052", agent.target), str(README), "exec"), {})
    finally:
        agent.kill()
    printed = capsys.readouterr().out.strip()
    assert printed
    assert f"prints `{printed}`" in text
    exec(compile(wire, str(README), "exec"), {})
    assert capsys.readouterr().out.count("tcp://127.0.0.1:") == 2


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
