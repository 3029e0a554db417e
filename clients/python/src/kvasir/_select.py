"""Requests for a worker, validated."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Optional

from kvasir._check import (
    read_hash_list,
    read_int,
    read_list,
    read_name,
    read_number,
    read_salt,
    read_seconds,
    read_wide_tokens,
)
from kvasir._gen import indexer_pb2
from kvasir._gen import router_pb2 as pb
from kvasir.errors import InvalidArgumentError
from kvasir.limits import LATENCY_SENSITIVITY_SECONDS_MAX, QUEUE_SECONDS_MAX, WORKER_RANKS_MAX
from kvasir.route_types import ModelType, RouterMode, SelectHints, WorkerRole

_U64 = (1 << 64) - 1


@dataclass(frozen=True)
class Prompt:
    """The prompt of a request: exactly one of tokens and local hashes."""

    tokens: Optional[Sequence[int]]
    local_hashes: Optional[Sequence[int]]
    input_tokens: Optional[int]
    next_tokens_le: bytes


def select_request(prompt: Prompt, hints: SelectHints) -> pb.SelectWorkerRequest:
    """Builds a request. It lacks its partition."""
    unknown = hints.keys() - SelectHints.__annotations__.keys()
    if unknown:
        raise TypeError(f"there is no hint {min(unknown)!r}")
    request = pb.SelectWorkerRequest(
        request_id=read_name("request_id", hints.get("request_id", "")),
        lora_name=read_name("lora_name", hints.get("lora_name", "")),
        cache_salt=read_salt("cache_salt", hints.get("cache_salt", "")),
        mode=pb.RouterMode.Name(_read_mode(hints).value),
        session_id=read_name("session_id", hints.get("session_id", "")),
        roles=[_read_role(role) for role in hints.get("roles", ())],
        model_type=_read_model_type(hints),
        explain=hints.get("explain", False),
        dry_run=hints.get("dry_run", False),
        disaggregate=hints.get("disaggregate", False),
    )
    if request.disaggregate and (request.roles or request.dry_run):
        raise InvalidArgumentError("disaggregate", "does not go with roles or dry_run")
    _fill_prompt(request, prompt)
    _fill_multimodal(request, hints)
    _fill_numbers(request, hints)
    _fill_workers(request, hints)
    _fill_labels(request, hints)
    return request


def _read_mode(hints: SelectHints) -> RouterMode:
    mode = hints.get("mode", RouterMode.UNSPECIFIED)
    if not isinstance(mode, RouterMode):
        raise InvalidArgumentError("mode", f"is {mode!r}: give a kvasir.RouterMode")
    if mode is RouterMode.DIRECT and "worker_id" not in hints:
        raise InvalidArgumentError("worker_id", "is missing: mode DIRECT needs it")
    return mode


def _read_role(role: WorkerRole) -> str:
    if not isinstance(role, WorkerRole):
        raise InvalidArgumentError("roles", f"has {role!r}: give kvasir.WorkerRole values")
    return indexer_pb2.WorkerRole.Name(role.value)


def _read_model_type(hints: SelectHints) -> str:
    model_type = hints.get("model_type", ModelType.UNSPECIFIED)
    if not isinstance(model_type, ModelType):
        raise InvalidArgumentError("model_type", f"is {model_type!r}: give a kvasir.ModelType")
    return indexer_pb2.ModelType.Name(model_type.value)


def _fill_prompt(request: pb.SelectWorkerRequest, prompt: Prompt) -> None:
    tokens, local_hashes, input_tokens = prompt.tokens, prompt.local_hashes, prompt.input_tokens
    if (tokens is None) == (local_hashes is None):
        raise InvalidArgumentError("tokens", "give exactly one of tokens and local_hashes")
    if tokens is not None:
        packed, width = read_wide_tokens("tokens", tokens)
        if width == 4:
            request.token_ids_le = packed
        else:
            request.wide_token_ids.extend(tokens)
        if not packed:
            raise InvalidArgumentError("tokens", "is empty: give at least one")
        if input_tokens is not None:
            raise InvalidArgumentError("input_tokens", "goes with local_hashes only")
        if prompt.next_tokens_le:
            raise InvalidArgumentError("next_tokens_le", "goes with local_hashes only")
    if local_hashes is not None:
        request.local_hashes.extend(read_hash_list("local_hashes", local_hashes))
        if not request.local_hashes:
            problem = "is empty: give the tokens of a prompt that is shorter than a block"
            raise InvalidArgumentError("local_hashes", problem)
        if request.cache_salt:
            raise InvalidArgumentError("cache_salt", "goes with tokens only: hashes contain it")
        request.next_tokens_le = prompt.next_tokens_le
        if input_tokens is not None:
            request.input_tokens = read_int("input_tokens", input_tokens, 0, _U64)


def _fill_multimodal(request: pb.SelectWorkerRequest, hints: SelectHints) -> None:
    items = hints.get("multimodal", ())
    if items and request.local_hashes:
        raise InvalidArgumentError("multimodal", "goes with tokens only: hashes contain it")
    tokens = len(request.token_ids_le) // 4 + len(request.wide_token_ids)
    for index, item in enumerate(items):
        field = f"multimodal[{index}]"
        start = read_int(f"{field}.token_offset", item.token_offset, 0, tokens)
        request.multimodal.add(
            identifier=read_name(f"{field}.identifier", item.identifier, required=True),
            token_offset=start,
            token_count=read_int(f"{field}.token_count", item.token_count, 1, tokens - start),
        )


def _fill_numbers(request: pb.SelectWorkerRequest, hints: SelectHints) -> None:
    if "overlap_score_weight" in hints:
        weight = read_number("overlap_score_weight", hints["overlap_score_weight"], 0)
        request.overlap_score_weight = weight
    if "temperature" in hints:
        request.temperature = read_number("temperature", hints["temperature"], 0)
    if "expected_output_tokens" in hints:
        expected = read_int("expected_output_tokens", hints["expected_output_tokens"], 0, _U64)
        request.expected_output_tokens = expected
    sensitivity = read_number("latency_sensitivity", hints.get("latency_sensitivity", 0.0), 0)
    if sensitivity > LATENCY_SENSITIVITY_SECONDS_MAX:
        problem = f"is {sensitivity:g}: give at most {LATENCY_SENSITIVITY_SECONDS_MAX} seconds"
        raise InvalidArgumentError("latency_sensitivity", problem)
    request.latency_sensitivity = sensitivity
    if "queue_timeout" in hints:
        seconds = min(read_seconds("queue_timeout", hints["queue_timeout"]), QUEUE_SECONDS_MAX)
        request.queue_timeout_ms = math.ceil(seconds * 1_000)


def _fill_workers(request: pb.SelectWorkerRequest, hints: SelectHints) -> None:
    if "worker_id" in hints:
        request.pinned.worker_id = read_name("worker_id", hints["worker_id"], required=True)
        if "dp_rank" in hints:
            rank = read_int("dp_rank", hints["dp_rank"], 0, WORKER_RANKS_MAX - 1)
            request.pinned.dp_rank = rank
    elif "dp_rank" in hints:
        raise InvalidArgumentError("dp_rank", "goes with worker_id only")
    if "allowed" in hints:
        request.allowed_worker_ids.extend(_read_ids("allowed", hints["allowed"]))
        if not request.allowed_worker_ids:
            # To the router, an empty list would mean all.
            problem = "is empty: give at least one worker, or leave it out to allow all"
            raise InvalidArgumentError("allowed", problem)
    request.excluded_worker_ids.extend(_read_ids("excluded", hints.get("excluded", ())))


def _read_ids(field: str, ids: Collection[str]) -> list[str]:
    read_list(field, ids)
    return [read_name(f"{field}[{index}]", each, required=True) for index, each in enumerate(ids)]


def _fill_labels(request: pb.SelectWorkerRequest, hints: SelectHints) -> None:
    for key, value in hints.get("required_labels", {}).items():
        read_name("required_labels", key, required=True)
        request.required_labels.add(key=key, value=read_name("required_labels", value))
    for (key, value), weight in hints.get("preferred_labels", {}).items():
        read_name("preferred_labels", key, required=True)
        request.preferred_labels.add(
            key=key,
            value=read_name("preferred_labels", value),
            weight=read_number("preferred_labels", weight),
        )
