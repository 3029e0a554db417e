"""The package agrees with the contract, the index's limits and the generator."""

import dataclasses
import importlib.util
import pathlib
import re
from importlib.machinery import SourceFileLoader
from typing import Any

from conftest import REPOSITORY
from google.protobuf.message import Message

from kvasir import (
    BusyThresholds,
    Decision,
    DecisionReason,
    Engine,
    FetchPeer,
    FetchPlan,
    IndexOutcome,
    IndexTrust,
    ModelType,
    PrefillChoice,
    PrefillOutcome,
    RankExplanation,
    RankLoad,
    RemovedRanks,
    RouteCost,
    RouteOverhead,
    RouterLoads,
    RouterMode,
    RouterRankLoad,
    Tier,
    WorkerLoad,
    WorkerRole,
    WorkerState,
    _gen,
    _rpc,
    limits,
)
from kvasir import block_types as blocks
from kvasir._gen import block_manager_pb2, indexer_pb2, ingest_pb2, loads_pb2, router_pb2, types_pb2
from kvasir.blocks import BlockManager, Session

PACKAGE = pathlib.Path(__file__).resolve().parents[1]


def test_generated_modules_are_current(tmp_path: pathlib.Path) -> None:
    loader = SourceFileLoader("generate", str(PACKAGE / "generate"))
    spec = importlib.util.spec_from_loader("generate", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.generate(tmp_path)
    folder = PACKAGE / "src/kvasir/_gen"
    committed = {path.name: path.read_text() for path in folder.glob("*.py*") if path.is_file()}
    fresh = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert committed == fresh, "run ./generate"
    # The installed package, which is tested, has the same text.
    assert _gen.__file__ is not None
    installed = pathlib.Path(_gen.__file__).parent / "indexer_pb2.py"
    assert installed.read_text() == committed["indexer_pb2.py"]


def test_limits_match_the_index() -> None:
    text = (REPOSITORY / "proto/src/limits.rs").read_text()
    found = dict(re.findall(r"^pub const (\w+): \w+ = ([^;]+);", text, flags=re.M))
    for name in [
        "NAME_BYTES_MAX",
        "BLOCK_SIZE_TOKENS_MAX",
        "WORKER_RANKS_MAX",
        "EVENT_BLOCKS_MAX",
        "LEASE_MS_MIN",
        "LEASE_MS_MAX",
        "LOADS_INTERVAL_MS_MIN",
        "LOADS_INTERVAL_MS_MAX",
        "PLACEMENT_TTL_MS_MAX",
        "GRPC_MESSAGE_BYTES_MAX",
        "QUERY_BLOCKS_MAX",
        "BLOCK_SLOTS_MAX",
        "BLOCK_CHECKS_MAX",
        "BLOCK_WRITE_BYTES_MAX",
        "ONBOARD_TIMEOUT_MS_MAX",
        "ONBOARD_TIMEOUT_MS_DEFAULT",
    ]:
        value, _, shift = found[name].replace("_", "").partition("<<")
        assert getattr(limits, name) == int(value) << int(shift or 0), name
    assert int(found["UNANSWERED_BATCHES_MAX"].replace("_", "")) >= limits.UNANSWERED_EVENTS_MAX


def test_enumerations_match_the_contract() -> None:
    for ours, theirs, prefix in [
        (Tier, types_pb2.Tier, "TIER_"),
        (WorkerState, types_pb2.WorkerState, "WORKER_STATE_"),
        (Engine, types_pb2.Engine, "ENGINE_"),
        (WorkerRole, indexer_pb2.WorkerRole, "WORKER_ROLE_"),
        (ModelType, indexer_pb2.ModelType, "MODEL_TYPE_"),
        (RouterMode, router_pb2.RouterMode, "ROUTER_MODE_"),
        (DecisionReason, router_pb2.DecisionReason, "DECISION_REASON_"),
        (IndexOutcome, router_pb2.IndexOutcome, "INDEX_OUTCOME_"),
        (IndexTrust, router_pb2.IndexTrust, "INDEX_TRUST_"),
        (PrefillOutcome, router_pb2.PrefillOutcome, "PREFILL_OUTCOME_"),
        (blocks.BlockTier, block_manager_pb2.BlockTier, "BLOCK_TIER_"),
        (blocks.BlockFault, block_manager_pb2.BlockFault, "BLOCK_FAULT_"),
        (blocks.CommitOutcome, block_manager_pb2.CommitOutcome, "COMMIT_OUTCOME_"),
        (blocks.OffloadOutcome, block_manager_pb2.OffloadOutcome, "OFFLOAD_OUTCOME_"),
    ]:
        names = {name[len(prefix) :]: value for name, value in theirs.items()}
        if ours in (Tier, Engine):
            del names["UNSPECIFIED"]
        assert {member.name: member.value for member in ours} == names


def test_calls_match_the_contract() -> None:
    service = indexer_pb2.DESCRIPTOR.services_by_name["Indexer"]
    assert f"/{service.full_name}/" == _rpc.INDEXER
    for name in [
        "DumpWorker",
        "FindMatches",
        "GetStats",
        "ListWorkers",
        "RecordPlacement",
        "RegisterWorker",
        "RemoveWorker",
        "ReportReuse",
    ]:
        method = service.methods_by_name[name]
        assert method.input_type.name == f"{name}Request"
        assert method.output_type.name == f"{name}Response"
    publish = ingest_pb2.DESCRIPTOR.services_by_name["EventIngest"]
    assert f"/{publish.full_name}/{publish.methods[0].name}" == _rpc.PUBLISH_EVENTS
    loads = loads_pb2.DESCRIPTOR.services_by_name["WorkerLoads"]
    assert f"/{loads.full_name}/" == _rpc.WORKER_LOADS
    assert {method.name for method in loads.methods} == {"ReportLoad", "WatchLoads"}
    router = router_pb2.DESCRIPTOR.services_by_name["Router"]
    assert f"/{router.full_name}/" == _rpc.ROUTER
    sent = {field.name for field in loads_pb2.WorkerLoad.DESCRIPTOR.fields}
    known = {field.name for field in dataclasses.fields(WorkerLoad)}
    assert sent == known | {"model", "tenant", "worker_id"}


def test_the_routers_answers_match_the_contract() -> None:
    pairs: list[tuple[Any, type[Message]]] = [
        (BusyThresholds, router_pb2.BusyThresholds),
        (Decision, router_pb2.SelectWorkerResponse),
        (FetchPeer, router_pb2.FetchPeer),
        (FetchPlan, router_pb2.FetchPlan),
        (PrefillChoice, router_pb2.PrefillChoice),
        (RankExplanation, router_pb2.RankExplanation),
        (RankLoad, router_pb2.RankLoad),
        (RemovedRanks, router_pb2.RemovedRanks),
        (RouteCost, router_pb2.RouteCost),
        (RouteOverhead, router_pb2.RouteOverhead),
        (RouterLoads, router_pb2.GetLoadsResponse),
        (RouterRankLoad, router_pb2.RouterRankLoad),
    ]
    for ours, theirs in pairs:
        known = [field.name for field in dataclasses.fields(ours)]
        assert known == [field.name for field in theirs.DESCRIPTOR.fields], ours


def test_the_block_manager_matches_the_contract() -> None:
    service = block_manager_pb2.DESCRIPTOR.services_by_name["BlockManager"]
    assert f"/{service.full_name}/" == _rpc.BLOCK_MANAGER
    calls = {re.sub(r"(?<!^)([A-Z])", r"_\1", method.name).lower() for method in service.methods}
    others = {"open_session": "open_session", "end_session": "close", "get_stats": "stats"}
    ours = set(dir(BlockManager)) | set(dir(Session))
    assert {others.get(name, name) for name in calls} <= ours
    messages = block_manager_pb2.DESCRIPTOR.message_types_by_name
    renamed = {
        "BlockStats": "GetBlockStatsResponse",
        "Fetched": "FetchResponse",
        "Onboarded": "OnboardResponse",
        "PrefixMatch": "MatchPrefixResponse",
    }
    for ours_type in vars(blocks).values():
        if not dataclasses.is_dataclass(ours_type) or ours_type is blocks.BlockBytes:
            # The bytes come in parts.
            continue
        name = getattr(ours_type, "__name__", "")
        sent = [field.name for field in messages[renamed.get(name, name)].fields]
        # `from` is a word of Python's own.
        known = [field.name.replace("_tier", "") for field in dataclasses.fields(ours_type)]
        assert [field.replace("_tier", "") for field in sent] == known, ours_type
