"""A publisher against a scripted index: answers that are rare from a real one."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any, Callable

import grpc
import pytest
from conftest import WAIT_SECONDS

import kvasir.publisher as publisher_module
from kvasir import KvEventPublisher, PublisherState, RefusedError, WrongShardError, _rpc
from kvasir._gen import indexer_pb2, ingest_pb2

REGISTER = _rpc.INDEXER + "RegisterWorker"
Requests = Iterator[ingest_pb2.PublishEventsRequest]
Answers = Iterator[ingest_pb2.PublishEventsResponse]
Script = Callable[[Requests, grpc.ServicerContext], Answers]


def accepted() -> ingest_pb2.PublishEventsResponse:
    return ingest_pb2.PublishEventsResponse(accepted=ingest_pb2.PublishAccepted())


def refusal(sequence: int, reason: str, message: str) -> ingest_pb2.PublishEventsResponse:
    refused = ingest_pb2.PublishRefusal(sequence=sequence, reason=reason, message=message)
    return ingest_pb2.PublishEventsResponse(refusal=refused)


def acknowledge(requests: Requests, context: grpc.ServicerContext) -> Answers:
    """Acknowledges every batch."""
    yield accepted()
    for request in requests:
        if request.HasField("batch"):
            ack = ingest_pb2.PublishAck(sequence=request.batch.sequence, applied=1)
            yield ingest_pb2.PublishEventsResponse(ack=ack)


class Scripted(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Serves each stream by the next script, then by `acknowledge`."""

    def __init__(self) -> None:
        self.scripts: Queue[Script] = Queue()
        self.hellos: Queue[ingest_pb2.PublishHello] = Queue()
        self.registers = True

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == REGISTER and self.registers:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: indexer_pb2.RegisterWorkerResponse(created=True),
                request_deserializer=indexer_pb2.RegisterWorkerRequest.FromString,
                response_serializer=indexer_pb2.RegisterWorkerResponse.SerializeToString,
            )
        if details.method == _rpc.PUBLISH_EVENTS:
            return grpc.stream_stream_rpc_method_handler(
                self._publish,
                request_deserializer=ingest_pb2.PublishEventsRequest.FromString,
                response_serializer=ingest_pb2.PublishEventsResponse.SerializeToString,
            )
        return None

    def _publish(self, requests: Requests, context: grpc.ServicerContext) -> Answers:
        self.hellos.put(next(requests).hello)
        script = acknowledge if self.scripts.empty() else self.scripts.get()
        yield from script(requests, context)


class ScriptedIndex:
    """A scripted index and its publishers."""

    def __init__(self) -> None:
        self.handler = Scripted()
        self.server = grpc.server(ThreadPoolExecutor(8), handlers=[self.handler])
        self.target = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()
        self.publishers: list[KvEventPublisher] = []

    def publisher(self, *scripts: Script, **options: Any) -> KvEventPublisher:
        for script in scripts:
            self.handler.scripts.put(script)
        publisher = KvEventPublisher(self.target, "worker", "model", 4, **options)
        self.publishers.append(publisher)
        return publisher

    def hello(self) -> ingest_pb2.PublishHello:
        return self.handler.hellos.get(timeout=WAIT_SECONDS)


@pytest.fixture
def index() -> Iterator[ScriptedIndex]:
    scripted = ScriptedIndex()
    yield scripted
    for publisher in scripted.publishers:
        publisher.shutdown(1.0)
    scripted.server.stop(None).wait()


def test_a_gap_opens_a_new_stream(index: ScriptedIndex) -> None:
    def gap(requests: Requests, context: grpc.ServicerContext) -> Answers:
        yield accepted()
        batch = next(request.batch for request in requests if request.HasField("batch"))
        yield refusal(batch.sequence, "REFUSAL_REASON_GAP", "send 0 next")

    publisher = index.publisher(gap)
    publisher.publish_stored([1] * 4, [1])
    publisher.flush(WAIT_SECONDS)
    first, second = index.hello(), index.hello()
    assert first.incarnation == second.incarnation
    assert (second.first_sequence, second.head_sequence) == (0, 0)
    assert publisher.status().images == 0


def test_a_fenced_publisher_pauses_before_its_next_stream(
    index: ScriptedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class Factor(float):
        def __rmul__(self, pause: float) -> float:
            pauses.append(pause)
            return 0.0

    monkeypatch.setattr(random, "uniform", lambda low, high: Factor(low))

    def fence(requests: Requests, context: grpc.ServicerContext) -> Answers:
        yield accepted()
        next(requests)
        yield refusal(0, "REFUSAL_REASON_FENCED", "another stream took over")

    publisher = index.publisher(fence)
    publisher.publish_stored([1] * 4, [1])
    publisher.flush(WAIT_SECONDS)
    assert pauses[0] == publisher_module._PAUSE_MAX, pauses


def test_a_fence_starts_a_new_incarnation(index: ScriptedIndex) -> None:
    def fence(requests: Requests, context: grpc.ServicerContext) -> Answers:
        yield accepted()
        yield refusal(0, "REFUSAL_REASON_FENCED", "another stream took over")

    publisher = index.publisher(fence)
    publisher.publish_stored([1] * 4, [1])
    publisher.flush(WAIT_SECONDS)
    assert index.hello().incarnation != index.hello().incarnation
    assert publisher.status().images == 1


def test_an_invalid_event_fails_the_publisher(index: ScriptedIndex) -> None:
    def invalid(requests: Requests, context: grpc.ServicerContext) -> Answers:
        yield accepted()
        next(request for request in requests if request.HasField("batch"))
        yield refusal(0, "REFUSAL_REASON_INVALID", "events[0].stored.names is required")

    publisher = index.publisher(invalid)
    publisher.publish_stored([1] * 4, [1])
    with pytest.raises(RefusedError, match=r"event 0: events\[0\]\.stored\.names"):
        publisher.flush(WAIT_SECONDS)
    assert publisher.status().state is PublisherState.FAILED


def test_a_malformed_answer_opens_a_new_stream(index: ScriptedIndex) -> None:
    def malformed(requests: Requests, context: grpc.ServicerContext) -> Answers:
        yield accepted()
        ack = ingest_pb2.PublishAck(sequence=7)
        yield ingest_pb2.PublishEventsResponse(ack=ack)

    def ended(requests: Requests, context: grpc.ServicerContext) -> Answers:
        yield accepted()

    publisher = index.publisher(malformed, ended)
    publisher.publish_stored([1] * 4, [1])
    publisher.flush(WAIT_SECONDS)
    assert publisher.status().streams == 3
    assert publisher.status().images == 0


def test_an_index_ahead_of_the_publisher_gets_an_image(index: ScriptedIndex) -> None:
    def ahead(requests: Requests, context: grpc.ServicerContext) -> Answers:
        answer = accepted()
        answer.accepted.applied.incarnation = incarnation
        answer.accepted.applied.sequence = 41
        yield answer

    publisher = index.publisher(acknowledge)
    publisher.publish_stored([1] * 4, [1])
    publisher.flush(WAIT_SECONDS)
    incarnation = index.hello().incarnation
    index.handler.scripts.put(ahead)
    index.server.stop(None).wait()
    index.server = grpc.server(ThreadPoolExecutor(8), handlers=[index.handler])
    index.server.add_insecure_port(index.target)
    index.server.start()
    assert index.hello().incarnation == incarnation
    assert index.hello().incarnation != incarnation
    publisher.flush(WAIT_SECONDS)
    assert publisher.status().images == 1


def test_rejected_blocks_are_counted(index: ScriptedIndex) -> None:
    def reject(requests: Requests, context: grpc.ServicerContext) -> Answers:
        yield accepted()
        for request in requests:
            if request.HasField("batch"):
                ack = ingest_pb2.PublishAck(sequence=request.batch.sequence, rejected=3)
                yield ingest_pb2.PublishEventsResponse(ack=ack)

    publisher = index.publisher(reject)
    publisher.publish_stored([1] * 4, [1])
    publisher.publish_removed([1])
    publisher.flush(WAIT_SECONDS)
    assert publisher.status().rejected_blocks == 6


def test_a_target_that_does_not_register_is_refused(index: ScriptedIndex) -> None:
    index.handler.registers = False
    with pytest.raises(RefusedError, match="register=False"):
        index.publisher().wait_connected(WAIT_SECONDS)
    publisher = index.publisher(register=False)
    publisher.publish_stored([1] * 4, [1])
    publisher.flush(WAIT_SECONDS)


def test_the_wrong_shard_is_not_retried(index: ScriptedIndex) -> None:
    def elsewhere(requests: Requests, context: grpc.ServicerContext) -> Answers:
        context.set_trailing_metadata((("kvasir-owner-shard", "2"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "bucket 7 belongs to shard 2")
        yield accepted()

    # A second attempt would succeed.
    publisher = index.publisher(elsewhere)
    for _ in range(2):
        with pytest.raises(WrongShardError, match="bucket 7 belongs to shard 2") as error:
            publisher.wait_connected(WAIT_SECONDS)
        assert error.value.owner_shard == "2"
    assert publisher.status().state is PublisherState.FAILED
