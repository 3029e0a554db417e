"""Fixtures: a real indexer-server, real kvbm-agents and routers, which tests start and kill."""

import asyncio
import inspect
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Callable, Optional, TypeVar

import pytest

# Tests start servers while connections are open: gRPC's fork hooks would interfere.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from kvasir import Indexer, KvasirError, KvEventPublisher

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
SERVER_VARIABLE = "KVASIR_INDEXER_SERVER"
AGENT_VARIABLE = "KVASIR_KVBM_AGENT"
ROUTER_VARIABLE = "KVASIR_ROUTER"
START_SECONDS = 30.0
WAIT_SECONDS = 30.0
_LISTENING = re.compile(r"grpc=(127\.0\.0\.1:\d+) http=(127\.0\.0\.1:\d+)")

Answer = TypeVar("Answer")


def wait_until(what: str, query: Callable[[], Answer], is_done: Callable[[Answer], bool]) -> Answer:
    """Repeats a query until its answer is as expected. Fails with the last answer."""
    deadline = time.monotonic() + WAIT_SECONDS
    pause = threading.Event()
    while True:
        answer = query()
        if is_done(answer):
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {WAIT_SECONDS} s; last: {answer}")
        pause.wait(0.02)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Optional[bool]:
    """Runs a test that is a coroutine, in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(test, WAIT_SECONDS))
    return True


class Server:
    """A server, agent or router as a child process. It keeps its port across restarts."""

    def __init__(self, *flags: str, variable: str = SERVER_VARIABLE) -> None:
        binary = os.environ.get(variable)
        if not binary:
            raise RuntimeError(f"set {variable} to the path of the binary")
        self._binary = binary
        self._flags = flags
        self.target = self.http = "127.0.0.1:0"
        self._process: Optional[subprocess.Popen[str]] = None
        self.start()

    def start(self) -> None:
        command = [self._binary, "--listen", self.target, "--http-listen", "127.0.0.1:0"]
        command += ["--log-format", "text", "--log-filter", "info", *self._flags]
        lines: Queue[Optional[str]] = Queue()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._process = process
        self._reader = threading.Thread(target=self._read, args=(process, lines))
        self._reader.start()
        output: list[str] = []
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                line = lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except Empty:
                line = None
            if line is None:
                self.kill()
                raise AssertionError("the server does not listen:\n" + "".join(output))
            output.append(line)
            plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
            found = _LISTENING.search(plain)
            if found:
                self.target, self.http = found.groups()
                return

    @staticmethod
    def _read(process: "subprocess.Popen[str]", lines: "Queue[Optional[str]]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGSTOP:
            # Some of its threads may run on for a moment.
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def kill(self) -> None:
        """Sends SIGKILL. Nothing is on disk, so the next start is empty."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.kill()


Agents = Callable[..., Server]


@pytest.fixture
def agents(server: Server) -> Iterator[Agents]:
    """Starts agents, each for one worker of model "model", that publish to the server."""
    started: list[Server] = []

    def start(worker_id: str = "worker-0", *flags: str) -> Server:
        identity = ["--worker-id", worker_id, "--model", "model", "--block-size", "4"]
        indexers = ["--indexers", f"http://{server.target}"]
        agent = Server(*identity, *indexers, *flags, variable=AGENT_VARIABLE)
        started.append(agent)
        return agent

    yield start
    for agent in started:
        agent.kill()


BLOCK_BYTES = 4_096
HOST_BLOCKS = 16
DISK_BLOCKS = 128

Keepers = Callable[..., Server]


def block_flags(folder: pathlib.Path, disk_blocks: int = DISK_BLOCKS) -> list[str]:
    """The options of an agent with host memory, a disk file and a socket file."""
    options = {
        "host": f"bytes={HOST_BLOCKS * BLOCK_BYTES}",
        "geometry": f"bytes={BLOCK_BYTES},dtype=float16",
        "disk": f"file={folder / 'disk'},bytes={disk_blocks * BLOCK_BYTES}",
        "socket": folder / "socket",
    }
    return [part for name, value in options.items() for part in (f"--blocks-{name}", str(value))]


@pytest.fixture
def keepers(agents: Agents, tmp_path: pathlib.Path) -> Keepers:
    """Starts an agent with a block manager, and further options."""

    def start(*options: str) -> Server:
        return agents("worker-0", *block_flags(tmp_path), *options)

    return start


@pytest.fixture
def indexer(server: Server) -> Iterator[Indexer]:
    with Indexer(server.target) as client:
        yield client


Routers = Callable[..., Server]


def is_ready(process: Server) -> bool:
    """Whether its side port says so."""
    try:
        with urllib.request.urlopen(f"http://{process.http}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        # Its body is a file, which must be closed.
        error.close()
        return False


@pytest.fixture
def routers(server: Server) -> Iterator[Routers]:
    """Starts routers that ask the server, and waits until they know its workers."""
    started: list[Server] = []

    def start(*flags: str) -> Server:
        indexer = ["--indexer", f"http://{server.target}"]
        router = Server(*indexer, *flags, variable=ROUTER_VARIABLE)
        started.append(router)
        wait_until("readiness", lambda: is_ready(router), bool)
        return router

    yield start
    for router in started:
        router.kill()


Publishers = Callable[..., KvEventPublisher]


@pytest.fixture
def publishers(server: Server) -> Iterator[Publishers]:
    """Makes publishers, for the server unless they have a target, and shuts them down."""
    created: list[KvEventPublisher] = []

    def make(
        worker_id: str = "worker-0",
        block_size: int = 4,
        target: Optional[str] = None,
        **options: object,
    ) -> KvEventPublisher:
        publisher = KvEventPublisher(
            server.target if target is None else target,
            worker_id,
            "model",
            block_size,
            **options,  # type: ignore[arg-type]
        )
        created.append(publisher)
        return publisher

    yield make
    for publisher in created:
        try:
            publisher.shutdown(1.0)
        except KvasirError:
            # These tests are not about events that could not be delivered.
            continue
