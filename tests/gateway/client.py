"""Asks a gateway by OpenAI's own client. See check."""

import sys
from typing import Any

import openai
from openai import OpenAI

LONG = "The licensor grants a licence to use, to copy, to change and to hand on the work. " * 8


def messages(text: str) -> Any:
    system = {"role": "system", "content": LONG}
    return [system, {"role": "user", "content": text}]


def answers(client: OpenAI, model: str) -> None:
    """Chats and completions, as a whole and in pieces: the answers are the same."""
    asked = {"model": model, "messages": messages("What is granted?"), "max_tokens": 12}
    whole = client.chat.completions.create(**asked)
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason == "length", whole
    assert whole.usage.completion_tokens == 12, whole

    pieces = list(client.chat.completions.create(**asked, stream=True))
    assert "".join(at.choices[0].delta.content or "" for at in pieces) == text, pieces
    assert all(at.choices for at in pieces), "nobody asked for the usage"
    assert pieces[-1].choices[0].finish_reason == "length", pieces
    options = {"include_usage": True}
    pieces = list(client.chat.completions.create(**asked, stream=True, stream_options=options))
    assert not pieces[-1].choices and pieces[-1].usage.completion_tokens == 12, pieces[-1]

    for prompt in (LONG, [1, 2, 3] * 40):
        asked = {"model": model, "prompt": prompt, "max_tokens": 9}
        whole = client.completions.create(**asked)
        pieces = list(client.completions.create(**asked, stream=True))
        assert whole.choices[0].text == "".join(at.choices[0].text for at in pieces), pieces
        assert whole.usage.completion_tokens == 9, whole


def models(client: OpenAI, model: str) -> None:
    """The models that workers serve."""
    assert [at.id for at in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model
    try:
        client.models.retrieve("other/model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("a model that nobody serves")


def refused(error: openai.APIStatusError, status: int, field: Any, kind: str) -> None:
    assert error.status_code == status, error
    assert (error.param, error.type) == (field, kind), error.body
    assert field is None or field in error.message, error


def errors(client: OpenAI, model: str) -> None:
    """Errors have OpenAI's form and name the field."""
    invalid = "invalid_request_error"
    chat = client.chat.completions.create
    hello = messages("hello")

    def hint(nvext: Any) -> Any:
        return lambda: chat(model=model, messages=hello, extra_body={"nvext": nvext})

    cases = [
        (lambda: chat(model="other", messages=hello), 404, "model"),
        (lambda: chat(model=model, messages=[]), 400, "messages"),
        (lambda: chat(model=model, messages=[{"content": "x"}]), 400, "messages[0].role"),
        (lambda: client.completions.create(model=model, prompt=[]), 400, "prompt"),
        (hint({"agent_hints": {"osl": "long"}}), 400, "nvext.agent_hints.osl"),
        (hint({"agent_hints": {"latency_sensitivity": -1}}), 400, "nvext.agent_hints.latency_sensitivity"),
        (hint({"backend_instance_id": []}), 400, "nvext.backend_instance_id"),
        # The engine's own refusal, passed on.
        (lambda: chat(model=model, messages=hello, max_tokens=10**7), 400, "max_tokens"),
        (lambda: chat(model=model, messages=hello, extra_body={"x": "y" * (1 << 20)}), 413, None),
        (lambda: client.post("/nothing", cast_to=object, body={}), 404, None),
    ]
    for call, status, field in cases:
        try:
            call()
        except openai.APIStatusError as error:
            kind = error.type if field == "max_tokens" else invalid
            refused(error, status, field, kind)
        else:
            raise AssertionError(f"{field} was not refused")


def leaves(client: OpenAI, model: str) -> None:
    """Clients that leave: one in the middle of a stream, one that waits for all of an answer."""
    asked = {"model": model, "messages": messages("Go on."), "max_tokens": 40_000}
    stream = client.chat.completions.create(**asked, stream=True)
    for _ in range(3):
        next(iter(stream))
    stream.close()
    try:
        client.with_options(timeout=1.0).chat.completions.create(**asked)
    except openai.APITimeoutError:
        return
    raise AssertionError("the answer was to take longer")


def hints(client: OpenAI, model: str) -> None:
    """A request goes to the worker that it names; other hints are taken."""
    raw = client.chat.completions.with_raw_response
    agent = {"osl": 64, "latency_sensitivity": 1.5, "priority_jump": 2, "kv_overlap_score_weight": 0.5}
    for worker in ("w0", "w1", "w0"):
        nvext = {"backend_instance_id": worker, "agent_hints": agent}
        text = f"Only for {worker}."
        answer = raw.create(model=model, messages=messages(text), max_tokens=2, extra_body={"nvext": nvext})
        assert answer.headers["x-kvasir-worker"] == worker, answer.headers
    try:
        nvext = {"backend_instance_id": "nobody"}
        raw.create(model=model, messages=messages("x"), extra_body={"nvext": nvext})
    except openai.APIStatusError as error:
        assert error.status_code in (400, 503), error
    else:
        raise AssertionError("a worker that does not exist")


def turns(client: OpenAI, model: str) -> None:
    """The next turn finds the first one with its answer in the cache."""
    history = messages("What is granted?")
    nvext = {"agent_hints": {"speculative_prefill": True}}
    asked = {"model": model, "max_tokens": 40}
    stream = client.chat.completions.create(
        **asked, messages=history, stream=True, extra_body={"nvext": nvext}
    )
    answer = "".join(at.choices[0].delta.content or "" for at in stream)
    assert answer, "an answer"
    print(answer)


def breaks(client: OpenAI, model: str) -> None:
    """A stream that breaks off says so."""
    text = ""
    try:
        for piece in client.completions.create(model=model, prompt=LONG, stream=True):
            text += piece.choices[0].text
    except openai.APIError as error:
        assert text == "half", text
        assert error.code == "engine_failed", error.body
        return
    raise AssertionError("the stream did not break")


def main() -> None:
    asked, url, model = sys.argv[1:]
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60.0)
    cases = (answers, models, errors, leaves, hints, turns, breaks)
    for case in asked.split(","):
        {at.__name__: at for at in cases}[case](client, model)


if __name__ == "__main__":
    main()
