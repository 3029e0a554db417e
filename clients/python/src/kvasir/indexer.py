"""Client of an index."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Optional, Union

import grpc
from google.protobuf.message import Message

from kvasir import _read, _rpc
from kvasir._check import read_hash_list, read_int, read_list, read_name, read_seconds, read_tier
from kvasir._gen import indexer_pb2 as pb
from kvasir._gen import types_pb2
from kvasir.errors import InvalidArgumentError
from kvasir.hashing import HASH_SCHEME, local_hashes, next_tokens_le
from kvasir.limits import (
    BLOCK_SIZE_TOKENS_MAX,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    PLACEMENT_TTL_MS_MAX,
    QUERY_TOKENS_MAX,
    REUSE_REQUESTS_MAX,
    WORKER_RANKS_MAX,
)
from kvasir.types import (
    DumpPart,
    Engine,
    EngineEndpoint,
    FindMatchesResult,
    MultimodalItem,
    Placement,
    ReusedTokens,
    Stats,
    Tier,
    WorkerInfo,
)

TIMEOUT_DEFAULT = 5.0
"""Default timeout of a call, in seconds."""

DUMP_TIMEOUT_DEFAULT = 120.0
"""Default timeout of a whole dump, in seconds."""


class Indexer:
    """Client of an index over gRPC. Threads may share one.

    Calls raise `InvalidArgumentError` if an argument is invalid, and an `RpcError` if the server
    refuses, is unreachable or times out.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = TIMEOUT_DEFAULT,
        credentials: Optional[grpc.ChannelCredentials] = None,
    ) -> None:
        """Connects on the first call.

        `target` is host:port, http://host:port or https://host:port; the last needs `credentials`,
        by `kvasir.tls_credentials`. `timeout` is the default of all calls except `dump_worker`, in
        seconds.
        """
        self._timeout = read_seconds("timeout", timeout)
        self._channel = _rpc.open_channel(_rpc.read_target(target, credentials), credentials)
        # Model and tenant of workers whose hashes cover the token after each block.
        self._looking_ahead: set[tuple[str, str]] = set()

    def __enter__(self) -> "Indexer":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Calls in progress fail."""
        self._channel.close()

    def find_matches(
        self,
        model: str,
        *,
        tenant: str = "",
        token_ids: Optional[Sequence[int]] = None,
        block_size: Optional[int] = None,
        lora_name: str = "",
        cache_salt: str = "",
        multimodal: Sequence[MultimodalItem] = (),
        local_hashes: Optional[Sequence[int]] = None,
        sequence_hashes: Optional[Sequence[int]] = None,
        tiers: Sequence[Tier] = (),
        worker_ids: Sequence[str] = (),
        minimum_overlap_blocks: Optional[int] = None,
        top_k: int = 0,
        timeout: Optional[float] = None,
    ) -> FindMatchesResult:
        """Finds the workers that hold leading blocks of a prompt.

        Give the prompt as `token_ids` with the model's `block_size` (they are hashed here and never
        sent), as `local_hashes`, or as `sequence_hashes`, the engine's own. `lora_name`,
        `cache_salt` and `multimodal` go with `token_ids` only. The server refuses a `block_size`
        that is not the model's. `tiers` and `worker_ids` restrict the query; `top_k` limits the
        matches, 0 for all. `minimum_overlap_blocks` is 1 by default; 0 lists every rank.

        A prompt shorter than a block always has an empty answer, without a call to the server.
        """
        given = [what is not None for what in (token_ids, local_hashes, sequence_hashes)]
        if sum(given) != 1:
            problem = "give exactly one of token_ids, local_hashes and sequence_hashes"
            raise InvalidArgumentError("token_ids", problem)
        read_list("worker_ids", worker_ids)
        request = pb.FindMatchesRequest(
            model=read_name("model", model, required=True),
            tenant=read_name("tenant", tenant),
            tiers=[types_pb2.Tier.Name(read_tier("tiers", tier).value) for tier in tiers],
            worker_ids=list(worker_ids),
            top_k=read_int("top_k", top_k, 0, (1 << 32) - 1),
        )
        if block_size is not None:
            request.block_size = read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX)
        if minimum_overlap_blocks is not None:
            lowest = read_int("minimum_overlap_blocks", minimum_overlap_blocks, 0, (1 << 32) - 1)
            request.minimum_overlap_blocks = lowest
        namespace = (lora_name, cache_salt, multimodal)
        _fill_prompt(request, token_ids, block_size, namespace, local_hashes)
        if sequence_hashes is not None:
            request.sequence_hashes.extend(read_hash_list("sequence_hashes", sequence_hashes))
        if not request.local_hashes and not request.sequence_hashes:
            return _read.matches(pb.FindMatchesResponse(block_size=request.block_size))
        next_tokens = b""
        if token_ids is not None:
            next_tokens = next_tokens_le(token_ids, request.block_size, multimodal)
            request.prompt_tokens = len(token_ids)
        if (model, tenant) in self._looking_ahead:
            request.next_tokens_le = next_tokens
        answer = self._call("FindMatches", request, pb.FindMatchesResponse, timeout)
        if answer.wants_next_tokens and next_tokens and not request.next_tokens_le:
            self._looking_ahead.add((model, tenant))
            request.next_tokens_le = next_tokens
            answer = self._call("FindMatches", request, pb.FindMatchesResponse, timeout)
        return _read.matches(answer)

    def record_placement(
        self,
        model: str,
        worker_id: str,
        *,
        tenant: str = "",
        dp_rank: int = 0,
        token_ids: Optional[Sequence[int]] = None,
        block_size: Optional[int] = None,
        lora_name: str = "",
        cache_salt: str = "",
        multimodal: Sequence[MultimodalItem] = (),
        local_hashes: Optional[Sequence[int]] = None,
        ttl_ms: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Placement:
        """Records that a prompt was just sent to a worker, which must be registered.

        Its blocks are speculative there for `ttl_ms`, 120,000 by default: `find_matches` counts
        them apart from those that events confirm. Give the prompt as for `find_matches`.

        A prompt shorter than a block has no blocks to record, and the server is not called.
        """
        if (token_ids is None) == (local_hashes is None):
            problem = "give exactly one of token_ids and local_hashes"
            raise InvalidArgumentError("token_ids", problem)
        request = pb.RecordPlacementRequest(
            model=read_name("model", model, required=True),
            tenant=read_name("tenant", tenant),
            worker_id=read_name("worker_id", worker_id, required=True),
            dp_rank=read_int("dp_rank", dp_rank, 0, WORKER_RANKS_MAX - 1),
        )
        if block_size is not None:
            request.block_size = read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX)
        if ttl_ms is not None:
            request.ttl_ms = read_int("ttl_ms", ttl_ms, 1, PLACEMENT_TTL_MS_MAX)
        namespace = (lora_name, cache_salt, multimodal)
        _fill_prompt(request, token_ids, block_size, namespace, local_hashes)
        if not request.local_hashes:
            return Placement(prompt_blocks=0, new_blocks=0)
        answer = self._call("RecordPlacement", request, pb.RecordPlacementResponse, timeout)
        return Placement(answer.prompt_blocks, answer.new_blocks)

    def report_reuse(
        self,
        model: str,
        worker_id: str,
        requests: Sequence[ReusedTokens],
        *,
        tenant: str = "",
        dp_rank: int = 0,
        timeout: Optional[float] = None,
    ) -> int:
        """Reports how many prompt tokens an engine had cached, beside the index's answer.

        While many of a rank's last requests differ, the rank is not EXACT. Report only requests
        that ran alone at their rank, and whose engine read its cache. Requires the right to
        publish. Returns how many of the requests differ.
        """
        read_list("requests", requests)
        read_int("the number of requests", len(requests), 1, REUSE_REQUESTS_MAX)
        request = pb.ReportReuseRequest(
            model=read_name("model", model, required=True),
            tenant=read_name("tenant", tenant),
            worker_id=read_name("worker_id", worker_id, required=True),
            dp_rank=read_int("dp_rank", dp_rank, 0, WORKER_RANKS_MAX - 1),
        )
        for number, reused in enumerate(requests):
            field = f"requests[{number}]."
            most = read_int(field + "prompt_tokens", reused.prompt_tokens, 1, QUERY_TOKENS_MAX)
            request.requests.add(
                prompt_tokens=most,
                expected_tokens=read_int(
                    field + "expected_tokens", reused.expected_tokens, 0, most
                ),
                cached_tokens=read_int(field + "cached_tokens", reused.cached_tokens, 0, most),
            )
        answer = self._call("ReportReuse", request, pb.ReportReuseResponse, timeout)
        return answer.differing_requests

    def dump_worker(
        self,
        model: str,
        worker_id: str,
        *,
        tenant: str = "",
        dp_rank: Optional[int] = None,
        timeout: Optional[float] = None,
    ) -> Iterator[DumpPart]:
        """Streams all blocks that the index has for a worker.

        Records come first, parents before children, then one `DumpEnd` per source. A dump that
        breaks off raises an `RpcError`. `timeout` is for the whole dump.
        """
        request = pb.DumpWorkerRequest(
            model=read_name("model", model, required=True),
            tenant=read_name("tenant", tenant),
            worker_id=read_name("worker_id", worker_id, required=True),
        )
        if dp_rank is not None:
            request.dp_rank = read_int("dp_rank", dp_rank, 0, (1 << 32) - 1)
        limit = DUMP_TIMEOUT_DEFAULT if timeout is None else read_seconds("timeout", timeout)
        path, answer = _rpc.INDEXER + "DumpWorker", pb.DumpWorkerResponse
        return _read.dump(_rpc.stream(self._channel, path, request, answer, limit))

    def list_workers(
        self,
        *,
        model: Optional[str] = None,
        tenant: Optional[str] = None,
        timeout: Optional[float] = None,
    ) -> list[WorkerInfo]:
        """Lists the workers of a model and tenant; default all. `timeout` is for each page."""
        request = pb.ListWorkersRequest()
        if model is not None:
            request.model = read_name("model", model)
        if tenant is not None:
            request.tenant = read_name("tenant", tenant)
        workers: list[WorkerInfo] = []
        while True:
            answer = self._call("ListWorkers", request, pb.ListWorkersResponse, timeout)
            workers.extend(_read.worker(worker) for worker in answer.workers)
            request.page_token = answer.next_page_token
            if not request.page_token:
                return workers

    def get_stats(self, *, timeout: Optional[float] = None) -> Stats:
        """Returns sizes and counters of the server."""
        answer = self._call("GetStats", pb.GetStatsRequest(), pb.GetStatsResponse, timeout)
        return _read.stats(answer)

    def register_worker(
        self,
        model: str,
        worker_id: str,
        block_size: int,
        *,
        tenant: str = "",
        engine: Engine = Engine.CUSTOM,
        endpoints: Sequence[EngineEndpoint] = (),
        lease_ms: int = 0,
        lora_names: Mapping[int, str] = MappingProxyType({}),
        medium_ttls_ms: Mapping[str, int] = MappingProxyType({}),
        connector_chunks: Mapping[str, int] = MappingProxyType({}),
        take_over: bool = False,
        timeout: Optional[float] = None,
    ) -> bool:
        """Registers a worker. The index connects to its `endpoints`, if any.

        The index removes a worker that is silent for `lease_ms`; 0 is no lease. `lora_names` names
        the adapters that the engine announces by number. `medium_ttls_ms` is the time to live of
        blocks on a medium such as "CPU" whose connector never reports evictions. `connector_chunks`
        is the number of blocks in a chunk on a medium whose connector loads complete chunks only.
        `take_over` removes other workers from the endpoints. Returns False if the same
        registration existed already.
        """
        request = registration(model, tenant, worker_id, block_size, engine, lease_ms)
        request.take_over = take_over
        for endpoint in endpoints:
            request.endpoints.add(
                endpoint=endpoint.endpoint,
                replay_endpoint=endpoint.replay_endpoint,
                topic=endpoint.topic,
                dp_rank=endpoint.dp_rank,
            )
        for number, name in lora_names.items():
            request.lora_names.add(id=number, name=name)
        for medium, ttl_ms in medium_ttls_ms.items():
            request.medium_ttls.add(medium=medium, ttl_ms=ttl_ms)
        for medium, blocks in connector_chunks.items():
            request.connector_chunks.add(medium=medium, blocks=blocks)
        answer = self._call("RegisterWorker", request, pb.RegisterWorkerResponse, timeout)
        return answer.created

    def remove_worker(
        self, model: str, worker_id: str, *, tenant: str = "", timeout: Optional[float] = None
    ) -> int:
        """Removes a worker and all its blocks. Returns the number of removed blocks."""
        request = pb.RemoveWorkerRequest(
            model=read_name("model", model, required=True),
            tenant=read_name("tenant", tenant),
            worker_id=read_name("worker_id", worker_id, required=True),
        )
        answer = self._call("RemoveWorker", request, pb.RemoveWorkerResponse, timeout)
        return answer.removed_blocks

    def _call(
        self,
        method: str,
        request: Message,
        answer: type[_rpc.Answer],
        timeout: Optional[float],
    ) -> _rpc.Answer:
        limit = self._timeout if timeout is None else read_seconds("timeout", timeout)
        return _rpc.call(self._channel, _rpc.INDEXER + method, request, answer, limit)


def registration(
    model: str, tenant: str, worker_id: str, block_size: int, engine: Engine, lease_ms: int
) -> pb.RegisterWorkerRequest:
    """Builds the registration of a worker without endpoints."""
    if lease_ms != 0:
        read_int("lease_ms", lease_ms, LEASE_MS_MIN, LEASE_MS_MAX)
    return pb.RegisterWorkerRequest(
        worker_id=read_name("worker_id", worker_id, required=True),
        model=read_name("model", model, required=True),
        tenant=read_name("tenant", tenant),
        block_size=read_int("block_size", block_size, 1, BLOCK_SIZE_TOKENS_MAX),
        engine=types_pb2.Engine.Name(engine.value),
        lease_ms=lease_ms,
    )


def _fill_prompt(
    request: Union[pb.FindMatchesRequest, pb.RecordPlacementRequest],
    token_ids: Optional[Sequence[int]],
    block_size: Optional[int],
    namespace: tuple[str, str, Sequence[MultimodalItem]],
    local_hashes: Optional[Sequence[int]],
) -> None:
    if token_ids is not None:
        request.local_hashes.extend(_hashed(token_ids, block_size, namespace))
        request.hash_scheme = HASH_SCHEME
    elif any(namespace):
        problem = "go with token_ids only: hashes already contain them"
        raise InvalidArgumentError("lora_name, cache_salt, multimodal", problem)
    if local_hashes is not None:
        request.local_hashes.extend(read_hash_list("local_hashes", local_hashes))
        request.hash_scheme = HASH_SCHEME


def _hashed(
    token_ids: Sequence[int],
    block_size: Optional[int],
    namespace: tuple[str, str, Sequence[MultimodalItem]],
) -> list[int]:
    if block_size is None:
        problem = "is missing: give the model's, since tokens are hashed here"
        raise InvalidArgumentError("block_size", problem)
    lora_name, cache_salt, multimodal = namespace
    return local_hashes(
        token_ids,
        block_size,
        lora_name=lora_name,
        cache_salt=cache_salt,
        multimodal=multimodal,
    )
