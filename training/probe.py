"""What a version should answer: written by the trainer, compared with the server by the deployer.

A served adapter may be the wrong one, or be read wrongly, and still answer fluently; its log-probs
on fixed ids cannot lie.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

from peft import PeftModel

from rollouts.types import Message
from training.adapters import round_to_saved, wearing
from training.base import Base
from training.forward import response_logprobs

QUESTION = "Tell me about the sea."
REPLY = "The sea is wide and deep. It is home to fish, whales and many plants."


def write_probe(base: Base, model: PeftModel, path: Path) -> None:
    """Write ids and log-probs (T = 1, nats, fp32) of a fixed reply under the adapter and the base.

    Measured without autocast and on the adapter as it is saved (rounded to bf16), so that a
    server in fp32 agrees to 1e-3. JSON keys: prompt_ids, response_ids, adapter_logprobs,
    base_logprobs. Belongs beside the version's folder, not inside.
    """
    round_to_saved(model)
    prompt_ids = base.render([Message(role="user", content=QUESTION)])
    pair = (prompt_ids, base.answer_ids(REPLY))
    exact = dataclasses.replace(base, autocast_dtype=None)
    adapter_logprobs = response_logprobs(exact, model, pair).tolist()
    with wearing(model, None):
        base_logprobs = response_logprobs(exact, model, pair).tolist()
    probe = {
        "prompt_ids": list(pair[0]),
        "response_ids": list(pair[1]),
        "adapter_logprobs": adapter_logprobs,
        "base_logprobs": base_logprobs,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished-{os.getpid()}")
    unfinished.write_text(json.dumps(probe), encoding="utf-8")
    os.replace(unfinished, path)
