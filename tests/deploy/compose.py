"""Runs the services of deploy/compose/compose.yaml as processes, since few test machines can run containers.

Each service gets a loopback address of its own. In its command and environment, 0.0.0.0 and the names of services become
these addresses, and volumes become folders. Entry points and variables of our images come from docker/Dockerfile.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy/compose/compose.yaml"
START_SECONDS, STOP_SECONDS = 60, 30


def read_image(target: str) -> tuple[list[str], dict[str, str]]:
    """Entry point and environment of a Dockerfile target, including its parent stages."""
    stages: dict[str, tuple[str, list[str]]] = {}
    name = ""
    text = (ROOT / "docker/Dockerfile").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["FROM"] and words[2:3] == ["AS"]:
            name = words[3]
            stages[name] = (words[1], [])
        elif name and words and not line.startswith("#"):
            stages[name][1].append(line)
    entry: list[str] = []
    environment: dict[str, str] = {}
    chain = []
    while target in stages:
        chain.append(target)
        target = stages[target][0]
    for stage in reversed(chain):
        for line in stages[stage][1]:
            kind, _, rest = line.partition(" ")
            if kind == "ENTRYPOINT":
                entry = json.loads(rest)
            elif kind == "ENV":
                environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    return entry, environment


def get(url: str, body: dict | None = None, timeout: float = 30) -> tuple[int, str]:
    """Status and text of an answer; (0, reason) without one."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait_for(what: str, is_so, seconds: float = START_SECONDS):
    """Polls until a function returns something true, and returns it."""
    deadline = time.monotonic() + seconds
    while not (found := is_so()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)
    return found


class Fleet:
    """The services as processes. `programs` are the files to run instead of the images', by image or by program name."""

    def __init__(self, programs: dict[str, Path], folder: Path) -> None:
        self.services: dict = yaml.safe_load(FILE.read_text())["services"]
        self.programs, self.folder = programs, folder
        for name, stated in self.services.items():
            for volume in stated.get("volumes", []):
                source = FILE.parent / volume.split(":")[0]
                assert not volume.startswith(".") or source.exists(), f"{name}: there is no {source}"
        # Of this process alone, so that runs side by side do not meet.
        network = f"127.{1 + os.getpid() // 256 % 254}.{os.getpid() % 256}"
        self.addresses = {name: f"{network}.{number}" for number, name in enumerate(self.services, 1)}
        names = "|".join(map(re.escape, sorted(self.addresses, key=len, reverse=True)))
        # A service's name stands before a port.
        self.host = re.compile(rf"(?<![\w.-])({names})(?=:\d)")
        self.running: dict[str, subprocess.Popen] = {}

    def place(self, service: str, text: str) -> str:
        """Replaces container addresses and folders by local ones."""
        text = text.replace("0.0.0.0", self.addresses[service])
        text = self.host.sub(lambda found: self.addresses[found[1]], text)
        for volume in self.services[service].get("volumes", []):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                source = (FILE.parent / source).resolve()
                if source.is_file() and source.suffix == ".yaml":
                    source = self.copy(service, source)
            else:
                source = self.folder / source
                source.mkdir(exist_ok=True)
            text = re.sub(rf"(?<![\w/.-]){re.escape(target)}(?=$|[/,\s])", str(source), text)
        return text

    def copy(self, service: str, file: Path) -> Path:
        """A configuration file with this machine's addresses, beside the others of its service."""
        folder = self.folder / f"{service}-files"
        folder.mkdir(exist_ok=True)
        placed = folder / file.name
        placed.write_text(self.host.sub(lambda found: self.addresses[found[1]], file.read_text()))
        return placed

    def command(self, service: str) -> tuple[list[str], dict[str, str]]:
        stated = self.services[service]
        target = stated.get("build", {}).get("target")
        entry, environment = read_image(target) if target else ([stated["image"].split(":")[0]], {})
        program, *arguments = [*entry, *stated.get("command", [])]
        if target == "mock-engine":
            arguments = [argument.replace("/usr/share/kvasir", str(ROOT / "tests/tokenizer")) for argument in arguments]
        environment |= stated.get("environment", {})
        environment = {key: self.place(service, value) for key, value in environment.items()}
        own = {
            "nats": ["--addr", self.addresses[service]],
            # Data of one run; its port is at an address of its own, too.
            "prometheus": [f"--web.listen-address={self.addresses[service]}:9090"],
        }.get(service, [])
        placed = [self.place(service, argument) for argument in arguments]
        return [str(self.programs[Path(program).name]), *placed, *own], environment

    def start(self, service: str) -> None:
        self.run(service, *self.command(service))

    def run(self, service: str, command: list[str], environment: dict[str, str]) -> None:
        with (self.folder / f"{service}.log").open("a") as log:
            self.running[service] = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.folder)

    def kill(self, service: str) -> None:
        child = self.running.pop(service)
        child.kill()
        child.wait()

    def check(self) -> None:
        for service, child in self.running.items():
            if child.poll() is not None:
                raise SystemExit(f"{service} ended with {child.returncode}:\n{self.log(service)}")

    def log(self, service: str, lines: int = 20) -> str:
        return "\n".join((self.folder / f"{service}.log").read_text().splitlines()[-lines:])

    def url(self, service: str, port: int, path: str = "") -> str:
        return f"http://{self.addresses[service]}:{port}{path}"

    def side_ports(self) -> dict[str, int]:
        """Port of /metrics and /readyz, by service with such a port."""
        ports = {}
        for service, stated in self.services.items():
            _, environment = read_image(stated.get("build", {}).get("target", ""))
            if "HEALTH_PORTS" in environment and "mock" not in stated["image"]:
                ports[service] = int(environment["HEALTH_PORTS"])
        return ports

    def stop(self) -> dict[str, int]:
        """Stops all services in reverse order, and returns their exit codes."""
        codes = {}
        for service in reversed(list(self.running)):
            child = self.running.pop(service)
            child.send_signal(signal.SIGTERM)
            try:
                codes[service] = child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                codes[service] = child.wait()
        return codes


def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kvasir-compose-"))
