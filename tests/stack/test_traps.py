"""What the model server does with adapters that nothing stands before: why the guards are there
(docs/operations.md, "Its traps"). It runs on a server of its own, with a tiny model: one test may
spoil its cache, and the last one ends it."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Callable, Iterator
from operator import eq
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rollouts.config import EngineConfig
from rollouts.engines import build_engine
from rollouts.engines.base import Engine
from rollouts.errors import RolloutError
from rollouts.types import BASE, Delta, Message, Policy, SamplingParams
from tests.loop.person import wait_for
from tests.realstack import Stack, running
from training.adapters import WEIGHTS, adapter_tensors, attach, check_folder, detach, save_version
from training.base import Base, load_base
from training.config import TrainConfig
from training.errors import AdapterInvalid
from training.tiny import write_tiny

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]  # the first one starts the server

FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
QUESTION = [Message(role="user", content="Why is the sky blue? " * 8)]
SHORT = SamplingParams(max_tokens=4, seed=1)
Change = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With heads of 32, the least that the server knows on a CPU."""
    return write_tiny(tmp_path_factory.mktemp("tiny"), hidden_size=64)


@pytest.fixture(scope="module")
def base(tiny: Path) -> Base:
    return load_base(tiny, device="cpu")


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Stack]:
    with running("--parts", "vllm", base_model=str(tiny), context_tokens="1024") as stack:
        yield stack


@pytest.fixture(scope="module")
def engine(server: Stack) -> Engine:
    settings = server.config
    key = settings.secret("vllm_key", settings.vllm_key)
    return build_engine(EngineConfig(url=settings.vllm, key=key))


@pytest.fixture(scope="module")
def good(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole version that answers otherwise than base."""
    model = attach(base, TrainConfig(), None)
    torch.manual_seed(1)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.normal_(0, 0.3)
    folder = save_version(model, tmp_path_factory.mktemp("versions") / "v1").path
    detach(base, model)
    return folder


def spoilt(good: Path, folder: Path, change: Change) -> Path:
    """A copy with other weights; the server never sees one file change under it."""
    shutil.copytree(good, folder)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    (folder / WEIGHTS).unlink()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def worn(name: str, folder: Path) -> Policy:
    return Policy(adapter=name, version=1, path=str(folder))


async def first_log_prob(engine: Engine, policy: Policy) -> float:
    """Of the likeliest token; nan where the server has no number for it."""
    likeliest = SamplingParams(max_tokens=1, temperature=0.0)
    try:
        reply = await engine.generate(QUESTION, policy=policy, params=likeliest)
    except RolloutError:
        return math.nan
    return reply.logprobs[0] if reply.logprobs else math.nan


async def test_wrong_shapes_are_taken_without_a_word(
    engine: Engine, base: Base, good: Path, tmp_path: Path
) -> None:
    def shorten(tensors: dict[str, Tensor]) -> None:
        tensors[FIRST] = tensors[FIRST][:, :-8].contiguous()

    short = spoilt(good, tmp_path / "v1", shorten)
    with pytest.raises(AdapterInvalid, match="has shape"):
        check_folder(short, base=base, max_rank=8)
    for policy in (worn("whole", good), worn("short", short)):
        await engine.load(policy)
    reply = await engine.generate(QUESTION, policy=worn("whole", good), params=SHORT)
    ids = reply.prompt_ids, reply.response_ids
    scores = [await engine.score(*ids, policy=worn(name, good)) for name in ("whole", "short")]
    # This is what the probe sees.
    assert max(abs(a - b) for a, b in zip(*scores, strict=True)) > 1e-3


async def test_base_answers_as_itself_beside_adapters_in_every_slot(
    server: Stack, engine: Engine, base: Base, good: Path, tmp_path: Path
) -> None:
    """Here a guard stands before the trap: without it base wears the last slot's version."""
    wearing = []
    for n in range(server.config.max_loras + 1):
        wearing.append(worn(f"slot-{n}", Path(shutil.copytree(good, tmp_path / str(n)))))
        await engine.load(wearing[-1])
        await engine.generate(QUESTION, policy=wearing[-1], params=SHORT)
    greedy = SamplingParams(max_tokens=16, temperature=0.0)
    alone = await engine.generate(QUESTION, policy=BASE, params=greedy)
    adapted = await engine.generate(QUESTION, policy=wearing[0], params=greedy)
    assert alone.logprobs[0] != pytest.approx(adapted.logprobs[0], abs=1e-2)

    has_begun = asyncio.Event()

    async def begun(_: Delta) -> None:
        has_begun.set()

    endless = tuple((str(number), -100.0) for number in base.eos_ids)
    long = SamplingParams(max_tokens=600, seed=1, logit_bias=endless)

    async def wear() -> None:
        while True:  # on a fast machine one is soon over
            await engine.generate(QUESTION, policy=wearing[-1], params=long, on_delta=begun)

    beside = asyncio.create_task(wear())
    await asyncio.wait_for(has_begun.wait(), 60)
    mixed = [await engine.generate(QUESTION, policy=BASE, params=greedy) for _ in range(3)]
    assert not beside.done(), f"nothing was written beside base: {beside}"
    beside.cancel()
    for reply in mixed:
        # A near tie may fall the other way in another batch; what follows is another text.
        same = [*map(eq, reply.response_ids, alone.response_ids), False].index(False)
        assert same > 1, (reply.response_ids, alone.response_ids)
        assert reply.logprobs[:same] == pytest.approx(alone.logprobs[:same], abs=1e-3)


async def test_a_seed_is_kept_where_a_prompt_is_read_in_parts(engine: Engine) -> None:
    """Here a guard stands before the trap: without it the server ends."""

    async def reply_to(number: int) -> int:
        """The first word. Of so many such prompts a step of the server ends within one."""
        prompt = [Message(role="user", content=f"{number} and so on. " * 70)]
        params = SamplingParams(max_tokens=1, seed=number, temperature=1.0)
        reply = await engine.generate(prompt, policy=BASE, params=params)
        return reply.response_ids[0]

    beside = await asyncio.gather(*map(reply_to, range(8)))
    alone = [await reply_to(number) for number in range(8)]
    assert sum(map(eq, beside, alone)) >= 7, (beside, alone)  # a near tie may fall another way


async def test_the_cache_knows_an_adapter_by_its_name_and_folder(
    engine: Engine, good: Path, tmp_path: Path
) -> None:
    def negate(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if ".lora_B." in name:
                tensors[name] = -tensor

    other = spoilt(good, tmp_path / "other", negate)
    used = shutil.copytree(good, tmp_path / "used")
    before = await first_log_prob_of(engine, worn("reused", used))
    shutil.copy(other / WEIGHTS, used / WEIGHTS)
    stale = await first_log_prob_of(engine, worn("reused", used))
    right = await first_log_prob_of(engine, worn("new-name", other))
    assert right != pytest.approx(before, abs=1e-3)
    assert stale != pytest.approx(right, abs=1e-3)


async def first_log_prob_of(engine: Engine, policy: Policy) -> float:
    """Loaded for it, and unloaded."""
    await engine.load(policy)
    found = await first_log_prob(engine, policy)
    await engine.unload(policy)
    return found


async def test_numbers_that_are_none_are_taken_without_a_word_and_make_no_reply(
    engine: Engine, base: Base, good: Path, tmp_path: Path
) -> None:
    def poison(tensors: dict[str, Tensor]) -> None:
        tensors[FIRST] = torch.full_like(tensors[FIRST], math.nan)

    bad = spoilt(good, tmp_path / "v1", poison)
    with pytest.raises(AdapterInvalid, match="not finite"):
        check_folder(bad, base=base, max_rank=8)
    assert math.isfinite(await first_log_prob(engine, BASE))
    await engine.load(worn("bad", bad))  # without a word
    for _ in range(3):
        assert math.isnan(await first_log_prob(engine, worn("bad", bad)))
    await engine.unload(worn("bad", bad))


async def test_a_folder_that_is_deleted_while_its_name_is_known_ends_the_server(
    server: Stack, engine: Engine, good: Path, tmp_path: Path
) -> None:
    gone = worn("gone", shutil.copytree(good, tmp_path / "v1"))
    await engine.load(gone)
    for number in range(server.config.max_kept_loras + 1):  # so many that it is dropped
        await engine.load(worn(f"crowd-{number}", good))
    shutil.rmtree(tmp_path / "v1")
    died = server.pid("vllm")
    with pytest.raises(RolloutError):
        await engine.generate(QUESTION, policy=gone, params=SHORT)
    with pytest.raises(RolloutError):  # and nobody else is answered
        await engine.generate(QUESTION, policy=BASE, params=SHORT)
    # supervisord starts its successor.
    wait_for("another process", lambda: server.has_other_pid("vllm", died), timeout=180)
