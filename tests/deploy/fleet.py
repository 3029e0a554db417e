"""Runs the fleet of deploy/compose/compose.yaml as processes, loses parts of it, and reads its dashboards:

    fleet.py --kvasir BINARY --mock-engine BINARY --nats BINARY --prometheus BINARY [--regenerate]

Prompts are answered from the cache while a replica of each shard is dead, and while NATS is. Each query of the dashboards
and rules is answered by Prometheus, which scrapes the programs. docs/reference/metrics.md has all of their metrics
(--regenerate writes it). At the end, all programs stop with exit code 0.
"""

import argparse
import json
import re
import sys
import time
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path

import yaml

from compose import ROOT, Fleet, folder, get, wait_for

METRICS = ROOT / "docs/reference/metrics.md"
# A service of each program, and its side port.
# An agent with everything on, for its metrics.
FULL_AGENT = "full-agent"
PROGRAMS = {"indexer-server": ("index-0-a", 9091), "router": ("router-a", 9093), "gateway": ("gateway", 9094), "kvbm-agent": (FULL_AGENT, 9092)}
CHART_FILES = ROOT / "deploy/chart/files"
# No package has Grafana.
NOT_RUN = {"grafana"}
INDEXES = ["index-0-a", "index-0-b", "index-1-a", "index-1-b"]
WORKERS = 2
# Default of the router's --worker-health, and a reserve.
SLOW_START_SECONDS = 32


def ask(fleet: Fleet, prompt: str) -> int:
    """Sends a prompt to the gateway; returns its tokens that the engine had cached."""
    body = {"model": "mock", "prompt": prompt, "max_tokens": 2}
    status, text = get(fleet.url("gateway", 8000, "/v1/completions"), body)
    if status != 200:
        raise SystemExit(f"status {status}: {text}\n{fleet.log('gateway')}")
    return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def worker_of(fleet: Fleet, text: str) -> str:
    """The worker that answers a prompt."""
    body = json.dumps({"model": "mock", "prompt": prompt(0).replace("prompt", text), "max_tokens": 2}).encode()
    request = urllib.request.Request(fleet.url("gateway", 8000, "/v1/completions"), body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["x-kvasir-worker"]


def prompt(number: int) -> str:
    return f"prompt {number}: " + "the cache of an engine holds what it has computed " * 12


def is_ready(fleet: Fleet, service: str, port: int) -> bool:
    fleet.check()
    return get(fleet.url(service, port, "/readyz"))[0] == 200


def metric(fleet: Fleet, service: str, port: int, start: str) -> float:
    """Sum of the samples whose lines begin like this."""
    lines = get(fleet.url(service, port, "/metrics"))[1].splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(start))


def states(fleet: Fleet) -> Counter:
    """Ranks by state, over all index servers."""
    found = Counter()
    for index in INDEXES:
        lines = get(fleet.url(index, 9091, "/metrics"))[1].splitlines()
        for line in lines:
            if line.startswith('kvasir_worker_state{model="mock"') and line.endswith(" 1"):
                found[line.split('state="')[1].split('"')[0]] += 1
    return found


def wait_until_exact(fleet: Fleet, when: str) -> None:
    """Waits until the workers of each shard are EXACT at both replicas."""
    try:
        wait_for(f"all replicas are exact {when}", lambda: states(fleet) == {"exact": 2 * WORKERS})
    except SystemExit as late:
        raise SystemExit(f"{late}: {dict(states(fleet))}") from late


def fill(fleet: Fleet) -> None:
    """Both engines hold prompts, and the index knows them. Before its first event, an engine is unknown to the index."""
    served: set[str] = set()

    def have_served() -> bool:
        served.add(worker_of(fleet, f"first {time.monotonic_ns()}"))
        return len(served) == WORKERS

    # A router spares workers that came later for a while.
    wait_for("all engines have served", have_served)
    for number in range(6):
        ask(fleet, prompt(number))
    wait_for("prompts are found", lambda: all(ask(fleet, prompt(number)) > 0 for number in range(6)))
    wait_until_exact(fleet, "at the start")


def check_losses(fleet: Fleet) -> None:
    # One replica of each shard.
    for index in ("index-0-a", "index-1-b"):
        fleet.kill(index)
    for number in range(6):
        assert ask(fleet, prompt(number)) > 0, f"prompt {number} is not found without a replica"
    for index in ("index-0-a", "index-1-b"):
        fleet.start(index)
    wait_until_exact(fleet, "after their restart")
    fleet.kill("nats")
    for number in range(6):
        assert ask(fleet, prompt(number)) > 0, f"prompt {number} is not found without NATS"
    fleet.start("nats")
    connected = lambda: all(metric(fleet, index, 9091, "kvasir_broker_connected") == 1 for index in INDEXES)
    wait_for("NATS is back", connected)
    for number in range(6, 12):
        ask(fleet, prompt(number))
    wait_for("new prompts are found", lambda: all(ask(fleet, prompt(number)) > 0 for number in range(6, 12)))
    wait_until_exact(fleet, "after NATS's restart")


def query(fleet: Fleet, expression: str) -> list:
    at = fleet.url("prometheus", 9090, "/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
    status, text = get(at)
    answer = json.loads(text) if text.startswith("{") else {}
    if status != 200 or answer.get("status") != "success":
        raise SystemExit(f"{expression}: {status} {text}")
    return answer["data"]["result"]


def check_queries(fleet: Fleet) -> None:
    """Checks that Prometheus scrapes all programs, answers all queries, and has data for the dashboards."""
    programs = len(fleet.side_ports())
    wait_for("all programs are scraped", lambda: len(query(fleet, 'up{job=~"kvasir-.*"} == 1')) == programs)
    boards = [json.loads(file.read_text()) for file in sorted((CHART_FILES / "dashboards").glob("*.json"))]
    assert boards, "no dashboards"
    panels = [panel for board in boards for panel in board["panels"]]
    # By title and query; true where an answer may be empty.
    waiting = {
        (panel["title"], target["expr"].replace("$__rate_interval", "1m")): panel["description"].endswith("Usually empty.")
        for panel in panels
        for target in panel["targets"]
    }

    def are_answered() -> bool:
        # A rate needs events between two scrapes.
        ask(fleet, prompt(time.monotonic_ns()))
        for (title, expression), may_be_empty in list(waiting.items()):
            if query(fleet, expression) or may_be_empty:
                del waiting[title, expression]
        return not waiting

    try:
        wait_for("data of all panels", are_answered)
    except SystemExit as late:
        raise SystemExit(f"{late}: {list(waiting)}") from late
    rules = [rule for group in yaml.safe_load((CHART_FILES / "rules.yaml").read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        query(fleet, rule["expr"])
    loaded = json.loads(get(fleet.url("prometheus", 9090, "/api/v1/rules"))[1])["data"]["groups"]
    assert sum(len(group["rules"]) for group in loaded) == len(rules), loaded
    print(f"{len(panels)} panels have data, {len(rules)} rules are evaluated, {programs} programs are scraped")


def start_full_agent(fleet: Fleet) -> None:
    """Starts an agent with a journal and blocks in memory, which publishes storage events."""
    address = fleet.addresses["nats"].rsplit(".", 1)[0] + ".200"
    fleet.addresses[FULL_AGENT] = address
    source = "endpoint=tcp://127.0.0.1:9,replay=tcp://127.0.0.1:9"
    flags = {
        "worker-id": FULL_AGENT,
        "model": "other",
        "block-size": "16",
        "engine": "vllm",
        "source": source,
        "blocks-host": "bytes=16MiB",
        "blocks-geometry": "bytes=4096",
        "journal-dir": str(fleet.folder / "journal"),
        "storage-events": "true",
        "nats-url": f"nats://{fleet.addresses['nats']}:4222",
        "nats-delivery": "jetstream",
        "listen": f"{address}:50052",
        "http-listen": f"{address}:9092",
    }
    command = [str(fleet.programs["kvasir"]), "agent", "--consolidate", *(f"--{name}={value}" for name, value in flags.items())]
    fleet.run(FULL_AGENT, command, {})
    wait_for(f"{FULL_AGENT} has metrics", lambda: get(fleet.url(FULL_AGENT, 9092, "/metrics"))[0] == 200)


def check_names() -> None:
    """Rules and dashboards name metrics that the programs have: the part after the program's prefix stands in the sources."""
    files = [CHART_FILES / "rules.yaml", *(CHART_FILES / "dashboards").glob("*.json")]
    named = {name for file in files for name in re.findall(r"kvasir_\w+", file.read_text())}
    folders = ("indexer-server", "router-client", "kvbm-agent", "kit")
    sources = "".join(file.read_text() for folder in folders for file in (ROOT / folder).rglob("*.rs"))
    table = METRICS.read_text()
    for name in sorted(named):
        base = re.sub(r"_(total|bucket|sum|count)$", "", name.removeprefix("kvasir_"))
        part = re.sub(r"_(seconds|bytes|tokens)$", "", re.sub(r"^(agent|router|gateway)_", "", base))
        parts = {part, part.removeprefix("blocks_"), part.removeprefix("storage_"), part.removeprefix("blocks_peer_")}
        known = f"| `{base}` |" in table or any(f'"{prefix}{at}"' in sources for at in parts for prefix in ("", "agent_"))
        assert known, f"{name} is no metric"


def table(fleet: Fleet) -> str:
    """All metrics, with their kinds, help and the programs that have them."""
    found: dict[str, tuple[str, str, list[str]]] = {}
    for program, (service, port) in PROGRAMS.items():
        kinds: dict[str, str] = {}
        for line in get(fleet.url(service, port, "/metrics"))[1].splitlines():
            mark, what, *rest = line.split(" ", 3)
            if (mark, what) == ("#", "HELP"):
                name = rest[0].removeprefix("kvasir_")
                found.setdefault(name, ("", rest[1].removesuffix("."), []))[2].append(program)
            elif (mark, what) == ("#", "TYPE"):
                kinds[rest[0].removeprefix("kvasir_")] = rest[1]
        for name, kind in kinds.items():
            if name in found:
                found[name] = (kind, *found[name][1:])
    rows = [f"| `{name}` | {kind} | {', '.join(of)} | {text} |" for name, (kind, text, of) in sorted(found.items())]
    return "\n".join(["| metric | kind | programs | meaning |", "|---|---|---|---|", *rows, ""])


def check_table(fleet: Fleet, regenerate: bool) -> None:
    head, rest = METRICS.read_text().split("<!-- metrics -->\n")
    present, tail = rest.split("<!-- /metrics -->")
    fresh = table(fleet)
    if regenerate:
        METRICS.write_text(f"{head}<!-- metrics -->\n{fresh}<!-- /metrics -->{tail}")
    else:
        assert present == fresh, f"{METRICS} is stale: run scripts/fix\n{fresh}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("kvasir", "mock-engine", "nats", "prometheus"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--regenerate", action="store_true")
    options = vars(parser.parse_args())
    regenerate = options.pop("regenerate")
    programs = {name.replace("_", "-"): file for name, file in options.items()}
    fleet = Fleet(programs, folder())
    print(f"logs in {fleet.folder}", file=sys.stderr)
    try:
        for service in fleet.services:
            if service not in NOT_RUN:
                fleet.start(service)
        for service, port in fleet.side_ports().items():
            wait_for(f"{service} is ready", lambda: is_ready(fleet, service, port))
        for service in ("gateway", "router-a", "router-b"):
            at = fleet.url(service, fleet.side_ports()[service], "/metrics")
            wait_for(f"{service} knows all workers", lambda: get(at)[1].count("kvasir_router_active_requests{") == WORKERS)
        known_at = time.monotonic()
        fill(fleet)
        start_full_agent(fleet)
        # The gateway's errors have no sample before the first one.
        get(fleet.url("gateway", 8000, "/v1/completions"), {"model": "unknown", "prompt": "hi"})
        check_queries(fleet)
        check_table(fleet, regenerate)
        check_names()
        # Until then, a worker that came later costs more than blocks in its cache are worth.
        wait_for("the slow start of workers is over", lambda: time.monotonic() > known_at + SLOW_START_SECONDS)
        check_losses(fleet)
    finally:
        codes = fleet.stop()
    ours = {service: code for service, code in codes.items() if service not in ("nats", "prometheus")}
    assert not any(ours.values()), ours
    print(f"{len(codes)} services ran and stopped")


if __name__ == "__main__":
    main()
