#!/usr/bin/env bash
# Dynamo's standalone indexer (ai-dynamo 1.6.1) opens 11 file descriptors and 2 threads for each registered engine.
#
# POST /register makes a ZMQ context of its own for each engine, so descriptors and threads grow with the fleet. With the usual
# soft limit of 1,024 descriptors, about 90 engines fit. With a limit of 20,000, /register answered 201 for 2,048 engines, but
# the log alone said that the events of 231 of them were not read. Each engine needs one connection.
#
# Needs Linux, Python 3.11 and the package index: 100 MB and one minute.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip() { "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-warn-conflicts "$@"; }
pip --no-deps ai-dynamo-runtime==1.6.1 ai-dynamo==1.6.1
pip pydantic==2.13.5 uvloop==0.23.0 aiohttp==3.14.5 msgspec==0.23.0 prometheus-client==0.26.0 pyzmq==27.3.0
"$folder/venv/bin/python" - <<'END'
import json, os, socket, subprocess, sys, time, urllib.request

ENGINES = 40
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
program = [sys.executable, "-m", "dynamo.indexer", "--port", str(port), "--threads", "2"]
indexer = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def call(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status


def held():
    return [len(os.listdir(f"/proc/{indexer.pid}/{kind}")) for kind in ("fd", "task")]


def settled():
    """The counts, once they stay the same for a second."""
    last, since = held(), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.1)
        if held() != last:
            last, since = held(), time.monotonic()
    return last


try:
    for _ in range(300):
        try:
            call("/metrics")
            break
        except OSError:
            assert indexer.poll() is None, "the indexer has ended"
            time.sleep(0.1)
    call("/metrics")
    before = settled()
    for engine in range(ENGINES):
        # Nobody listens there, which spares the engine.
        endpoint = f"tcp://127.0.0.1:{20000 + engine}"
        body = {"instance_id": engine, "endpoint": endpoint, "model_name": "m", "block_size": 16}
        assert call("/register", body) == 201
    after = settled()
finally:
    indexer.kill()
    indexer.wait()
descriptors, threads = [(now - then) / ENGINES for then, now in zip(before, after)]
print(f"each engine: {descriptors:.1f} descriptors, {threads:.1f} threads")
# The eleventh is the connection.
assert (round(descriptors), round(threads)) == (10, 2)
END
# Seen on 2026-12-01: each engine: 10.0 descriptors, 2.0 threads. With 1,792 live engines, the process had 19,725 descriptors
# and 3,589 threads.
