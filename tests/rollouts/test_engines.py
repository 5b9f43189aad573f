"""What every engine promises (rollouts/engines/base.py); the real one is the stack's vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from rollouts.errors import (
    AdapterRejected,
    EngineUnavailable,
    PromptTooLong,
    UnknownAdapter,
)
from rollouts.types import BASE, Delta, Message, Policy, Rollout, SamplingParams
from tests.loop.person import running_requests
from tests.realstack import Stack

QUESTION = [Message(role="user", content="Say only the word yes.")]
SHORT = SamplingParams(temperature=1.0, max_tokens=12, seed=1)
real = pytest.mark.stack


def vllm(stack: Stack, **settings: Any) -> Engine:
    key = stack.config.secret("vllm_key", stack.config.vllm_key)
    return build_engine(EngineConfig(**{"url": stack.config.vllm, "key": key, **settings}))


@pytest.fixture(params=["scripted", pytest.param("vllm", marks=real)])
def served(request: pytest.FixtureRequest) -> Engine:
    if request.param == "scripted":
        return build_engine(EngineConfig(kind="scripted"))
    return vllm(request.getfixturevalue("stack"))


@pytest.fixture(scope="session")
def adapter_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small adapter of SmolLM2-135M: random, on one projection of its first layer."""
    folder = tmp_path_factory.mktemp("adapter")
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    random = np.random.default_rng(0)
    tensors = {
        f"{name}.lora_A.weight": random.normal(0, 0.3, (8, 576)).astype(np.float32),
        f"{name}.lora_B.weight": random.normal(0, 0.3, (576, 8)).astype(np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16}
    config |= {"target_modules": ["q_proj"], "bias": "none", "lora_dropout": 0.0}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
async def worn(served: Engine, adapter_files: Path) -> AsyncIterator[Policy]:
    """The adapter, loaded."""
    policy = Policy(adapter="conformance-v1", version=1, path=str(adapter_files))
    await served.load(policy)
    yield policy
    await served.unload(policy)


async def test_every_sampled_token_has_its_log_prob(served: Engine) -> None:
    rollout = await served.generate(QUESTION, policy=BASE, params=SHORT)
    assert rollout.prompt_ids
    assert rollout.logprobs is not None
    assert len(rollout.logprobs) == len(rollout.response_ids) > 0
    assert all(value <= 0 for value in rollout.logprobs)
    assert (rollout.policy, rollout.params) == (BASE, SHORT)


async def test_a_reply_that_ends_has_the_end_token_once(served: Engine) -> None:
    rollout, deltas = await ended(served)
    ends = [i for i, token in enumerate(rollout.response_ids) if token == rollout.response_ids[-1]]
    assert len(ends) == 1
    # It adds nothing to the text: without it the reply reads the same.
    assert rollout.text == "".join(delta.text for delta in deltas)
    assert "<|" not in rollout.text


@real
async def test_vllm_ends_with_the_token_that_ends_the_prompts_messages(stack: Stack) -> None:
    rollout, _ = await ended(vllm(stack))
    facts = json.loads((stack.config.model_folder / "tokenizer_config.json").read_text())
    vocabulary = json.loads((stack.config.model_folder / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in vocabulary["added_tokens"]}
    end = facts["eos_token"] if isinstance(facts["eos_token"], str) else "<|im_end|>"
    assert rollout.response_ids[-1] == ids[end]


async def test_deltas_join_to_the_reply(served: Engine) -> None:
    deltas: list[Delta] = []
    rollout = await served.generate(QUESTION, policy=BASE, params=SHORT, on_delta=keep_in(deltas))
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == rollout.text
    ids = [token for delta in deltas for token in delta.token_ids]
    assert ids == list(rollout.response_ids[: len(ids)])
    assert deltas[0].prompt_ids == rollout.prompt_ids
    assert all(delta.prompt_ids is None for delta in deltas[1:])


async def test_scoring_its_own_reply_gives_the_sampled_log_probs(
    served: Engine, worn: Policy
) -> None:
    for policy in (BASE, worn):
        rollout = await served.generate(QUESTION, policy=policy, params=SHORT)
        assert rollout.logprobs is not None
        scored = await served.score(rollout.prompt_ids, rollout.response_ids, policy=policy)
        assert len(scored) == len(rollout.response_ids)
        assert distance(scored, rollout.logprobs) <= 1e-3


@real
async def test_sampled_log_probs_are_of_the_cooled_distribution(stack: Stack) -> None:
    """At T < 1 they differ from the scores, which are at T = 1 (vLLM: processed_logprobs)."""
    engine, cool = vllm(stack), SamplingParams(temperature=0.5, max_tokens=12, seed=1)
    rollout = await engine.generate(QUESTION, policy=BASE, params=cool)
    assert rollout.logprobs is not None
    scored = await engine.score(rollout.prompt_ids, rollout.response_ids, policy=BASE)
    assert distance(scored, rollout.logprobs) > 1e-2


async def test_an_adapter_answers_otherwise_than_base(served: Engine, worn: Policy) -> None:
    rollout = await served.generate(QUESTION, policy=BASE, params=SHORT)
    ids = rollout.prompt_ids, rollout.response_ids
    assert (
        distance(await served.score(*ids, policy=BASE), await served.score(*ids, policy=worn))
        > 1e-4
    )


@real
async def test_scoring_beside_a_running_reply_harms_neither(
    stack: Stack, adapter_files: Path
) -> None:
    """A probe runs while people chat: vLLM must take both in one batch."""
    engine = vllm(stack)
    worn = Policy(adapter="conformance-v3", version=3, path=str(adapter_files))
    await engine.load(worn)
    alone = await engine.generate(QUESTION, policy=worn, params=SHORT)
    ids = alone.prompt_ids, alone.response_ids
    long = SamplingParams(temperature=1.0, max_tokens=60, seed=5)
    begun = asyncio.Event()

    async def on_delta(_: Delta) -> None:
        begun.set()

    chat = asyncio.create_task(
        engine.generate(QUESTION, policy=worn, params=long, on_delta=on_delta)
    )
    await begun.wait()
    scored = [await engine.score(*ids, policy=policy) for policy in (worn, BASE, worn)]
    assert (await chat).response_ids
    await engine.unload(worn)
    assert distance(scored[0], alone.logprobs) <= 1e-3
    assert distance(scored[2], alone.logprobs) <= 1e-3
    assert await engine.health()


async def test_an_adapter_that_is_not_served_is_unknown(served: Engine) -> None:
    nobody = Policy(adapter="conformance-nobody", version=7, path="/nowhere")
    with pytest.raises(UnknownAdapter):
        await served.generate(QUESTION, policy=nobody, params=SHORT)
    with pytest.raises(UnknownAdapter):
        await served.score([1, 2], [3], policy=nobody)


async def test_loading_twice_is_loading_once(served: Engine, worn: Policy) -> None:
    await served.load(worn)
    assert (await served.loaded())[worn.adapter or ""] == worn.path


async def test_unloading_twice_is_unloading_once(served: Engine, adapter_files: Path) -> None:
    policy = Policy(adapter="conformance-v2", version=2, path=str(adapter_files))
    await served.load(policy)
    for _ in range(2):
        await served.unload(policy)
        assert "conformance-v2" not in await served.loaded()
    with pytest.raises(UnknownAdapter):
        await served.generate(QUESTION, policy=policy, params=SHORT)


async def test_only_an_adapter_with_a_folder_can_be_loaded(served: Engine) -> None:
    with pytest.raises(ValueError, match="folder"):
        await served.load(BASE)


async def test_cancelling_the_caller_ends_the_reply(
    served: Engine, request: pytest.FixtureRequest
) -> None:
    begun = asyncio.Event()
    count = 0

    async def on_delta(_: Delta) -> None:
        nonlocal count
        count += 1
        begun.set()
        await asyncio.sleep(0)

    long = [Message(role="user", content="Tell me everything about tea. " * 30)]
    task = asyncio.create_task(
        served.generate(
            long, policy=BASE, params=SamplingParams(max_tokens=400, seed=2), on_delta=on_delta
        )
    )
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert 0 < count < 400
    if type(served).__name__ != "ScriptedEngine":
        stack = request.getfixturevalue("stack")
        while running_requests(stack):  # else the test's time runs out
            await asyncio.sleep(0.2)


async def test_a_server_that_answers_is_healthy(served: Engine) -> None:
    assert await served.health()


@real
async def test_a_prompt_that_does_not_fit_is_too_long(stack: Stack) -> None:
    endless = [Message(role="user", content="tea " * stack.config.context_tokens)]
    with pytest.raises(PromptTooLong):
        await vllm(stack).generate(endless, policy=BASE, params=SHORT)


@real
async def test_a_prompt_that_leaves_room_for_no_word_is_too_long(stack: Stack) -> None:
    one = SamplingParams(max_tokens=1)
    engine, context = vllm(stack), stack.config.context_tokens
    asked = await engine.generate([Message(role="user", content="tea")], policy=BASE, params=one)
    words = context - len(asked.prompt_ids)
    full = [Message(role="user", content="tea" + " tea" * words)]
    for limit in (1, None):
        with pytest.raises(PromptTooLong):
            await engine.generate(full, policy=BASE, params=replace(one, max_tokens=limit))
    fits = [Message(role="user", content="tea" + " tea" * (words - 1))]
    reply = await engine.generate(fits, policy=BASE, params=replace(one, max_tokens=None))
    assert (len(reply.prompt_ids), len(reply.response_ids)) == (context - 1, 1)


@real
async def test_files_that_are_no_adapter_are_rejected(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no tensors")
    policy = Policy(adapter="conformance-broken", version=1, path=str(tmp_path))
    with pytest.raises(AdapterRejected):
        await vllm(stack).load(policy)
    assert await vllm(stack).health()
    assert "conformance-broken" not in await vllm(stack).loaded()


@real
async def test_an_adapter_that_was_pushed_out_of_memory_is_read_again(
    stack: Stack, adapter_files: Path
) -> None:
    """As long as its folder is there: a server dies of one that is gone when it looks for it."""
    engine = vllm(stack)
    count = stack.config.max_kept_loras + 1
    crowd = [
        Policy(adapter=f"crowd-v{number}", version=number, path=str(adapter_files))
        for number in range(1, count + 1)
    ]
    await engine.load(crowd[0])
    alone = await engine.generate(QUESTION, policy=crowd[0], params=SHORT)
    ids = alone.prompt_ids, alone.response_ids
    for policy in crowd[1:]:
        await engine.load(policy)
    again = await engine.score(*ids, policy=crowd[0])
    for policy in crowd:
        await engine.unload(policy)
    assert distance(again, alone.logprobs) <= 1e-3
    assert await engine.health()


@real
async def test_a_server_that_hangs_is_unavailable(stack: Stack) -> None:
    hasty = vllm(stack, silence_seconds=0.001)
    with pytest.raises(EngineUnavailable):
        await hasty.generate(QUESTION, policy=BASE, params=SHORT)


async def ended(engine: Engine) -> tuple[Rollout, list[Delta]]:
    """A reply that ended by itself, by the first seed that gives one; and its pieces."""
    for seed in range(1, 9):
        deltas: list[Delta] = []
        params = SamplingParams(max_tokens=80, seed=seed)
        reply = await engine.generate(
            QUESTION, policy=BASE, params=params, on_delta=keep_in(deltas)
        )
        if reply.finish_reason == "stop":
            return reply, deltas
    raise AssertionError("none ended by itself")


def keep_in(deltas: list[Delta]) -> Any:
    async def keep(delta: Delta) -> None:
        deltas.append(delta)

    return keep


def distance(a: Any, b: Any) -> float:
    """Mean |Δ|, nats per token."""
    return float(np.mean(np.abs(np.subtract(a, b))))
