"""Other base models than the default: the server and the trainer render and read each alike, with a
version and without. A tiny random model of the family stands for it, so what is learned is not
tested. `make test-bases` runs it: a server per family."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rollouts.engines.base import Engine
from rollouts.types import BASE, Message, Policy, SamplingParams
from tests.loop.person import engine_of
from tests.realstack import running
from training.adapters import adapter_tensors, attach, check_folder, detach, save_version
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import response_logprobs
from training.tiny import TEMPLATE, write_tiny

pytestmark = [
    pytest.mark.stack,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("TESTS_BASES"), reason="make test-bases runs it"),
]
# What the architecture changes of its logits after the output layer stands beside it.
FAMILIES: dict[str, dict[str, float]] = {
    "cohere": {"logit_scale": 0.25},
    "gemma2": {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 1.0},
    "gemma3_text": {},
    "granite": {"logits_scaling": 4.0},
    "ministral": {},
    "mistral": {},
    "olmo2": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {},
    "smollm3": {},
}
# As Qwen3's template has it: a model that is told not to think gets an empty thought.
SWITCH = "{% if add_generation_prompt and enable_thinking is false %}<think></think>{% endif %}"
QUESTION = [Message(role="user", content="Why is the sky blue?")]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of the family; heads of 32 are the least that the server knows on a CPU."""
    place = tmp_path_factory.mktemp("models")
    tokenizer: Any = AutoTokenizer.from_pretrained(write_tiny(place / "tiny"))
    tokenizer.chat_template = TEMPLATE + SWITCH
    torch.manual_seed(0)
    config: Any = AutoConfig.for_model(
        request.param,
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=1024,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, initializer_range=0.3, tie_word_embeddings=True,
        **FAMILIES[request.param],
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(place / request.param)
    tokenizer.save_pretrained(place / request.param)
    return place / str(request.param)


@pytest.fixture(scope="module")
def base(folder: Path) -> Base:
    return replace(load_base(folder, device="cpu"), autocast_dtype=None)


@pytest.fixture(scope="module")
def engine(folder: Path, base: Base) -> Iterator[Engine]:
    settings = {"base_model": str(folder), "context_tokens": "1024"}
    with running("--parts", "vllm", **settings) as stack:
        yield engine_of(stack, template_options=base.template_options)


async def test_server_and_trainer_read_alike(base: Base, engine: Engine, tmp_path: Path) -> None:
    model = attach(base, TrainConfig(), None)
    torch.manual_seed(1)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.copy_(tensor.normal_(0, 0.3).bfloat16())  # as it is saved
    version = save_version(model, tmp_path / "v1").path
    check_folder(version, base=base, max_rank=8)
    worn = Policy(adapter="random", version=1, path=str(version))
    await engine.load(worn)
    params = SamplingParams(max_tokens=32, temperature=1.0, seed=1)
    by_version, by_base = [
        await engine.generate(QUESTION, policy=policy, params=params) for policy in (worn, BASE)
    ]
    assert by_version.prompt_ids == by_base.prompt_ids == base.render(QUESTION)
    assert base.tokenizer.decode(by_base.prompt_ids).endswith("<think></think>")
    ours = response_logprobs(base, model, (by_version.prompt_ids, by_version.response_ids))
    detach(base, model)
    assert by_version.logprobs == pytest.approx(ours.tolist(), abs=1e-3)
    ours = response_logprobs(base, base.model, (by_base.prompt_ids, by_base.response_ids))
    assert by_base.logprobs == pytest.approx(ours.tolist(), abs=1e-3)
    # The version is another model: else the first would say what the second does.
    as_base = await engine.score(by_version.prompt_ids, by_version.response_ids, policy=BASE)
    assert by_version.logprobs != pytest.approx(as_base, abs=1e-2)
