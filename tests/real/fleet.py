"""Two real engines, kvasir before them, and the clients that ask: all stopped by their process ids."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What ./engine serves: a model under two names, and a LoRA adapter.
MODEL, OTHER_NAME, ADAPTER = "tiny", "tiny-too", "adapted"
# An engine takes a minute to start on two cores, more beside another one.
START_SECONDS = 600
STOP_SECONDS = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url: str, body: dict | None = None, seconds: float = 30, key: str = "") -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data, headers)
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return answer.read()


def wait_for(what: str, is_true, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds} s: {what}")
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        get(url, seconds=5)
    except (urllib.error.URLError, OSError):
        return False
    return True


class Process:
    """A process with its output in a file."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )

    def check(self) -> None:
        if self.child.poll() is not None:
            end = self.log.read_text(errors="replace")[-2000:]
            raise SystemExit(f"{self.log}: ended with {self.child.returncode}\n{end}")

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Ends the process. An engine has children in its group, which must end, too."""
        if self.child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if how == signal.SIGKILL:
                    os.killpg(self.child.pid, how)
                else:
                    self.child.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()


class Engine:
    """A real vLLM at fixed ports, so that it can start again. With a key, its API demands it."""

    BLOCK_SIZE = 32

    def __init__(
        self, folder: Path, blocks: int, logs: Path, name: str, flags: list[str] | None = None, key: str = ""
    ) -> None:
        self.folder, self.blocks, self.log = folder, blocks, logs / f"{name}.log"
        self.flags, self.key = [*(flags or []), *(["--api-key", key] if key else [])], key
        self.http, self.events = free_port(), free_port()
        # The replay socket has the next port.
        while not is_free(self.events + 1):
            self.events = free_port()
        self.url, self.replay = f"http://127.0.0.1:{self.http}", f"tcp://127.0.0.1:{self.events + 1}"
        self.worker = f"127.0.0.1:{self.http}"
        self.spec = f"{self.url},events=tcp://127.0.0.1:{self.events}"
        if key:
            key_file = logs / f"{name}.key"
            key_file.write_text(f"{key}\n")
            self.spec += f",key-file={key_file}"
        self.start()

    def start(self) -> None:
        ports = [str(self.http), str(self.events), str(self.blocks)]
        self.process = Process([str(HERE / "engine"), str(self.folder), *ports, *self.flags], self.log)

    def ready(self) -> None:
        def is_ready() -> bool:
            self.process.check()
            return answers(f"{self.url}/health")

        wait_for(f"{self.url} answers", is_ready)

    def tokenize(self, body: dict) -> list[int]:
        return json.loads(get(f"{self.url}/tokenize", {"model": MODEL, **body}))["tokens"]

    def reset(self) -> None:
        """Empties the cache. vLLM announces this with its next step, which a short request brings about."""
        get(f"{self.url}/reset_prefix_cache", {})
        get(f"{self.url}/v1/completions", {"model": MODEL, "prompt": "next", "max_tokens": 1}, key=self.key)


class MockEngine:
    """Our mock engine: an exact block cache at the speed of a large accelerator, without a model."""

    BLOCK_SIZE = 16

    def __init__(self, binary: Path, tokenizer: Path, cache_tokens: int, log: Path) -> None:
        self.http, self.events, replay = free_port(), free_port(), free_port()
        self.url, self.replay = f"http://127.0.0.1:{self.http}", f"tcp://127.0.0.1:{replay}"
        self.spec = f"{self.url},events=tcp://127.0.0.1:{self.events},replay={self.replay}"
        command = [str(binary), "--listen", f"127.0.0.1:{self.http}", "--events", f"tcp://127.0.0.1:{self.events}"]
        command += ["--replay", self.replay, "--model", MODEL, "--tokenizer", str(tokenizer)]
        command += ["--block-size", str(self.BLOCK_SIZE), "--cache-tokens", str(cache_tokens)]
        self.process = Process(command, log)

    def ready(self) -> None:
        wait_for(f"{self.url} answers", lambda: answers(f"{self.url}/health"), 60)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Kvasir:
    """`kvasir serve` before engines."""

    def __init__(self, binary: Path, specs: list[str], state: Path, log: Path, mode: str) -> None:
        self.binary, self.specs, self.state, self.log, self.mode = binary, specs, state, log, mode
        self.api, self.side, self.index = (f"127.0.0.1:{free_port()}" for _ in range(3))
        self.start()

    def start(self) -> None:
        ports = ["--listen", self.api, "--http-listen", self.side, "--listen-index", self.index]
        own = ["--checkpoint-dir", str(self.state), "--mode", self.mode, *ports]
        self.process = Process([str(self.binary), "serve", *self.specs, *own], self.log)

    def ready(self) -> None:
        def is_ready() -> bool:
            self.process.check()
            return answers(f"http://{self.side}/readyz")

        wait_for("kvasir is ready", is_ready, 120)

    def problems(self) -> str:
        return get(f"http://{self.side}/readyz").decode()


@contextlib.contextmanager
def stopping(*processes: list) -> Iterator[None]:
    """Stops everything that was started, whatever happens."""
    try:
        yield
    finally:
        for group in processes:
            for started in group:
                started.process.stop()
