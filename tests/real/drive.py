"""Compares kvasir's predictions with what real engines reuse: real vLLM on CPUs, behind `kvasir serve`.

    drive.py --folder FOLDER --kvasir BINARY [--requests N] [--blocks N] [--seed N] [--mode MODE]

FOLDER has the venv and the model (install, make_model.py). Before each request that is sent alone, the index is asked
what each engine would reuse of the prompt. Afterwards this is compared with the engine's own cached_tokens. The exit
code is 1 if they differ for a request sent alone, if nothing that was in flight explains a difference, if a request
that is sent again does not hit, or if `kvasir check` does not name a wrong wiring. One engine's API demands a key.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from openai import OpenAI

from checks import Wiring, check, wirings
from fleet import ADAPTER, MODEL, OTHER_NAME, Engine, Kvasir, stopping, wait_for

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python/src"))
from kvasir import Indexer  # noqa: E402

SETTLE_SECONDS = 30
HEAR_SECONDS = 2
# Kinds of requests with their weights.
KINDS = {"prefix": 4, "chat": 4, "stream": 2, "salt": 2, "adapter": 2, "other name": 1, "long": 1}
WORDS = "a licence to use, to copy, to change and to hand on this work, without any further condition".split()


@dataclass
class Asked:
    """A request: a chat or a completion of a model, of its other name or of its adapter, with a salt."""

    kind: str
    messages: list[dict] = field(default_factory=list)
    prompt: str = ""
    model: str = MODEL
    salt: str = ""
    is_stream: bool = False
    answer_tokens: int = 4

    def text(self) -> dict:
        """What the engine tokenizes."""
        if self.messages:
            return {"messages": self.messages, "add_generation_prompt": True}
        return {"prompt": self.prompt}


@dataclass
class Seen:
    worker: str
    cached: int
    reply: str


def cached_tokens(usage) -> int:
    """vLLM 0.19 leaves the details out where nothing is cached."""
    details = usage.prompt_tokens_details
    return (details.cached_tokens or 0) if details else 0


class Fleet:
    def __init__(self, engines: list[Engine], kvasir: Kvasir) -> None:
        self.engines, self.kvasir = engines, kvasir
        self.api = OpenAI(base_url=f"http://{kvasir.api}/v1", api_key="none", max_retries=0, timeout=120)
        self.index = Indexer(kvasir.index)

    def wait_until_checked(self) -> None:
        """Waits until kvasir has registered and checked each engine. It is ready with one."""
        workers = {engine.worker for engine in self.engines}

        def is_checked() -> bool:
            problems = self.kvasir.problems()
            registered = {listed.worker_id for listed in self.index.list_workers()}
            return workers <= registered and not any(f"{worker}: " in problems for worker in workers)

        try:
            wait_for("all engines are registered and checked", is_checked, 120)
        except SystemExit as late:
            raise SystemExit(f"{late}: {self.kvasir.problems()}") from late

    def tokens(self, asked: Asked) -> list[int]:
        return self.engines[0].tokenize(asked.text())

    def predict(self, tokens: list[int], asked: Asked) -> dict[str, int]:
        """Tokens that each engine would reuse, by worker."""
        found = self.index.find_matches(
            MODEL,
            token_ids=tokens,
            block_size=Engine.BLOCK_SIZE,
            lora_name=ADAPTER if asked.model == ADAPTER else "",
            cache_salt=asked.salt,
            minimum_overlap_blocks=0,
        )
        return {match.worker_id: match.reusable_tokens for match in found.matches}

    def send(self, asked: Asked) -> Seen:
        extra = {"cache_salt": asked.salt} if asked.salt else {}
        common = {"model": asked.model, "max_tokens": asked.answer_tokens, "temperature": 0, "extra_body": extra}
        if asked.is_stream:
            common |= {"stream": True, "stream_options": {"include_usage": True}}
        if asked.messages:
            raw = self.api.chat.completions.with_raw_response.create(messages=asked.messages, **common)
        else:
            raw = self.api.completions.with_raw_response.create(prompt=asked.prompt, **common)
        worker = raw.headers["x-kvasir-worker"]
        if not asked.is_stream:
            answer = raw.parse()
            reply = answer.choices[0].message.content if asked.messages else answer.choices[0].text
            return Seen(worker, cached_tokens(answer.usage), reply)
        usage, reply = None, ""
        for part in raw.parse():
            usage = part.usage or usage
            if part.choices:
                choice = part.choices[0]
                reply += (choice.delta.content if asked.messages else choice.text) or ""
        return Seen(worker, cached_tokens(usage), reply)

    def cancel(self, asked: Asked) -> None:
        """Begins a stream and leaves after its first part."""
        stream = self.api.completions.create(
            model=MODEL, prompt=asked.prompt, max_tokens=200, temperature=0, stream=True
        )
        next(iter(stream))
        stream.close()

    def applied(self) -> dict[str, list[str]]:
        """Last applied batches, by worker."""
        listed = self.index.list_workers()
        return {worker.worker_id: [str(source.applied) for source in worker.sources] for worker in listed}

    def hear(self, worker: str, before: dict[str, list[str]]) -> None:
        """Waits for a batch of an engine that has stored blocks: it comes a moment after the answer. If the engine computed
        only blocks that it had, there is none."""
        deadline = time.monotonic() + HEAR_SECONDS
        while self.applied().get(worker) == before.get(worker) and time.monotonic() < deadline:
            time.sleep(0.02)

    def settle(self) -> None:
        """Waits until the index has applied all that the engines have published: nothing changes between two looks."""
        before, deadline = None, time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline:
            listed = self.index.list_workers()
            sources = [source for worker in listed for source in worker.sources]
            now = [(source.source, str(source.state), str(source.applied), source.lag_batches) for source in sources]
            if now == before and all(source.connected and source.lag_batches == 0 for source in sources):
                return
            before = now
            time.sleep(0.05)
        raise SystemExit(f"the index does not settle: {before}")


class Workload:
    """Seeded requests: shared prefixes, chats of several turns, salts, an adapter, streams."""

    def __init__(self, seed: int) -> None:
        self.choose = random.Random(seed)
        self.deck: list[str] = []
        self.prefixes = [self.words(150) for _ in range(5)]
        self.chats: list[list[dict]] = [[{"role": "system", "content": self.words(80)}] for _ in range(6)]

    def words(self, count: int) -> str:
        numbers = (str(self.choose.randrange(1000)) for _ in range(count // 2))
        return " ".join([*numbers, *self.choose.choices(WORDS, k=count // 2)])

    def next(self) -> Asked:
        # Every deck has all kinds, so that a short run sees them, too.
        if not self.deck:
            self.deck = [kind for kind, weight in KINDS.items() for _ in range(weight)]
            self.choose.shuffle(self.deck)
        return self.of(self.deck.pop())

    def of(self, kind: str) -> Asked:
        prompt = self.choose.choice(self.prefixes) + " " + self.words(20)
        match kind:
            case "chat":
                chat = self.choose.choice(self.chats)
                if len(chat) > 12:
                    del chat[1:]
                chat.append({"role": "user", "content": self.words(20)})
                return Asked(kind, messages=list(chat), is_stream=self.choose.random() < 0.5, answer_tokens=40)
            case "stream":
                return Asked(kind, prompt=prompt, is_stream=True, answer_tokens=30)
            case "salt":
                return Asked(kind, prompt=prompt, salt=self.choose.choice(["red", "blue"]))
            case "adapter":
                return Asked(kind, prompt=prompt, model=ADAPTER)
            case "other name":
                return Asked(kind, prompt=prompt, model=OTHER_NAME)
            case "long":
                return Asked(kind, prompt=self.words(1200))
            case _:
                return Asked(kind, prompt=prompt)

    def answered(self, asked: Asked, reply: str) -> None:
        for chat in self.chats:
            if asked.messages and chat == asked.messages:
                chat.append({"role": "assistant", "content": reply})


@dataclass
class Tally:
    equal: Counter = field(default_factory=Counter)
    explained: Counter = field(default_factory=Counter)
    wrong: Counter = field(default_factory=Counter)
    cached: int = 0
    prompt: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, phase: str, asked: Asked, tokens: int, predicted: int, seen: Seen, why: str = "") -> None:
        """Counts a request; `why` explains a difference."""
        self.prompt += tokens
        self.cached += seen.cached
        if predicted == seen.cached:
            self.equal[phase] += 1
            return
        text = f"{phase}: {asked.kind} of {tokens} tokens: {predicted} predicted, {seen.cached} cached"
        if why:
            self.explained[phase] += 1
            print(f"{text}: {why}")
        else:
            self.wrong[phase] += 1
            self.faults.append(text)

    def phases(self) -> list[str]:
        return list(dict.fromkeys([*self.equal, *self.explained, *self.wrong]))


def alone(fleet: Fleet, workload: Workload, tally: Tally, phase: str, count: int) -> None:
    cancel_every, reset_every = min(25, count // 3), min(60, count // 2)
    for number in range(1, count + 1):
        if number % cancel_every == 0:
            fleet.cancel(workload_prompt(workload))
        if number % reset_every == 0:
            workload.choose.choice(fleet.engines).reset()
        one_alone(fleet, workload, tally, phase, workload.next())


def one_alone(fleet: Fleet, workload: Workload, tally: Tally, phase: str, asked: Asked) -> Seen:
    fleet.settle()
    tokens = fleet.tokens(asked)
    predictions = fleet.predict(tokens, asked)
    before = fleet.applied()
    seen = fleet.send(asked)
    if len(tokens) // Engine.BLOCK_SIZE > seen.cached // Engine.BLOCK_SIZE:
        fleet.hear(seen.worker, before)
    workload.answered(asked, seen.reply)
    tally.add(phase, asked, len(tokens), predictions.get(seen.worker, 0), seen)
    return seen


def again(fleet: Fleet, workload: Workload, tally: Tally) -> None:
    """Sends a request of each kind twice: the second one must hit."""
    for kind in KINDS:
        asked = workload.of(kind)
        for phase in ("once", "again"):
            seen = one_alone(fleet, workload, tally, phase, asked)
        if not seen.cached:
            tally.faults.append(f"{kind}: nothing is cached of a request that is sent again")


def workload_prompt(workload: Workload) -> Asked:
    return Asked("cancel", prompt=workload.choose.choice(workload.prefixes) + " " + workload.words(20))


@dataclass
class Flight:
    """A request that was in flight together with others."""

    asked: Asked
    tokens: list[int]
    predicted: int
    seen: Seen
    begun: float
    ended: float

    def shares(self, other: "Flight") -> int:
        """Leading tokens that both have in one namespace."""
        if (self.asked.salt, self.asked.model == ADAPTER) != (other.asked.salt, other.asked.model == ADAPTER):
            return 0
        same = (one == two for one, two in zip(self.tokens, other.tokens))
        return sum(1 for _ in takewhile(bool, same))

    def explanation(self, flights: list["Flight"]) -> str:
        """Why the engine reused another number of tokens than predicted: requests in flight at the same engine. Else empty."""
        beside = [
            other
            for other in flights
            if other is not self
            and other.seen.worker == self.seen.worker
            and other.begun < self.ended
            and other.ended > self.begun
        ]
        if self.seen.cached > self.predicted and any(self.shares(other) >= self.seen.cached for other in beside):
            return "a request in flight had stored it"
        if self.seen.cached < self.predicted and beside:
            return "requests in flight had evicted it"
        return ""


def together(fleet: Fleet, workload: Workload, tally: Tally, count: int) -> None:
    """Requests in flight together: the caches change between prediction and start."""

    def one(asked: Asked) -> Flight:
        begun, tokens = time.monotonic(), fleet.tokens(asked)
        predictions = fleet.predict(tokens, asked)
        seen = fleet.send(asked)
        return Flight(asked, tokens, predictions.get(seen.worker, 0), seen, begun, time.monotonic())

    asked = [workload.next() for _ in range(count)]
    with ThreadPoolExecutor(4) as pool:
        flights = list(pool.map(one, asked))
    for flight in flights:
        why = flight.explanation(flights)
        tally.add("together", flight.asked, len(flight.tokens), flight.predicted, flight.seen, why)
    fleet.settle()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--kvasir", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--blocks", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", default="kv", help="how kvasir chooses engines, such as round-robin")
    options = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="kvasir-real-"))
    print(f"seed {options.seed}, logs in {logs}", file=sys.stderr)
    engines: list[Engine] = []
    servers: list[Kvasir] = []
    with stopping(servers, engines):
        for number, key in enumerate(["", "a key of this run"]):
            engines.append(Engine(options.folder, options.blocks, logs, f"vllm-{number}", key=key))
        for engine in engines:
            engine.ready()
        specs = [engine.spec for engine in engines]
        kvasir = Kvasir(options.kvasir, specs, logs / "state", logs / "kvasir.log", options.mode)
        servers.append(kvasir)
        kvasir.ready()
        fleet = Fleet(engines, kvasir)
        tally = run(fleet, options)
        kvasir.process.stop()
        tally.faults += check_wirings(fleet, logs)
    print("| phase | requests | as predicted | explained | wrong |\n| --- | --- | --- | --- | --- |")
    for phase in tally.phases():
        counts = [counter[phase] for counter in (tally.equal, tally.explained, tally.wrong)]
        print(f"| {phase} | {' | '.join(str(count) for count in [sum(counts), *counts])} |")
    print(f"cached: {tally.cached / tally.prompt:.1%} of {tally.prompt} prompt tokens")
    print("\n".join(tally.faults), end="\n" if tally.faults else "")
    sys.exit(1 if tally.faults else 0)


def run(fleet: Fleet, options: argparse.Namespace) -> Tally:
    tally, workload = Tally(), Workload(options.seed)
    share = max(options.requests // 5, 5)
    progress = lambda text: print(text, file=sys.stderr)  # noqa: E731
    fleet.wait_until_checked()
    progress(f"{share * 2} requests alone")
    alone(fleet, workload, tally, "alone", share * 2)
    progress(f"{share} requests, four at a time")
    together(fleet, workload, tally, share)
    progress("kvasir is killed and starts again")
    fleet.kvasir.process.stop(signal.SIGKILL)
    fleet.kvasir.start()
    fleet.kvasir.ready()
    fleet.wait_until_checked()
    alone(fleet, workload, tally, "after kvasir's restart", share)
    progress("an engine is killed and starts again")
    engine = fleet.engines[1]
    engine.process.stop(signal.SIGKILL)
    alone_elsewhere = Asked("prefix", prompt=workload.prefixes[0] + " while one engine is away")
    if fleet.send(alone_elsewhere).worker == engine.worker:
        tally.faults.append("a dead engine answered")
    engine.start()
    engine.ready()
    fleet.wait_until_checked()
    alone(fleet, workload, tally, "after an engine's restart", share)
    progress("a request of each kind, twice")
    again(fleet, workload, tally)
    return tally


def check_wirings(fleet: Fleet, logs: Path) -> list[str]:
    """Names the engines rightly and wrongly. Returns what `kvasir check` does not answer as expected."""
    plain, keyed = fleet.engines
    tried = wirings(plain, keyed, logs)
    print(f"kvasir check: {', '.join(wiring.what for wiring in tried)}", file=sys.stderr)
    faults = [check(fleet.kvasir.binary, wiring) for wiring in tried]
    print("kvasir check: an engine without prefix caching, an engine without events", file=sys.stderr)
    plain.flags.append("--no-enable-prefix-caching")
    keyed.flags += ["--kv-events-config", '{"enable_kv_cache_events": false}']
    for engine in (plain, keyed):
        engine.process.stop()
        engine.start()
    for engine in (plain, keyed):
        engine.ready()
    off = ["✗ prefix caching", "--enable-prefix-caching"]
    faults.append(check(fleet.kvasir.binary, Wiring("prefix caching off", plain.spec, off)))
    silent = ["no connection to", "--kv-events-config"]
    faults.append(check(fleet.kvasir.binary, Wiring("events off", keyed.spec, silent)))
    print(f"kvasir check: {faults.count('')} of {len(faults)} answers as expected")
    return [fault for fault in faults if fault]


main()
