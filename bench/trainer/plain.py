"""Contestant: the same losses by a plain loop over peft, as one writes it first.

One batch, padded; the logits of all positions; one backward pass; AdamW. Also the measure of
correctness: the other contestants' losses and gradients are compared with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.trainer.contestant import Desk, Task, task  # first: it sets the threads

# isort: split
import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

Ids = Sequence[int]


def main() -> None:
    todo = task()
    desk = Desk(todo.device, todo.job)
    torch.set_num_threads(1)
    is_low = todo.precision == "bf16"
    model: Any = AutoModelForCausalLM.from_pretrained(
        todo.base, dtype=torch.float32 if todo.device == "cpu" else torch.bfloat16
    ).to(todo.device)
    AutoTokenizer.from_pretrained(todo.base)  # unused; the others hold one too
    desk.loaded()
    model = PeftModel.from_pretrained(model, todo.adapter, is_trainable=True)
    model.eval()
    numbers = todo.settings
    trained = [tensor for tensor in model.parameters() if tensor.requires_grad]
    betas = (numbers["beta1"], numbers["beta2"])
    optimizer = torch.optim.AdamW(trained, lr=numbers["lr"], betas=betas, weight_decay=0.0)
    desk.ready()
    for _ in range(todo.updates):
        desk.wait()
        with desk.timed():
            with torch.autocast(todo.device, torch.bfloat16, enabled=is_low):
                loss = hint_loss(model, todo) if todo.loss == "opd" else kto_loss(model, todo)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(trained, numbers["grad_clip"])
            optimizer.step()
            optimizer.zero_grad()
        if todo.loss != "opd":
            optimizer.state.clear()  # as our jobs of thumbs alone, which begin anew
        desk.done(loss=float(loss.detach()), grad_norm=float(norm))


def kto_loss(model: Any, todo: Task) -> Tensor:
    """KTO (arXiv 2402.01306, eq. 8) with as many liked as disliked replies: both weigh 1."""
    prompts = [row["prompt_ids"] for row in todo.rows]
    replies = [row["response_ids"] for row in todo.rows]
    policy_B = reply_logprobs(model, prompts, replies)
    with torch.no_grad(), model.disable_adapter():
        base_B = reply_logprobs(model, prompts, replies)
    ratio_B = policy_B - base_B
    reference: Tensor | float = 0.0
    if todo.loss == "kto":
        others = [*replies[1:], replies[0]]
        with torch.no_grad():
            policy_B = reply_logprobs(model, prompts, others)
            with model.disable_adapter():
                base_B = reply_logprobs(model, prompts, others)
            reference = (policy_B - base_B).mean().clamp(min=0)
    signs = [1.0 if row["liked"] else -1.0 for row in todo.rows]
    sign_B = torch.tensor(signs, device=ratio_B.device)
    return (1 - torch.sigmoid(todo.settings["kto_beta"] * sign_B * (ratio_B - reference))).mean()


def reply_logprobs(model: Any, prompts: Sequence[Ids], replies: Sequence[Ids]) -> Tensor:
    """sum_t log pi(y_t) of each reply, (B,) nats."""
    ids_BT, logits_BTV, said_BT = forward(model, prompts, replies)
    logprobs_BTV = torch.log_softmax(logits_BTV, dim=-1)
    logprobs_BT = logprobs_BTV.gather(-1, ids_BT[:, 1:].unsqueeze(-1)).squeeze(-1)
    return (logprobs_BT * said_BT).sum(dim=-1)


def hint_loss(model: Any, todo: Task) -> Tensor:
    """KL(policy || base under the hint), the mean over all replies' tokens."""
    replies = [row["response_ids"] for row in todo.rows]
    with torch.no_grad(), model.disable_adapter():
        hinted = [row["hinted_prompt_ids"] for row in todo.rows]
        _, logits_BTV, said_BT = forward(model, hinted, replies)
        teacher_NV = torch.log_softmax(logits_BTV[said_BT], dim=-1)
    _, logits_BTV, said_BT = forward(model, [row["prompt_ids"] for row in todo.rows], replies)
    policy_NV = torch.log_softmax(logits_BTV[said_BT], dim=-1)
    return (policy_NV.exp() * (policy_NV - teacher_NV)).sum(dim=-1).mean()


def forward(
    model: Any, prompts: Sequence[Ids], replies: Sequence[Ids]
) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (B, T), logits of all positions but the last (B, T-1, V), and which predict a reply."""
    width = max(len(p) + len(r) for p, r in zip(prompts, replies, strict=True))
    ids_BT = torch.zeros(len(prompts), width, dtype=torch.long)
    there_BT = torch.zeros_like(ids_BT)
    said_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for row, (prompt, reply) in enumerate(zip(prompts, replies, strict=True)):
        end = len(prompt) + len(reply)
        ids_BT[row, :end] = torch.tensor([*prompt, *reply])
        there_BT[row, :end] = 1
        said_BT[row, len(prompt) : end] = True
    ids_BT, there_BT, said_BT = (each.to(model.device) for each in (ids_BT, there_BT, said_BT))
    logits_BTV = model(input_ids=ids_BT, attention_mask=there_BT, use_cache=False).logits
    return ids_BT, logits_BTV[:, :-1], said_BT[:, 1:]


if __name__ == "__main__":
    main()
