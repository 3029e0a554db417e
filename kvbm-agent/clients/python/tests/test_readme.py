"""The README's examples run, and print what it says."""

import pathlib
import re

import pytest
from conftest import AGENT_VARIABLE, Server

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
