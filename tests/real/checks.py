"""Runs `kvasir check` on real engines that are named wrongly: each fault must come with its fix."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from fleet import Engine, free_port

# The slowest check waits for events that never come.
CHECK_SECONDS = 180


@dataclass
class Wiring:
    what: str
    spec: str
    expected: list[str]
    passes: bool = False


def wirings(plain: Engine, keyed: Engine, folder: Path) -> list[Wiring]:
    """Right and wrong ways to name two engines, of which the second one demands a key."""
    wrong_key = folder / "wrong-key"
    wrong_key.write_text("no such key\n")
    without_key = keyed.spec.split(",key-file=")[0]
    port = free_port()
    return [
        Wiring("right", plain.spec, ["✓ cache hit", "as predicted"], passes=True),
        Wiring("key", keyed.spec, ["✓ cache hit", "as predicted"], passes=True),
        Wiring("no key", without_key, ["demands a key", "key-file=PATH"]),
        Wiring("wrong key", f"{without_key},key-file={wrong_key}", ["/v1/models answers 401"]),
        Wiring("dead engine", f"http://127.0.0.1:{port}", ["no answer at /v1/models", "start the engine"]),
        Wiring("closed port", f"{plain.url},events=tcp://127.0.0.1:{port}", ["no connection to", "events=tcp://HOST:PORT"]),
        Wiring(
            "another engine's events",
            f"{plain.url},events=tcp://127.0.0.1:{keyed.events}",
            ["no event came", "events=tcp://HOST:PORT"],
        ),
        Wiring("block size", f"{plain.spec},block-size=16", ["16 tokens per block (stated; its /metrics says 32)", "✗ events", "remove block-size=16"]),
        Wiring("model", f"{plain.spec},model=other", ['the engine serves tiny, tiny-too, not "other"', "model=NAME"]),
    ]


def check(kvasir: Path, wiring: Wiring) -> str:
    """Checks one engine. Returns the fault of the answer; nothing if the answer is as expected."""
    command = [str(kvasir), "check", wiring.spec]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_SECONDS)
    is_expected = (done.returncode == 0) == wiring.passes and all(part in done.stdout for part in wiring.expected)
    return "" if is_expected else f"check, {wiring.what}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
