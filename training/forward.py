"""Runs the model for losses and gates: hidden states of response tokens, then logits in chunks.

The output layer is applied afterwards, to response positions only and a few at a time: its logits
(tokens x vocabulary) would otherwise be most of a job's memory. It is the positions that are cut: a
softmax wants all of the vocabulary, and of so few positions all of it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from training.base import Base, finished
from training.batching import PaddedBatch, Pair, pad_batch
from training.logprobs import reverse_kl, token_logprobs

CHUNK = 64  # response positions whose logits exist at once: 12 MB each at 49,152 words in fp32
PLAIN_ATTENTION = 4 * 192**2  # scores of a head: more, and what plain products keep fills memory
ROOM = 2**29  # bytes of keys and values kept of prompts: 11,600 tokens of a base of 135M in fp32

Layers = tuple[tuple[Tensor, Tensor], ...]  # each layer's keys and values, (1, heads, P, D) each


@dataclass(frozen=True, slots=True)
class Read:
    """What prompts begin with, as the model at hand has read it: P tokens and their layers."""

    ids: tuple[int, ...]
    layers: Layers


@dataclass(slots=True)
class KeptPrompts:
    """What a model that stays as it is has read of prompts, for other replies to them: all but
    the last token, whose output differs by what follows. At most ROOM bytes."""

    wanted: frozenset[tuple[int, ...]] = frozenset()  # only these are kept
    _layers: dict[tuple[int, ...], tuple[Layers, ...]] = field(default_factory=dict)
    _bytes: int = 0

    def has(self, pairs: Sequence[Pair]) -> bool:
        return all(tuple(prompt) in self._layers for prompt, _ in pairs)

    def keep(self, pairs: Sequence[Pair], cache: Any, begins: Layers) -> None:
        """From a pass over the pairs. `begins`: of what all of them begin with, held once."""
        known = begins[0][0].shape[2] if begins else 0
        for row, (prompt, _) in enumerate(pairs):
            ids = tuple(prompt)
            if ids not in self.wanted or ids in self._layers:
                continue
            part = slice(row, row + 1), slice(None), slice(known, len(ids) - 1)
            rest = tuple((lay.keys[part], lay.values[part]) for lay in cache.layers)
            size = sum(end.nbytes for layer in rest for end in layer)
            if self._bytes + size <= ROOM:
                self._bytes += size
                kept = tuple((keys.clone(), values.clone()) for keys, values in rest)
                self._layers[ids] = (begins, kept) if begins else (kept,)

    def cache(self, pairs: Sequence[Pair]) -> tuple[DynamicCache, Tensor]:
        """For B pairs that begin their replies in one column: P tokens' keys and values, and where
        there are any, (B, P); before the shorter prompts there is nothing."""
        rows = [self._layers[tuple(prompt)] for prompt, _ in pairs]
        cache = DynamicCache()
        for number in range(len(rows[0][0])):
            keys, values = (
                _ending_together([[layers[number][end] for layers in row] for row in rows])
                for end in (0, 1)
            )
            cache.update(keys, values, number)
        columns_P = torch.arange(keys.shape[2], device=keys.device)
        lengths_B1 = torch.tensor([[len(prompt) - 1] for prompt, _ in pairs], device=keys.device)
        return cache, columns_P >= len(columns_P) - lengths_B1


def _ending_together(rows: Sequence[Sequence[Tensor]]) -> Tensor:
    """Each row's pieces, (1, heads, P_i, D), one after the other: (B, heads, P, D)."""
    joined = [torch.cat(list(pieces), dim=2) for pieces in rows]
    width = max(row.shape[2] for row in joined)
    return torch.cat([pad(row, (0, 0, width - row.shape[2], 0)) for row in joined])


@contextmanager
def read_once(base: Base, model: PeftModel | Any, ids: tuple[int, ...]) -> Iterator[Read | None]:
    """Inside, these tokens, that prompts begin with (`batching.shared_ids`), have been read, for
    `response_hidden` of each prompt in as many micro-batches as they make. None of no tokens.

    The gradients of all that is read after it gather in its keys and values, and go back through it
    at the end, once: the sum is the same as if it stood in every row.
    """
    if not ids:
        yield None
        return
    cache: Any = DynamicCache()
    ids_1P = torch.tensor([ids], device=base.device)
    with base.lowered(), _attention(base, model, *ids_1P.shape):
        _decoder(model)(input_ids=ids_1P, past_key_values=cache, use_cache=True)
    ends = [end for layer in cache.layers for end in (layer.keys, layer.values)]
    leaves = [end.detach().requires_grad_(end.requires_grad) for end in ends]
    yield Read(ids, tuple(zip(leaves[::2], leaves[1::2], strict=True)))
    back = [(end, leaf.grad) for end, leaf in zip(ends, leaves, strict=True)]
    if moved := [(end, grad) for end, grad in back if grad is not None]:
        torch.autograd.backward([end for end, _ in moved], [grad for _, grad in moved])


def response_hidden(
    base: Base,
    model: PeftModel | Any,
    pairs: Sequence[Pair],
    read: Read | None = None,
    kept: KeptPrompts | None = None,
) -> Tensor:
    """Last hidden states at the positions that predict the response tokens, (N, H), row by row.

    What all prompts begin with is read once, and its keys and values serve every row: each position
    sees the same as if it stood in every row, and the rows' gradients add up in it. Of `read` as
    much serves as they begin with. Prompts that are all `kept` are not read again; others that it
    wants are kept from now on.
    """
    if kept and kept.has(pairs):
        return _replies_hidden(base, model, pairs, kept)
    ids = read.ids if read else ()
    batch = pad_batch(pairs, pad_id=base.pad_id, device=base.device, read_ids=ids)
    found = _pass(base, model, batch, read, use_cache=kept is not None)
    if kept:
        kept.keep(pairs, found.past_key_values, _known(batch, read))
    hidden_NH: Tensor = found.last_hidden_state[batch.predicts_BT]
    return hidden_NH


def _replies_hidden(
    base: Base, model: PeftModel | Any, pairs: Sequence[Pair], kept: KeptPrompts
) -> Tensor:
    """`response_hidden` of prompts that are kept: a pass over their last tokens and the replies."""
    tails = [(prompt[-1:], response) for prompt, response in pairs]
    batch = pad_batch(tails, pad_id=base.pad_id, device=base.device)
    cache, is_kept_BP = kept.cache(pairs)
    mask_BT = torch.cat([is_kept_BP, batch.attention_mask_BT], dim=1)
    columns_T = torch.arange(batch.input_ids_BT.shape[1], device=base.device)
    with base.lowered(), _attention(base, model, *mask_BT.shape):
        hidden_BTH: Tensor = _decoder(model)(
            input_ids=batch.input_ids_BT,
            attention_mask=mask_BT.long(),
            position_ids=is_kept_BP.sum(dim=1, keepdim=True) + columns_T,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
    return hidden_BTH[batch.predicts_BT]


def layer_states(
    base: Base, model: PeftModel | Any, pairs: Sequence[Pair], depths: Sequence[float]
) -> Tensor:
    """The states after these shares of the layers, side by side, at the positions of
    `response_hidden`: (N, H times the number of depths). Deeper layers are not run."""
    batch = pad_batch(pairs, pad_id=base.pad_id, device=base.device)
    decoder = _decoder(model)
    places = [round(depth * len(decoder.layers)) for depth in depths]
    with _first_layers(decoder, max(places) + 1):  # the last one's come out normalized
        layers = _pass(base, model, batch, output_hidden_states=True).hidden_states
    chosen = [layers[place] for place in places]  # 0: no layer yet
    return torch.cat([states_BTH[batch.predicts_BT] for states_BTH in chosen], dim=-1)


@contextmanager
def _first_layers(decoder: Any, count: int) -> Iterator[None]:
    """Inside, the decoder ends after so many of its layers."""
    own = decoder.layers
    decoder.layers = own[:count]
    try:
        yield
    finally:
        decoder.layers = own


def _pass(
    base: Base,
    model: PeftModel | Any,
    batch: PaddedBatch,
    read: Read | None = None,
    *,
    use_cache: bool = False,
    **more: bool,
) -> Any:
    decoder = _decoder(model)
    with base.lowered(), _attention(base, model, *batch.attention_mask_BT.shape):
        cache = _cache(decoder, batch, read)
        if use_cache and cache is None:  # the model's own would forget what slides out of a window
            cache = DynamicCache()
        return decoder(
            input_ids=batch.input_ids_BT,
            attention_mask=batch.attention_mask_BT.long(),
            past_key_values=cache,
            use_cache=cache is not None,
            **more,
        )


def _causal(model: PeftModel | Any) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _decoder(model: PeftModel | Any) -> Any:
    return _causal(model).get_decoder()


@contextmanager
def _attention(base: Base, model: PeftModel | Any, rows: int, width: int) -> Iterator[None]:
    """Attention by plain products in bf16 on a CPU: torch's own is slow to walk back there, and a
    pass with its gradient up to 1.2 times as fast without (docs/LOG.md). Passes without a gradient
    do the same, so that a policy that has not moved has its teacher's numbers, to the bit where
    both read as much. Else torch's.
    """
    in_bf16 = base.device == "cpu" and base.autocast_dtype is not None
    if not in_bf16 or rows * width**2 > PLAIN_ATTENTION:
        yield
        return
    causal = _causal(model)
    usual = causal.config._attn_implementation
    causal.set_attn_implementation("eager")
    try:
        yield
    finally:
        causal.set_attn_implementation(usual)


def _cache(decoder: Any, batch: PaddedBatch, read: Read | None) -> DynamicCache | None:
    """The keys and values of what all rows begin with, once for each; None of no tokens."""
    if not len(batch.shared_ids_P):
        return None
    cache = DynamicCache()
    for number, (keys, values) in enumerate(_known(batch, read)):
        cache.update(keys, values, number)
    if len(rest_P := batch.shared_ids_P[batch.known :]):
        decoder(input_ids=rest_P.unsqueeze(0), past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(len(batch.input_ids_BT))
    return cache


def _known(batch: PaddedBatch, read: Read | None) -> Layers:
    """What serves all rows of it, of what was read; none of no tokens."""
    layers = read.layers if read and batch.known else ()
    return tuple((k[:, :, : batch.known], v[:, :, : batch.known]) for k, v in layers)


def boosted(hinted_NH: Tensor, plain_NH: Tensor, *, boost: float | Tensor) -> Tensor:
    """h + b (h - p): hidden states whose logits go further the way the hint moved them, (N, H).

    b is a number, or one per token (N, 1).

    The output layer is linear, so its logits are z_h + b (z_h - z_p): classifier-free guidance
    (arXiv 2207.12598, eq. 6; for language models 2306.17806, eq. 7) with the hint as condition.
    """
    return hinted_NH + boost * (hinted_NH - plain_NH)


def held_to_question(
    taught_NH: Tensor, plain_NH: Tensor, unasked_NH: Tensor, *, boost: float | Tensor
) -> Tensor:
    """t + c (p - u): a teacher's hidden states, moved on the way that the question moved the plain
    ones, (N, H). u are those under the prompt without what was asked; c is as b above.

    A hint in the prompt, and more so boosted, drowns the question: the same guidance, with the
    question as a second condition, gives its words back (cf. context-aware decoding, arXiv
    2305.14739).
    """
    return taught_NH + boost * (plain_NH - unasked_NH)


def logits(base: Base, hidden_NH: Tensor) -> Tensor:
    """The output layer on hidden states, and what follows it: (N, V), fp32."""
    with base.lowered():
        result: Tensor = base.model.get_output_embeddings()(hidden_NH)
    return finished(base.model, result.float())


def backward_in_chunks(hidden_NH: Tensor, loss_of: Callable[[Tensor, slice], Tensor]) -> float:
    """Sum `loss_of(hidden chunk, its slice)` over chunks and backpropagate through all of it.

    Each chunk's graph is freed before the next: only the gradient at `hidden_NH` is kept, and sent
    through the model once. Returns the summed loss.
    """
    leaf_NH = hidden_NH.detach().requires_grad_()
    total = 0.0
    for start in range(0, len(leaf_NH), CHUNK):
        chunk = slice(start, start + CHUNK)
        loss = loss_of(leaf_NH[chunk], chunk)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    if leaf_NH.grad is not None:
        hidden_NH.backward(leaf_NH.grad)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def over_logits(base: Base, hidden_NH: Tensor, of: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """`of(logits of a chunk, its slice)`, one chunk after the other, joined; no gradient."""
    chunks = [slice(start, start + CHUNK) for start in range(0, len(hidden_NH), CHUNK)]
    return torch.cat([of(logits(base, hidden_NH[chunk]), chunk) for chunk in chunks])


def kl_between(base: Base, first_NH: Tensor, second_NH: Tensor) -> Tensor:
    """KL(first || second) at each position from hidden states, (N,) nats, in chunks."""

    def kl(first_logits_NV: Tensor, chunk: slice) -> Tensor:
        return reverse_kl(first_logits_NV, logits(base, second_NH[chunk]))

    return over_logits(base, first_NH, kl)


def logprobs_of(
    base: Base, hidden_NH: Tensor, targets_N: Tensor, *, temperature: float = 1.0
) -> Tensor:
    """log pi(y_t) of the words that were said, from hidden states, (N,) nats, in chunks."""
    return over_logits(
        base,
        hidden_NH,
        lambda part_NV, chunk: token_logprobs(part_NV, targets_N[chunk], temperature=temperature),
    )


@torch.no_grad()
def response_logprobs(
    base: Base, model: PeftModel | Any, pair: Pair, *, temperature: float = 1.0
) -> Tensor:
    """log pi(y_t | x, y_<t) of one reply's own tokens, (T,) nats."""
    hidden_TH = response_hidden(base, model, [pair])
    targets_T = torch.tensor(list(pair[1]), device=hidden_TH.device)
    return logprobs_of(base, hidden_TH, targets_T, temperature=temperature)


@torch.no_grad()
def hidden_of(
    base: Base, model: PeftModel | Any, pairs: Sequence[Pair], check: Callable[[], None]
) -> Tensor:
    """`response_hidden`, four sequences at a time. `check` is called before each four."""
    parts = []
    for start in range(0, len(pairs), 4):
        check()
        parts.append(response_hidden(base, model, pairs[start : start + 4]))
    return torch.cat(parts)


@torch.no_grad()
def replies_logprobs(
    base: Base,
    model: PeftModel | Any,
    pairs: Sequence[Pair],
    check: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """`response_logprobs` of each pair, without a gradient."""
    targets_N = torch.tensor([token for _, ids in pairs for token in ids], device=base.device)
    logprobs_N = logprobs_of(base, hidden_of(base, model, pairs, check), targets_N)
    return list(torch.split(logprobs_N, [len(ids) for _, ids in pairs]))
