"""Compares routers: kvasir serve, vllm-router (kv_aware, round_robin) and smg, before the same engines.

    compare.py --folder FOLDER --kvasir BINARY --peers FOLDER [--mock-engine BINARY] [--trials N] [--seed N]

FOLDER has the venv and the model (install, make_model.py), --peers the programs vllm-router and smg. In each trial, all
routers get the same requests in turns, from empty caches. The engines are two real vLLM, with vllm bench serve's
prefix_repetition and with conversations; with --mock-engine, two mock engines, with 60 requests/s of shared prefixes.
Cached tokens are the engines' own count. The exit code is 1 if a bar is missed.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from openai import AsyncOpenAI, OpenAI
from tokenizers import Tokenizer

from fleet import MODEL, Engine, MockEngine, Process, get, stopping
from routers import KV_AWARE, KVASIR, NAMES, ROUND_ROBIN, SMG, start

TOKENIZER = Path(__file__).resolve().parents[1] / "tokenizer/tokenizer.json"
REAL_BLOCKS, MOCK_CACHE_TOKENS = 400, 16_000
ANSWER_TOKENS = 12
# prefix_repetition: more prefixes than one engine's cache holds.
PREFIXES, PREFIX_TOKENS, SUFFIX_TOKENS, PROMPTS, BENCH_RATE = 50, 400, 60, 250, 6
# Conversations.
SESSIONS, TURNS, SESSIONS_AT_ONCE, SYSTEM_PROMPTS = 40, 6, 4, 4
# Shared prefixes before mock engines.
SHARED, SHARED_TOKENS, OWN_TOKENS, SHARED_REQUESTS, SHARED_RATE = 24, 900, 60, 1_200, 60


@dataclass
class Served:
    requests: int
    seconds: float
    first_token_ms: list[float]


@dataclass
class Result:
    workload: str
    router: str
    trial: int
    requests: int
    prompt_tokens: int
    cached_tokens: int
    first_token_ms: float
    first_token_p99_ms: float
    requests_per_second: float
    cpu_ms_per_request: float

    @property
    def cached(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def cpu_seconds(process: Process) -> float:
    """Processor time of a process with all its threads."""
    fields = Path(f"/proc/{process.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def counted(engines: list, what: str) -> int:
    """The sum of all engines' counters of prompt tokens: queries or hits."""
    total = 0.0
    for engine in engines:
        for line in get(f"{engine.url}/metrics").decode().splitlines():
            if line.startswith(f"vllm:prefix_cache_{what}_total{{"):
                total += float(line.rsplit(" ", 1)[1])
    return int(total)


def prefix_repetition(options: argparse.Namespace, api: str, seed: int, work: Path) -> Served:
    result = work / "bench.json"
    sizes = {"num-prefixes": PREFIXES, "prefix-len": PREFIX_TOKENS, "suffix-len": SUFFIX_TOKENS, "output-len": ANSWER_TOKENS}
    command = [str(options.folder / "venv/bin/vllm"), "bench", "serve", "--backend", "vllm", "--base-url", f"http://{api}"]
    command += ["--model", MODEL, "--tokenizer", str(options.folder / "model"), "--dataset-name", "prefix_repetition"]
    for name, size in sizes.items():
        command += [f"--prefix-repetition-{name}", str(size)]
    command += ["--num-prompts", str(PROMPTS), "--request-rate", str(BENCH_RATE), "--seed", str(seed), "--disable-tqdm"]
    command += ["--save-result", "--save-detailed", "--result-filename", str(result)]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (work / "bench.log").open("ab") as log:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=offline, timeout=600)
    bench = json.loads(result.read_text())
    if bench["completed"] != PROMPTS:
        raise SystemExit(f"{bench['completed']} of {PROMPTS} requests were served: {work / 'bench.log'}")
    return Served(PROMPTS, bench["duration"], [1000 * seconds for seconds in bench["ttfts"]])


def numbers(choose: random.Random, count: int) -> str:
    return " ".join(str(choose.randrange(1000)) for _ in range(count))


def conversations(options: argparse.Namespace, api: str, seed: int, work: Path) -> Served:
    """Each turn has all earlier ones, after one of four system prompts."""
    client = OpenAI(base_url=f"http://{api}/v1", api_key="none", max_retries=0, timeout=120)
    choose = random.Random(seed)
    systems = [numbers(choose, 60) for _ in range(SYSTEM_PROMPTS)]

    def session(number: int) -> list[float]:
        own = random.Random(f"{seed} {number}")
        messages = [{"role": "system", "content": systems[number % SYSTEM_PROMPTS]}]
        waits = []
        for _ in range(TURNS):
            messages.append({"role": "user", "content": numbers(own, 40)})
            begun, first, reply = time.monotonic(), None, ""
            stream = client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=ANSWER_TOKENS, temperature=0, stream=True
            )
            for part in stream:
                first = first or time.monotonic() - begun
                reply += (part.choices[0].delta.content or "") if part.choices else ""
            waits.append(1000 * first)
            messages.append({"role": "assistant", "content": reply})
        return waits

    begun = time.monotonic()
    with ThreadPoolExecutor(SESSIONS_AT_ONCE) as pool:
        waits = [wait for waits in pool.map(session, range(SESSIONS)) for wait in waits]
    return Served(len(waits), time.monotonic() - begun, waits)


def shared_prefixes(options: argparse.Namespace, api: str, seed: int, work: Path) -> Served:
    """Requests at a fixed rate, each with one of 24 prefixes and an end of its own."""
    tokenizer, choose = Tokenizer.from_file(str(TOKENIZER)), random.Random(seed)

    def text(tokens: int) -> str:
        ids = tokenizer.encode(numbers(choose, tokens), add_special_tokens=False).ids
        return tokenizer.decode(ids[:tokens])

    prefixes = [text(SHARED_TOKENS) for _ in range(SHARED)]
    prompts = [choose.choice(prefixes) + " " + text(OWN_TOKENS) for _ in range(SHARED_REQUESTS)]

    async def run() -> list[float]:
        begun = time.monotonic()

        async def one(number: int) -> float:
            await asyncio.sleep(begun + number / SHARED_RATE - time.monotonic())
            sent = time.monotonic()
            stream = await client.completions.create(
                model=MODEL, prompt=prompts[number], max_tokens=ANSWER_TOKENS, stream=True
            )
            first = None
            async for _part in stream:
                first = first or time.monotonic() - sent
            return 1000 * first

        async with AsyncOpenAI(base_url=f"http://{api}/v1", api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(one(number) for number in range(SHARED_REQUESTS)))

    begun = time.monotonic()
    waits = asyncio.run(run())
    return Served(len(waits), time.monotonic() - begun, waits)


REAL = {"prefix_repetition": prefix_repetition, "conversations": conversations}
MOCK = {"shared prefixes": shared_prefixes}


def measure(workload: str, serve: Callable, name: str, router, engines: list, options, trial: int, work: Path) -> Result:
    queries, hits, cpu = counted(engines, "queries"), counted(engines, "hits"), cpu_seconds(router.process)
    served = serve(options, router.api, options.seed + trial, work)
    cpu = cpu_seconds(router.process) - cpu
    waits = sorted(served.first_token_ms)
    return Result(
        workload,
        name,
        trial,
        served.requests,
        prompt_tokens=counted(engines, "queries") - queries,
        cached_tokens=counted(engines, "hits") - hits,
        first_token_ms=statistics.fmean(waits),
        first_token_p99_ms=waits[int(0.99 * (len(waits) - 1))],
        requests_per_second=served.requests / served.seconds,
        cpu_ms_per_request=1000 * cpu / served.requests,
    )


class Summary:
    """The mean of all trials, by workload and router."""

    def __init__(self, results: list[Result], workloads: dict) -> None:
        self.results, self.workloads = results, workloads

    def mean(self, workload: str, router: str, field: str) -> float:
        found = [one for one in self.results if (one.workload, one.router) == (workload, router)]
        return statistics.fmean(getattr(one, field) for one in found)

    def table(self) -> str:
        lines = ["| workload | router | cached | first token, mean | p99 | requests/s | router CPU per request |"]
        lines.append("| --- | --- | --- | --- | --- | --- | --- |")
        for workload in self.workloads:
            for router in NAMES:
                cached, first, last, rate, cpu = (
                    self.mean(workload, router, field)
                    for field in ("cached", "first_token_ms", "first_token_p99_ms", "requests_per_second", "cpu_ms_per_request")
                )
                figures = f"{cached:.1%} | {first:.1f} ms | {last:.1f} ms | {rate:.2f} | {cpu:.2f} ms"
                lines.append(f"| {workload} | {router} | {figures} |")
        return "\n".join(lines)

    def bars(self) -> list[tuple[str, float, bool]]:
        """Each bar with its figure, and whether it holds."""
        found = []
        for workload in self.workloads:
            cached = {router: self.mean(workload, router, "cached") for router in NAMES}
            ratio = cached[KVASIR] / cached[KV_AWARE]
            found.append((f"{workload}: cached beside {KV_AWARE}, at least 1", ratio, ratio >= 1))
            if workload in MOCK:
                ratio = cached[KVASIR] / max(cached[KV_AWARE], cached[SMG])
                found.append((f"{workload}: cached beside the best peer, at least 1", ratio, ratio >= 1))
            else:
                ratio = cached[KVASIR] / cached[ROUND_ROBIN]
                found.append((f"{workload}: cached beside {ROUND_ROBIN}, at least 1.5", ratio, ratio >= 1.5))
            cpu = {router: self.mean(workload, router, "cpu_ms_per_request") for router in NAMES}
            ratio = cpu[KVASIR] / cpu[KV_AWARE]
            found.append((f"{workload}: processor time beside {KV_AWARE}, at most 0.5", ratio, ratio <= 0.5))
        return found

    def draw(self, file: Path) -> None:
        """Cached tokens, time to first token and processor time, with a point for each trial."""
        import matplotlib.pyplot as plot

        fields = {"cached": "cached part of prompts", "first_token_ms": "mean time to first token, ms"}
        fields["cpu_ms_per_request"] = "router CPU per request, ms"
        size = (4.5 * len(fields), 2.2 * len(self.workloads))
        figure, panels = plot.subplots(len(self.workloads), len(fields), figsize=size, squeeze=False, sharey=True)
        for row, workload in zip(panels, self.workloads):
            for panel, (field, label) in zip(row, fields.items()):
                for place, router in enumerate(reversed(NAMES)):
                    points = [
                        getattr(one, field) for one in self.results if (one.workload, one.router) == (workload, router)
                    ]
                    panel.barh(place, statistics.fmean(points), color="#2f6db3" if router == KVASIR else "#b9c7d6")
                    panel.plot(points, [place] * len(points), "k.", markersize=4)
                panel.set_yticks(range(len(NAMES)), NAMES[::-1])
                panel.set_title(f"{workload}: {label}", fontsize=9)
        figure.tight_layout()
        figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kvasir", type=Path, required=True)
    parser.add_argument("--peers", type=Path, required=True, help="folder with the programs vllm-router and smg")
    parser.add_argument("--mock-engine", type=Path, help="two mock engines instead of two vLLM")
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="writes the results as JSON")
    parser.add_argument("--plot", type=Path, help="draws the results, such as into compare.svg; needs matplotlib")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="kvasir-compare-"))
    print(f"seed {options.seed}, logs in {work}", file=sys.stderr)
    binaries = {"kvasir": options.kvasir, "vllm-router": options.peers / "vllm-router", "smg": options.peers / "smg"}
    workloads = MOCK if options.mock_engine else REAL
    engines: list = []
    routers: list = []
    results: list[Result] = []

    def start_engines() -> None:
        for number in range(2):
            log = work / f"engine-{number}.log"
            if options.mock_engine:
                engines.append(MockEngine(options.mock_engine, TOKENIZER, MOCK_CACHE_TOKENS, log))
            else:
                # vllm-router asks engines to render each prompt.
                engines.append(Engine(options.folder, REAL_BLOCKS, work, f"engine-{number}", ["--enable-scale-out"]))
        for engine in engines:
            engine.ready()

    with stopping(routers, engines):
        for trial in range(options.trials):
            for workload, serve in workloads.items():
                for turn in range(len(NAMES)):
                    name = NAMES[(turn + trial) % len(NAMES)]
                    if options.mock_engine:
                        while engines:
                            engines.pop().process.stop()
                    if not engines:
                        start_engines()
                    if not options.mock_engine:
                        for engine in engines:
                            engine.reset()
                    routers.append(start(name, engines, binaries, work))
                    routers[-1].ready()
                    results.append(measure(workload, serve, name, routers[-1], engines, options, trial, work))
                    routers.pop().process.stop()
                    print(results[-1], file=sys.stderr)
    summary = Summary(results, workloads)
    print(summary.table())
    bars = summary.bars()
    for text, ratio, holds in bars:
        print(f"{'holds' if holds else 'MISSED'}: {text}: {ratio:.2f}")
    if options.report:
        options.report.write_text(json.dumps([asdict(one) for one in results], indent=1))
    if options.plot:
        summary.draw(options.plot)
    sys.exit(0 if all(holds for _, _, holds in bars) else 1)


main()
