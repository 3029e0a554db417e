"""Routers before engines: kvasir serve, and its peers from PyPI."""

import tempfile
from pathlib import Path

from fleet import MODEL, Kvasir, Process, answers, free_port, get, wait_for

KVASIR, KV_AWARE, SMG, ROUND_ROBIN = "kvasir serve", "vllm-router kv_aware", "smg cache_aware", "vllm-router round_robin"
NAMES = [KVASIR, KV_AWARE, SMG, ROUND_ROBIN]
READY_SECONDS = 120


class Peer:
    """A router that is one process with an OpenAI API."""

    def __init__(self, command: list[str], log: Path) -> None:
        port = free_port()
        self.api = f"127.0.0.1:{port}"
        own = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
        self.process = Process([*command, *own], log)

    def ready(self) -> None:
        def is_ready() -> bool:
            self.process.check()
            return answers(f"http://{self.api}/readiness") or answers(f"http://{self.api}/health")

        wait_for("the router is ready", is_ready, READY_SECONDS)
        body = {"model": MODEL, "prompt": "ready", "max_tokens": 1}

        def serves() -> bool:
            self.process.check()
            try:
                return bool(get(f"http://{self.api}/v1/completions", body))
            except OSError:
                return False

        wait_for("the router serves", serves, READY_SECONDS)


def start(name: str, engines: list, binaries: dict[str, Path], work: Path) -> Kvasir | Peer:
    """Starts a router with the settings that its documentation gives for this case."""
    log = work / f"{name.replace(' ', '-')}.log"
    urls = [engine.url for engine in engines]
    if name == KVASIR:
        state = Path(tempfile.mkdtemp(dir=work))
        return Kvasir(binaries["kvasir"], [engine.spec for engine in engines], state, log, "kv")
    if name == SMG:
        flags = ["launch", "--policy", "cache_aware", "--log-level", "warn", "--worker-urls", *urls]
        return Peer([str(binaries["smg"]), *flags], log)
    policy = "kv_aware" if name == KV_AWARE else "round_robin"
    command = [str(binaries["vllm-router"]), "--policy", policy, "--log-level", "warning", "--worker-urls", *urls]
    if policy == "kv_aware":
        for engine in engines:
            command += ["--kv-event-source", f"{engine.url}=tcp://127.0.0.1:{engine.events}"]
            command += ["--kv-event-replay-source", f"{engine.url}={engine.replay}"]
        command += ["--kv-event-block-size", str(engines[0].BLOCK_SIZE), "--kv-event-model", MODEL]
    return Peer(command, log)
