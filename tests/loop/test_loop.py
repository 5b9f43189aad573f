"""The loop on the real parts as a program sees it: chat, rate, learn, be answered, roll back.

Quality and times are not asserted: what v1 learned is checked on log-probs of fixed ids.
"""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import openai
import pytest

from rollouts.engines.base import Engine
from rollouts.hints import hinted_messages
from rollouts.types import BASE, Message, Policy
from tests.loop.conftest import QUESTIONS, Lesson
from tests.loop.person import ENDLESS, Person, engine_of, listed, rows
from tests.realstack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]


# Chat


def test_what_is_kept_of_a_reply_comes_from_the_engine(lesson: Lesson) -> None:
    alice = lesson.person
    for turn_id, headers in zip(lesson.turns, lesson.headers, strict=True):
        assert headers["x-clawweb-turn"] == turn_id
        assert headers["x-clawweb-adapter"] == "base"
        assert "x-clawweb-fallback" not in headers
        row = alice.row("turn", public_id=turn_id)
        ids = listed(row, "response_ids")
        assert len(listed(row, "logprobs")) == len(ids) == alice.turn(turn_id)["tokens"] > 0
        assert len(listed(row, "prompt_ids")) > 0
        assert all(value <= 0 for value in listed(row, "logprobs"))
        sampling = listed(row, "sampling")
        assert (sampling["temperature"], sampling["top_p"], sampling["top_k"]) == (0.7, 1.0, 0)
        assert len(row["template_hash"]) == 64
        turn = alice.turn(turn_id)
        assert (turn["state"], turn["version"], turn["fallback"]) == ("complete", 0, "")
        assert turn["started_at"] <= turn["first_token_at"] <= turn["finished_at"]


def test_a_reply_that_ends_by_itself_keeps_its_end_token(bob: Person) -> None:
    asked = (bob.ask("Say only the word yes.", max_tokens=60, seed=seed) for seed in range(1, 9))
    rows_of = (bob.row("turn", public_id=turn_id) for turn_id in asked)
    row = next(row for row in rows_of if row["finish_reason"] == "stop")
    # The prompt's messages end with the same token.
    assert listed(row, "response_ids")[-1] in listed(row, "prompt_ids")
    assert len(listed(row, "logprobs")) == len(listed(row, "response_ids"))


def test_openais_client_streams_with_usage(stack: Stack, alice: Person) -> None:
    with sdk(stack, alice) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="agent",
            messages=[{"role": "user", "content": "What is gravity?"}],
            max_tokens=40,  # so many that they do not all come at once
            stream=True,
            stream_options={"include_usage": True},
            **ENDLESS,
        )
        chunks = list(raw.parse())
    texts = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    turn = alice.turn(chunks[0].id)
    assert turn["reply"] == "".join(texts)
    assert sum(bool(text) for text in texts) > 1
    assert raw.headers["X-Clawweb-Turn"] == turn["id"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == turn["finish_reason"]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == turn["tokens"] <= 40
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_openais_client_reads_errors_and_models(stack: Stack, bob: Person) -> None:
    with sdk(stack, bob) as client:
        names = [model.id for model in client.models.list()]
        assert names[:2] == ["agent", "base"]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(
                model="gpt-4", messages=[{"role": "user", "content": "Hello"}]
            )
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model="agent", messages=[{"role": "user", "content": "tea " * 3000}]
            )
    assert refused.value.code == "context_length_exceeded"


def test_the_same_messages_again_are_a_sibling(bob: Person) -> None:
    first = bob.ask("Why do cats purr?", session="again")
    second = bob.ask("Why do cats purr?", session="again")
    assert bob.turn(second)["siblings"] == [first, second]
    reply = bob.turn(second)["reply"]
    messages = [
        {"role": "user", "content": "Why do cats purr?"},
        {"role": "assistant", "content": reply},
        {"role": "user", "content": "And dogs?"},
    ]
    third = bob.ask("", session="again", messages=messages)
    assert bob.turn(third)["parent"] == second
    assert bob.turn(third)["input"] == messages[2:]


def test_base_answers_whoever_asks_for_it_and_its_replies_do_not_train(bob: Person) -> None:
    answer = bob.chat("What is inflation?", model="base")
    assert answer.headers["X-Clawweb-Adapter"] == "base"
    receipt = bob.rate(answer.json()["id"])
    assert (receipt["state"], receipt["drop_reason"]) == ("not_used", "base_requested")


# Rate and learn


def test_a_bare_thumb_down_waits_for_its_reason(bob: Person) -> None:
    turn = bob.ask("How do I make tea?")
    assert bob.rate(turn, value=-1)["state"] == "saved"
    assert bob.rate(turn, value=-1, reasons=["too_long"])["state"] == "counted"
    assert bob.rate(turn, value=None)["state"] == "withdrawn"


def test_receipts_move_from_counted_to_learned(lesson: Lesson) -> None:
    counts = [receipt["count"] for receipt in lesson.receipts[:7]]
    assert counts == [{"have": n, "need": 8} for n in range(1, 8)]
    assert lesson.receipts[4]["text"] == "counted (5 of 8)"
    assert lesson.states[-2:] == ["in_training", "learned"]
    for turn in lesson.turns:
        receipt = lesson.person.receipt(turn)
        assert receipt["state"] == "learned"
        assert (receipt["job"], receipt["adapter"]) == (lesson.job["id"], lesson.adapter)


def test_the_job_took_each_rating_once(lesson: Lesson) -> None:
    job = lesson.job
    assert (job["state"], job["trigger"], job["attempt"]) == ("deployed", "batch", 1)
    assert job["samples"] == 8
    assert job["parent"] is None
    assert {"load", "train", "save", "gate", "deploy"} <= set(job["timings"])


def test_ratings_beyond_the_batch_are_not_lost(lesson: Lesson) -> None:
    receipts = [lesson.person.receipt(turn) for turn in lesson.late]
    assert [receipt["state"] for receipt in receipts] == ["counted", "counted"]
    assert receipts[0]["count"]["have"] >= 2


def test_metrics_have_one_point_per_step(lesson: Lesson) -> None:
    points = lesson.person.points(lesson.job["id"])
    assert [point["step"] for point in points] == list(range(1, lesson.job["step"] + 1))
    for point in points:
        assert None not in point.values()
        for name in ("loss", "kl", "grad_norm", "tokens_per_second"):
            assert math.isfinite(point[name])
    assert points[0]["reward"] == -1.0
    assert all("reward" not in point for point in points if point["phase"] == "reanswer")
    last = points[-1]["step"]
    assert lesson.person.points(lesson.job["id"], after=last - 1) == points[-1:]
    assert lesson.person.points(lesson.job["id"], after=last) == []


def test_one_version_with_its_gate_results(lesson: Lesson) -> None:
    versions = [row for row in lesson.person.adapters() if row["version"] == 1]
    assert [row["name"] for row in versions] == [lesson.adapter]
    gate = {row["measure"]: row for row in versions[0]["gate"]}
    assert {"preference", "drift", "empty", "cut_off", "repetition", "way"} <= set(gate)
    assert gate["preference"]["ok"] is None  # nothing was held back yet
    for row in gate.values():
        if row["ok"] is not None:
            assert row["ok"] is True
            assert math.isfinite(row["value"])
            assert math.isfinite(row["limit"])


def test_its_files_appeared_whole(stack: Stack, lesson: Lesson) -> None:
    assert lesson.folders[0] == {}
    assert len(lesson.folders) == 2, lesson.folders
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(lesson.folders[1])
    row = lesson.person.row("adapterversion", name=lesson.adapter)
    assert not list((stack.config.var / row["path"]).parent.glob("*partial*"))


def test_trainer_and_server_agree_on_the_probe(lesson: Lesson) -> None:
    probe = lesson.job["timings"]["probe"]
    assert probe["disagreement"] <= 1e-3
    assert probe["difference"] >= 1e-3


# Be answered by it


def test_the_version_answers_and_is_served_from_its_own_folder(
    stack: Stack, lesson: Lesson
) -> None:
    lesson.back_to_v1()
    alice = lesson.person
    answer = alice.chat("What is gravity?")
    assert answer.headers["X-Clawweb-Adapter"] == lesson.adapter
    turn = alice.turn(answer.json()["id"])
    assert (turn["version"], turn["adapter"], turn["fallback"]) == (1, lesson.adapter, "")
    row = alice.row("adapterversion", name=lesson.adapter)
    served = asyncio.run(engine_of(stack).loaded())
    assert served[lesson.adapter] == str((stack.config.var / row["path"]).resolve())
    again = alice.chat("What is gravity?", model="agent@v1")
    assert again.headers["X-Clawweb-Adapter"] == lesson.adapter


def test_v1_moved_toward_its_teacher_on_the_rated_replies(stack: Stack, lesson: Lesson) -> None:
    """Σ (v1 − base)(hinted base − base) over the log-probs of the rated ids is above 0."""
    lesson.back_to_v1()
    row = lesson.person.row("adapterversion", name=lesson.adapter)
    path = str((stack.config.var / row["path"]).resolve())
    v1 = Policy(adapter=lesson.adapter, version=1, path=path)
    hint = lesson.person.get("/api/reasons")["items"][0]["hint"]
    engine = engine_of(stack)
    along = moved = 0.0
    for text, turn_id in zip(QUESTIONS, lesson.turns, strict=True):
        turn = lesson.person.row("turn", public_id=turn_id)
        prompt, reply = listed(turn, "prompt_ids"), listed(turn, "response_ids")
        message = Message(role="user", content=text)
        hinted = render(stack, hinted_messages([message], hint=hint, correction=None))
        assert render(stack, [message]) == prompt
        base = score(engine, prompt, reply, BASE)
        pulls = zip(
            score(engine, prompt, reply, v1), score(engine, hinted, reply, BASE), base, strict=True
        )
        for after, taught, before in pulls:
            along += (after - before) * (taught - before)
            moved += abs(after - before)
    assert moved > 0.01
    assert along > 0


def test_another_user_sees_and_gets_nothing_of_it(lesson: Lesson, bob: Person) -> None:
    lesson.back_to_v1()
    assert bob.answerer() == "base"
    assert bob.adapters() == []
    session = lesson.headers[0]["x-clawweb-session"]
    job, adapter, turn = lesson.job["id"], lesson.adapter, lesson.turns[0]
    for path in (f"turns/{turn}", f"sessions/{session}", f"jobs/{job}", f"jobs/{job}/metrics"):
        assert bob.http.get(f"/api/{path}").status_code == 404
    for path, body in (
        (f"turns/{turn}/feedback", {"value": 1}),
        (f"jobs/{job}/cancel", None),
        (f"adapters/{adapter}/promote", None),
    ):
        assert bob.http.post(f"/api/{path}", json=body).status_code == 404
    for model in (adapter, "agent@v1"):
        assert bob.chat("Hello", model=model).status_code == 404


def test_vllm_lets_nobody_in_without_its_key(stack: Stack, lesson: Lesson) -> None:
    url = f"{stack.config.vllm}/v1/models"
    assert httpx.get(url, trust_env=False, timeout=20).status_code == 401


# Roll back


def test_roll_back_and_promote(lesson: Lesson, record_property: Any) -> None:
    lesson.back_to_v1()
    alice = lesson.person
    assert alice.post("/api/adapters/rollback")["name"] == "base"
    assert alice.live() == "base"
    assert alice.answerer() == "base"
    assert alice.receipt(lesson.turns[0])["text"] == "learned in v1 (rolled back)"
    assert alice.http.post("/api/adapters/rollback").status_code == 409
    # An abandoned version can still be asked for by its number.
    assert alice.answerer(model="agent@v1") == lesson.adapter
    promoted = alice.http.post(f"/api/adapters/{lesson.adapter}/promote")
    assert promoted.status_code == 200
    record_property("promote_seconds", promoted.elapsed.total_seconds())
    assert alice.answerer() == lesson.adapter
    assert alice.receipt(lesson.turns[0])["text"] == "learned in v1"
    alice.post("/api/adapters/rollback")
    assert alice.answerer() == "base"


# Train now


def test_train_now_needs_a_rating(bob: Person) -> None:
    refused = bob.http.post("/api/jobs")
    assert refused.status_code == 409
    assert "no counted rating" in refused.json()["detail"]


def test_train_now_learns_from_one_rating(stack: Stack, bob: Person, lesson: Lesson) -> None:
    turn = bob.ask("How do I boil an egg?", seed=3)
    bob.rate(turn)
    queued = bob.post("/api/jobs", status=202)
    assert bob.http.post("/api/jobs").status_code == 409  # one at a time
    job = bob.until(queued["id"], "deployed", "refused", "no_signal")
    assert (job["trigger"], job["samples"]) == ("manual", 1)
    receipt = bob.receipt(turn)
    if job["state"] == "deployed":
        assert receipt["state"] == "learned"
        assert bob.answerer() == job["child"] != lesson.adapter
    else:
        assert job["reason"]
        assert receipt["state"] in ("counted", "not_used")
        assert bob.answerer() == "base"
    assert len(rows(stack, "adapterversion", name=lesson.adapter)) == 1


def sdk(stack: Stack, someone: Person) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{stack.url}/v1",
        api_key=someone.key,
        max_retries=0,
        http_client=openai.DefaultHttpxClient(trust_env=False),
    )


def render(stack: Stack, messages: list[Message]) -> list[int]:
    """The ids that vLLM's own template gives."""
    body = {"model": "base", "messages": messages, "add_generation_prompt": True}
    key = stack.config.secret("vllm_key", stack.config.vllm_key)
    answer = httpx.post(
        f"{stack.config.vllm}/tokenize",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        trust_env=False,
        timeout=60,
    )
    tokens: list[int] = answer.json()["tokens"]
    return tokens


def score(engine: Engine, prompt: list[int], reply: list[int], policy: Policy) -> list[float]:
    return asyncio.run(engine.score(prompt, reply, policy=policy))
