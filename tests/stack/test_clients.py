"""The official SDKs and curl against the running system, as their users would write it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from clawweb.config import ROOT
from tests.loop.person import held_still
from tests.prepare import CLIENTS, in_ci
from tests.realstack import Stack

pytestmark = pytest.mark.stack

# Few words to choose from: a small model may write blanks for ever where a string is free.
CITIES = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": CITIES,
        "strict": True,
    },
}


@pytest.fixture(scope="module")
def key(stack: Stack) -> str:
    return stack.key("sdk")


@pytest.fixture(scope="module")
def client(stack: Stack, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def limited_key(stack: Stack, username: str, requests: int) -> str:
    """A key with a limit of its own, as an admin sets it."""
    plain = stack.key(username)
    code = (
        "from clawweb.models import ApiKey; "
        f"ApiKey.objects.filter(user__username='{username}').update(requests_per_minute={requests})"
    )
    stack.manage("shell", "-c", code)
    return plain


def say(text: str, **more: Any) -> Any:
    """A short greedy request of the base model."""
    message = {"role": "user", "content": text}
    return {"model": "base", "messages": [message], "max_tokens": 12, "temperature": 0, **more}


def create(client: openai.OpenAI, text: str, **more: Any) -> Any:
    return client.chat.completions.create(**say(text, **more))


def turn_of(client: openai.OpenAI, turn: str) -> Any:
    return client.get(str(client.base_url.join(f"/api/turns/{turn}")), cast_to=object)


def ended(client: openai.OpenAI, turn: str, seconds: float) -> str:
    """The turn's state once its reply has ended."""
    deadline = time.monotonic() + seconds
    while (state := turn_of(client, turn)["state"]) in ("pending", "streaming"):
        assert time.monotonic() < deadline, f"still {state}"
        time.sleep(0.1)
    return str(state)


# Replies


def test_a_stream_says_what_the_whole_reply_says(client: openai.OpenAI) -> None:
    whole = create(client, "Name a colour.")
    stream = list(
        create(client, "Name a colour.", stream=True, stream_options={"include_usage": True})
    )
    *chunks, last = stream
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content != ""
    assert (last.choices, last.usage) == ([], whole.usage)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_n_replies_come_with_their_indices(client: openai.OpenAI) -> None:
    reply = create(client, "Name an animal.", n=2, temperature=1.0)
    assert [choice.index for choice in reply.choices] == [0, 1]


def test_a_seed_gives_the_same_reply_again(client: openai.OpenAI) -> None:
    texts = {
        create(client, "Name a town.", seed=7, temperature=1.0).choices[0].message.content
        for _ in range(2)
    }
    assert len(texts) == 1


def test_stop_ends_a_reply_before_the_words(client: openai.OpenAI) -> None:
    text = "Count: one, two, three, four, five. Repeat that."
    plain = create(client, text, max_tokens=24).choices[0].message.content
    word = plain.split()[2]
    stopped = create(client, text, max_tokens=24, stop=[word]).choices[0]
    assert word not in stopped.message.content
    assert plain.startswith(stopped.message.content)
    assert stopped.finish_reason == "stop"


def test_logprobs_come_when_asked_for_and_else_not(client: openai.OpenAI) -> None:
    reply = create(client, "Name a colour.", logprobs=True, top_logprobs=2)
    entries = reply.choices[0].logprobs.content
    assert len(entries) >= reply.usage.completion_tokens - 1  # the end's token has no text
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in entries)
    assert create(client, "Name a colour.").choices[0].logprobs is None


def test_json_comes_in_the_shape_that_was_asked_for(client: openai.OpenAI) -> None:
    colour = {"type": "string", "enum": ["red", "blue"]}
    schema = {"type": "object", "properties": {"colour": colour}, "required": ["colour"]}
    shape = {"type": "json_schema", "json_schema": {"name": "pick", "schema": schema}}
    reply = create(client, "Pick a colour.", response_format=shape, max_tokens=40)
    assert json.loads(reply.choices[0].message.content)["colour"] in ("red", "blue")


def test_a_required_tool_is_called_and_its_result_is_taken(client: openai.OpenAI) -> None:
    asked = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 64}
    choice = create(client, "What is the weather in Rome?", **asked).choices[0]
    (call,) = choice.message.tool_calls[:1]
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    assert "city" in json.loads(call.function.arguments)
    messages = [
        {"role": "user", "content": "What is the weather in Rome?"},
        choice.message.to_dict(),
        *(
            {"role": "tool", "tool_call_id": each.id, "content": "sunny"}
            for each in choice.message.tool_calls
        ),
    ]
    after = client.chat.completions.create(
        model="base", messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=8
    )
    assert after.choices[0].message.tool_calls is None


def test_a_streamed_tool_call_can_be_put_together(client: openai.OpenAI) -> None:
    asked = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 64, "stream": True}
    name, arguments = "", ""
    for chunk in create(client, "What is the weather in Rome?", **asked):
        for part in chunk.choices[0].delta.tool_calls or ():
            if part.index == 0:
                name += part.function.name or ""
                arguments += part.function.arguments or ""
    assert name == "weather"
    assert "city" in json.loads(arguments)


# Errors


def test_errors_become_the_sdks_own_classes(stack: Stack, client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        create(client.with_options(api_key="claw-wrong"), "Hello")
    assert caught.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as missing:
        create(client, "Hello", model="gpt-9")
    assert missing.value.code == "model_not_found"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as long:
            create(client, "word " * 4000, stream=stream)
        assert long.value.code == "context_length_exceeded"


def test_beyond_a_limit_the_sdk_waits_as_told_and_tries_again(
    stack: Stack, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = client.with_options(api_key=limited_key(stack, "hasty", 1))
    ours.models.list()
    refused = time.monotonic()
    with pytest.raises(openai.RateLimitError) as caught:
        ours.models.list()
    assert caught.value.code == "rate_limit_exceeded"
    told = int(caught.value.response.headers["Retry-After"])
    assert 1 <= told <= 60
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    with pytest.raises(openai.RateLimitError):
        ours.with_options(max_retries=1).models.list()
    assert len(waited) == 1
    assert told - (time.monotonic() - refused) - 1 <= waited[0] <= told


class Line(socketserver.ThreadingTCPServer):
    """A line to the server that breaks once, when the whole answer is on its way back."""

    daemon_threads = True

    def __init__(self, stack: Stack) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.port = stack.config.port
        self.lost = b""


class Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Line)
        with socket.create_connection(("127.0.0.1", self.server.port)) as there:
            threading.Thread(target=pump, args=[self.request, there], daemon=True).start()
            if self.server.lost:
                pump(there, self.request)
                return
            answer = b""
            while b'"usage"' not in answer:
                answer += there.recv(65536)
            self.server.lost = answer


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side hung up
        while data := source.recv(65536):
            target.sendall(data)


def test_a_request_that_the_sdk_sends_again_makes_no_second_turn(stack: Stack, key: str) -> None:
    with Line(stack) as line:
        threading.Thread(target=line.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{line.server_address[1]}/v1"
        with openai.OpenAI(base_url=url, api_key=key, max_retries=1) as client:
            reply = create(client, "Name a fruit that nobody lost before.", temperature=1.0)
        line.shutdown()
    assert reply.id.encode() in line.lost


def test_leaving_a_stream_stops_the_reply(client: openai.OpenAI) -> None:
    stream = create(client, "Count to one hundred.", stream=True, max_tokens=600)
    first = next(iter(stream))
    stream.close()
    assert ended(client, first.id, 60) in ("stopped", "complete")  # a short one may be over
    assert len(turn_of(client, first.id)["reply"]) < 1500


WAITING = """
import OpenAI from "openai";
const request = JSON.parse(process.argv[1]);
const stream = await new OpenAI({ maxRetries: 0 }).chat.completions.create(request);
console.log("begun");
let id = "", text = "";
for await (const chunk of stream) {
  id = chunk.id;
  text += chunk.choices[0]?.delta.content ?? "";
}
console.log(JSON.stringify([id, text]));
"""


def test_both_sdks_wait_in_line_with_us(
    stack: Stack, client: openai.OpenAI, key: str, node: str
) -> None:
    """While no generator takes a reply its stream is comments. Who leaves then leaves the line."""
    asked = say("Name a river.", stream=True)
    names = {"OPENAI_BASE_URL": f"{stack.url}/v1", "OPENAI_API_KEY": key}
    command = [node, "--input-type=module", "-e", WAITING, json.dumps(asked)]
    with held_still(stack, "generator"):
        other = subprocess.Popen(
            command, cwd=CLIENTS, env={**os.environ, **names}, stdout=subprocess.PIPE, text=True
        )
        assert other.stdout
        stream = client.chat.completions.create(**asked)  # once its headers are there
        heads = {"Authorization": f"Bearer {key}"}
        url = f"{stack.url}/v1/chat/completions"
        with httpx.stream("POST", url, json=asked, headers=heads, timeout=30) as raw:
            assert next(raw.iter_raw()).startswith(b": waiting\n\n")
            assert "x-clawweb-adapter" not in raw.headers
        assert ended(client, raw.headers["x-clawweb-turn"], 60) == "stopped"
        assert other.stdout.readline() == "begun\n"
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    for turn, read in ([chunks[0].id, text], json.loads(other.stdout.readline())):
        assert turn_of(client, turn)["reply"] == read != ""
    other.wait(20)
    other.stdout.close()


def test_an_idle_connection_lasts_longer_than_clients_count_on_it(stack: Stack) -> None:
    where = stack.url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(where, timeout=20)) as connection:
        connection.auto_open = 0  # type: ignore[attr-defined]  # a second connection is an error
        connection.connect()
        for idle in (6, 0):  # httpx and Node keep one for 4 to 5 s, and so did the server
            connection.request("GET", "/livez")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"ok")
            time.sleep(idle)


# What the pages say


def blocks(page: str, language: str) -> str:
    text = (ROOT / "docs" / "clients" / page).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found
    return "\n".join(found)


def run(command: list[str], stack: Stack, key: str, folder: Path, **more: str) -> str:
    names = {"OPENAI_BASE_URL": f"{stack.url}/v1", "OPENAI_API_KEY": key}
    environment = {**os.environ, **names, "KEY": key, "URL": stack.url, **more}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def node() -> str:
    """Node and the npm package; in CI they must be there."""
    found = shutil.which("node")
    if found and (CLIENTS / "node_modules" / "openai").is_dir():
        return found
    assert not in_ci(), "tests/prepare.py did not install the npm package"
    pytest.skip("no Node with the npm package `openai`: tests/prepare.py says why")


def test_the_python_page_works(stack: Stack, key: str, tmp_path: Path) -> None:
    said = run([sys.executable, "-c", blocks("python.md", "python")], stack, key, tmp_path)
    assert "tokens" in said
    assert "'state': 'saved'" in said or "'state': 'counted'" in said
    assert "base sess-" in said


def test_the_javascript_page_works(stack: Stack, key: str, node: str) -> None:
    page = CLIENTS / "page.mjs"  # beside node_modules, where the import is found
    page.write_text(blocks("javascript.md", "js"))
    try:
        said = run([node, str(page)], stack, key, CLIENTS)
    finally:
        page.unlink()
    assert "tokens" in said
    assert re.search(r"state: '(saved|counted)'", said)


def test_the_curl_page_works(stack: Stack, key: str, tmp_path: Path) -> None:
    script = f"set -euo pipefail\n{blocks('curl.md', 'bash')}"
    said = run(["bash", "-c", script], stack, key, tmp_path)
    assert "data: [DONE]" in said
    assert '"too_long"' in said
    assert said.endswith("200\n200\n200\n")


def test_the_npm_package_understands_us(
    stack: Stack, client: openai.OpenAI, key: str, node: str
) -> None:
    limited = limited_key(stack, "hasty-too", 1)
    said = run([node, str(CLIENTS / "sdk.mjs")], stack, key, CLIENTS, LIMITED_KEY=limited)
    found = json.loads(said.splitlines()[-1])
    assert found["whole"]["text"] == found["streamed"]["text"] == found["helper"]["text"] != ""
    assert found["whole"]["usage"] == found["streamed"]["usage"]
    assert found["whole"]["object"] == "chat.completion"
    assert found["tools"][:1] == ["weather"]
    assert found["errors"] == {
        "key": {"kind": "AuthenticationError", "status": 401, "code": "invalid_api_key"},
        "model": {"kind": "NotFoundError", "status": 404, "code": "model_not_found"},
        "length": {"kind": "BadRequestError", "status": 400, "code": "context_length_exceeded"},
        "limit": {"kind": "RateLimitError", "status": 429, "code": "rate_limit_exceeded"},
    }
    assert ended(client, found["aborted"], 60) in ("stopped", "complete")
