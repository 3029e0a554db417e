"""Runs an engine's own ZmqEventPublisher, unmodified, under remote control.

Reads one JSON list of events a line from standard input, publishes it as one batch and answers with
the number of batches published. An event is an object with "type" (the class's name) and that
class's fields; fields that this version of the engine lacks are left out. Ends with its input.
"""

import argparse
import dataclasses
import importlib.util
import json
import logging
import os
import sys
import types


def stand_in(name, **content):
    """Puts a module in place of one that the publisher imports but does not need here."""
    module = types.ModuleType(name)
    module.__dict__.update(content)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            stand_in(parent)
        setattr(sys.modules[parent], child, module)
    return module


def real(name, path):
    """Loads one of the engine's own files under the name that it is imported by."""
    parent, _, child = name.rpartition(".")
    if parent and parent not in sys.modules:
        stand_in(parent)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], child, module)
    spec.loader.exec_module(module)
    return module


def load_sglang(folder, rank):
    stand_in("sglang.srt.environ", envs=types.SimpleNamespace())
    ranks = types.SimpleNamespace(
        pp_rank=0, attn_tp_rank=0, attn_cp_rank=0, attn_dp_size=rank + 1, attn_dp_rank=rank,
        dp_rank=rank)
    stand_in("sglang.srt.runtime_context", get_parallel=lambda: ranks)
    real("sglang.srt.utils.network", os.path.join(folder, "network.py"))
    return real("sglang.srt.disaggregation.kv_events", os.path.join(folder, "kv_events.py"))


def load_vllm(folder, _rank):
    class Logger(logging.LoggerAdapter):
        def __getattr__(self, name):
            return getattr(self.logger, name.removesuffix("_once"))

    stand_in("vllm.logger", init_logger=lambda name: Logger(logging.getLogger(name), {}))
    stand_in("vllm.envs", VLLM_HOST_IP="", VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=True)
    stand_in("vllm.config.utils", config=dataclasses.dataclass)
    stand_in("vllm.v1.core.kv_cache_utils", ExternalBlockHash=bytes | int)
    config = real("vllm.config.kv_events", os.path.join(folder, "config.py"))
    sys.modules["vllm.config"].KVEventsConfig = config.KVEventsConfig
    real("vllm.utils.network_utils", os.path.join(folder, "network.py"))
    return real("vllm.distributed.kv_events", os.path.join(folder, "kv_events.py"))


def build(module, event):
    kind = getattr(module, event.pop("type"))
    known = kind.__struct_fields__
    fields = {name: value for name, value in event.items() if name in known}
    defaults = len(kind.__struct_defaults__)
    for name in known[: len(known) - defaults]:
        fields.setdefault(name, None)
    return kind(**fields)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--engine", required=True, choices=["sglang", "vllm"])
    arguments.add_argument("--folder", required=True)
    arguments.add_argument("--endpoint", required=True)
    arguments.add_argument("--replay", required=True)
    arguments.add_argument("--rank", type=int, default=0)
    given = arguments.parse_args()
    load = {"sglang": load_sglang, "vllm": load_vllm}[given.engine]
    module = load(given.folder, given.rank)
    rank = {"sglang": "attn_dp_rank", "vllm": "data_parallel_rank"}[given.engine]
    publisher = module.ZmqEventPublisher(
        endpoint=given.endpoint, replay_endpoint=given.replay, **{rank: given.rank})
    print("ready", flush=True)
    for number, line in enumerate(sys.stdin, start=1):
        events = [build(module, event) for event in json.loads(line)]
        publisher.publish(module.KVEventBatch(ts=float(number), events=events))
        print(number, flush=True)
    publisher.shutdown()


if __name__ == "__main__":
    main()
