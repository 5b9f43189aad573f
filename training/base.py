"""The frozen base model with its tokenizer: loaded once, kept between jobs, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from rollouts.rendering import (
    template_hash,
    template_messages,
    template_options,
    template_text,
    template_tools,
    weights_hash,
)
from rollouts.types import Message
from training.errors import BaseInvalid


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """The base model. `cache` keeps what was made of it; it lives as long as the model."""

    model: Any  # a transformers causal language model, eval mode, frozen
    tokenizer: Any
    template_hash: str
    weights_hash: str
    device: str
    name: str  # what adapters call their base; no path
    template_options: Mapping[str, bool] = field(default_factory=dict)  # told to the template, too
    autocast_dtype: torch.dtype | None = None
    cache: dict[object, object] = field(default_factory=dict)
    kept: Path | None = None  # a folder of what takes long to make of it, for other processes

    def autocast(self) -> AbstractContextManager[object]:
        """Lower-precision arithmetic where the device has it in hardware; else nothing."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.split(":")[0], dtype=self.autocast_dtype)

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """`autocast` with the frozen weights rounded once and kept, not anew at each product: the
        same numbers, sooner. Costs another copy of them, half as large; none where they are low."""
        with standing_in(self._rounded()), self.autocast():
            yield

    def _rounded(self) -> dict[Any, Tensor]:
        if self.autocast_dtype is None:
            return {}
        place = ("rounded", self.autocast_dtype)
        found: Any = self.cache.get(place)
        if found is None:  # adapters change, also while they are switched off and look frozen
            found = self.cache[place] = {
                module: module.weight.to(self.autocast_dtype)
                for name, module in self.model.named_modules()
                if isinstance(module, nn.Linear) and "lora_" not in name
                if module.weight.dtype != self.autocast_dtype
            }
        return dict(found)

    @property
    def pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(pad if pad is not None else self.eos_ids[0])

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a reply, as the model's own generation settings name them."""
        stated = self.model.generation_config.eos_token_id
        if stated is None:
            stated = self.tokenizer.eos_token_id
        return (int(stated),) if isinstance(stated, int) else tuple(int(i) for i in stated)

    @property
    def end_id(self) -> int:
        """The id that the template writes after a reply: of several the first may end a text, and
        no reply. Where it writes none of them, the tokenizer's own."""
        if "end id" not in self.cache:
            self.cache["end id"] = self._end_id()
        return int(str(self.cache["end id"]))

    def _end_id(self) -> int:
        written = [i for ids in self._after_reply() for i in ids]
        own = self.tokenizer.eos_token_id
        return next((i for i in (*written, own) if i in self.eos_ids), self.eos_ids[0])

    @property
    def next_turn_ids(self) -> tuple[tuple[int, ...], ...]:
        """What the template writes between a reply's words and what its user says next, and from
        there to the next reply: two; () where it takes no second question."""
        return self._after_reply("Well.")

    def _after_reply(self, *then: str) -> tuple[tuple[int, ...], ...]:
        """What the template writes after a reply's words: all of it, or, where its user `then`
        says something, up to that and from there to the next reply. () where it refuses."""
        reply = "Good."
        said = [("user", "Hi."), ("assistant", reply), *(("user", words) for words in then)]
        chat = template_messages([Message(role=role, content=words) for role, words in said])
        try:
            text = str(
                self.tokenizer.apply_chat_template(
                    chat,
                    tokenize=False,
                    add_generation_prompt=bool(then),
                    **self.template_options,
                )
            )
        except (ValueError, TemplateError):
            return ()
        if any(words not in text for words in (reply, *then)):
            return ()
        after = text.rpartition(reply)[2]
        return tuple(self.encode(part) for part in (after.split(then[0], 1) if then else [after]))

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]] = (),
        at: datetime | None = None,
    ) -> tuple[int, ...]:
        """Prompt ids of `messages`, ending where the reply begins; as vLLM renders a chat, and as
        it did `at` that time (aware; None = now): templates print the date in local time."""
        clock = {} if at is None else {"strftime_now": at.astimezone().strftime}
        text = self.tokenizer.apply_chat_template(
            template_messages(messages),
            tools=template_tools(tools) or None,
            add_generation_prompt=True,
            tokenize=False,
            **self.template_options,
            **clock,
        )
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def answer_ids(self, text: str) -> tuple[int, ...]:
        """A whole reply that says this: its tokens and the end token."""
        return (*self.encode(text.strip()), self.end_id)

    def beginning(self, text: str, tokens: int) -> str:
        """The first tokens of the text, as text; all of it where it has no more."""
        ids = self.encode(text)
        begins = self.tokenizer.decode(ids[:tokens], skip_special_tokens=True)
        return text if len(ids) <= tokens else str(begins).rstrip("\ufffd ")


@contextmanager
def standing_in(weights: Mapping[Any, Tensor]) -> Iterator[None]:
    """Inside, these are the modules' weights. They are exchanged, not overwritten: a graph that is
    made inside goes back through these, and a weight that others share stays theirs."""
    own = {module: module.weight for module in weights}
    try:
        for module, weight in weights.items():
            module.weight = nn.Parameter(weight, requires_grad=False)
        yield
    finally:
        for module, weight in own.items():
            module.weight = weight


def load_base(
    folder: Path,
    *,
    device: str | None = None,
    threads: int = 1,
    chat_template: Path | None = None,
    thinks: bool = False,
    kept: Path | None = None,
) -> Base:
    """Load the model and tokenizer of `folder`; sets this process's torch threads.

    `chat_template` stands in the place of the folder's own, as it does on the server. A template
    with a switch for it is told that the model does not think first, unless it `thinks`.
    fp32 weights on the CPU (bf16 arithmetic only where the CPU has it: elsewhere it is measured
    to be 2.7 times slower), bf16 weights on a GPU. Raises BaseInvalid.
    """
    torch.set_num_threads(threads)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_cpu = device == "cpu"
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32 if on_cpu else torch.bfloat16, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        rendering = template_hash(folder, chat_template, thinks=thinks)
        template = template_text(folder, chat_template)
        if chat_template is not None:
            tokenizer.chat_template = template
    except (OSError, ValueError, KeyError) as exc:
        raise BaseInvalid(f"the base model in {folder.name} cannot be loaded: {exc}") from exc
    if getattr(model.config, "attn_logit_softcapping", None):  # torch's own attention knows no cap
        model.set_attn_implementation("eager")
    model.to(device).eval().requires_grad_(False)
    _check_head(model)
    _check_reading_on(model)
    return Base(
        model=model,
        tokenizer=tokenizer,
        template_hash=rendering,
        weights_hash=weights_hash(folder),
        device=device,
        name=folder.name,
        template_options=template_options(template, thinks=thinks),
        autocast_dtype=torch.bfloat16 if not on_cpu or _cpu_has_bf16() else None,
        kept=kept,
    )


def _cpu_has_bf16() -> bool:
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("bf16"))


def finished(model: Any, logits: Tensor) -> Tensor:
    """What the output layer gave, as the architecture goes on with it: divided (Granite),
    multiplied (Cohere) or bent towards a cap (Gemma 2)."""
    config = model.config
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if factor := getattr(config, "logit_scale", None):
        logits = logits * factor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


@torch.no_grad()
def _check_head(model: Any) -> None:
    """Losses go from hidden states to logits themselves; refuse models that do it otherwise."""
    ids: Tensor = torch.tensor([[1, 2, 3]], device=model.device)
    hidden = model.get_decoder()(input_ids=ids).last_hidden_state
    ours = finished(model, model.get_output_embeddings()(hidden).float())
    theirs = model(input_ids=ids).logits.float()
    if not torch.allclose(ours, theirs, atol=1e-2, rtol=1e-2):
        raise BaseInvalid(
            "this architecture changes its logits after the output layer in a way of its own"
        )


@torch.no_grad()
def _check_reading_on(model: Any) -> None:
    """Shared prompts are read once, and rows go on from there; refuse models that then say else."""
    decoder, cache = model.get_decoder(), DynamicCache()
    ids_BT: Tensor = torch.tensor([[1, 2, 3]], device=model.device)
    whole = decoder(input_ids=ids_BT).last_hidden_state[:, -1].float()
    reason = "this architecture cannot read on from a prompt that it has read"
    try:
        decoder(input_ids=ids_BT[:, :2], past_key_values=cache, use_cache=True)
        on = decoder(input_ids=ids_BT[:, 2:], past_key_values=cache, use_cache=True)
    except (ValueError, IndexError, AttributeError, TypeError) as exc:  # of a cache that is not its
        raise BaseInvalid(f"{reason}: {exc}") from exc
    difference = on.last_hidden_state[:, -1].float() - whole
    if float(difference.norm()) > 0.05 * float(whole.norm()):  # bf16 is off by about 0.01
        raise BaseInvalid(reason)
