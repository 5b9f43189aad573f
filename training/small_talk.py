"""Whether what was said of a reply asks for anything. "My cat is called Tom." moves a small model
as far as a wish does, but the base would answer it otherwise: a linear probe on its hidden states
(arXiv 1610.01644) there, fitted to the examples of small_talk.json, tells the two apart. Words
alone do not say it of a bare fact ("The museum is in Bilbao."): after a reply of which it speaks it
is a correction. So it is asked, too, how much likelier the conversation makes the words.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import softplus

from training.base import Base
from training.batching import Pair
from training.drift import asked
from training.forward import layer_states, replies_logprobs
from training.optimizer import save_tensors

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")
BEFORE = "The user said:"  # where the template takes no second question
DEPTHS = (0.5, 0.6, 0.7)  # of the layers: what is said is clearest in the midst
RIDGE = 3e-5  # by the log-loss, crosswise: docs/LOG.md, Small talk
AT_ONCE = 32  # sentences in a pass


@dataclass(frozen=True, slots=True)
class Probe:
    """x -> w x + b of each row, (N, F) to (N,) nats."""

    w_F: Tensor
    b: Tensor

    def __call__(self, features_NF: Tensor) -> Tensor:
        return features_NF @ self.w_F + self.b


def sentences(text: str) -> list[str]:
    """What it says, one after the other, with what ends each."""
    return [part.strip() for part in SENTENCE_END.split(text) if part.strip()]


def said_ids(base: Base, hint: str) -> tuple[tuple[int, ...], ...]:
    """Each sentence's tokens, as it stands after a word; one that comes to none is left out."""
    said = (base.encode(f" {sentence}") for sentence in sentences(hint))
    return tuple(ids for ids in said if ids)


def is_small_talk(
    base: Base,
    model: PeftModel | Any,
    said: Sequence[tuple[int, ...]],
    limit: float,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Whether each of the sentences is, by more than `limit` nats: one wish is enough. `check` is
    called while examples are read."""
    wish_probe(base, model, check)
    return all(wish_nats(base, model, sentence) < -limit for sentence in said)


def is_of_talk(
    base: Base,
    model: PeftModel | Any,
    talk: Pair,
    said: Sequence[tuple[int, ...]],
    limit: float,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Whether one of the sentences is likelier after this reply than after others by more than
    `limit` nats: whoever says it speaks of the reply. `model` is to answer as the base."""
    return any(talk_nats(base, model, talk, sentence, check) > limit for sentence in said)


def talk_nats(
    base: Base,
    model: PeftModel | Any,
    talk: Pair,
    said: tuple[int, ...],
    check: Callable[[], None] = lambda: None,
) -> float:
    """log p(said | talk) - log (1/J sum_j p(said | talk_j)), nats: the pointwise mutual information
    of what a user says next and the talk before it, a question and its reply. The other talks are
    those of small_talk.json. 0 where the template takes no second question."""
    if not (around := base.next_turn_ids):
        return 0.0
    between, _ = around
    prompt, reply = talk
    words = [token for token in reply if token not in base.eos_ids]
    place = ("said elsewhere", said)
    pairs: list[Pair] = [((*prompt, *words, *between), said)]
    if place not in base.cache:
        pairs += [((*ids, *between), said) for ids in _other_talks(base)]
    own, *elsewhere = (
        float(logprobs_T.sum()) for logprobs_T in replies_logprobs(base, model, pairs, check)
    )
    if elsewhere:
        mean = torch.logsumexp(torch.tensor(elsewhere), dim=0) - math.log(len(elsewhere))
        base.cache[place] = float(mean)
    return own - cast(float, base.cache[place])


def _other_talks(base: Base) -> Iterator[tuple[int, ...]]:
    """Each question and its reply, up to the reply's last word."""
    talks: list[tuple[str, str]] = _told()["talks"]
    return ((*base.render(asked(question)), *base.encode(reply)) for question, reply in talks)


def wish_nats(base: Base, model: PeftModel | Any, said: tuple[int, ...]) -> float:
    """log p(wish | said) - log p(small talk | said) of a sentence, nats; `model` is to answer as
    the base. Below 0 it is rather small talk. Kept in `Base.cache`."""
    place = ("wish nats", said)
    found = base.cache.get(place)
    if not isinstance(found, float):
        nats = wish_probe(base, model)(features(base, model, [said]))
        found = base.cache[place] = float(nats)
    return found


def wish_probe(
    base: Base, model: PeftModel | Any, check: Callable[[], None] = lambda: None
) -> Probe:
    """What tells them apart by their `features`, in nats; `model` is to answer as the base. Kept in
    `Base.cache`, and for other processes in the folder `Base.kept`: to read the examples takes a
    CPU two minutes."""
    found = base.cache.get("wish probe")
    if not isinstance(found, Probe):
        path = base.kept and _place_kept(base, base.kept)
        found = path and _kept(path)
        if not found:
            found = fitted(*example_features(base, model, check))
            if path:
                with suppress(OSError, SafetensorError):  # what cannot be written is made again
                    save_tensors({"w": found.w_F, "b": found.b}, path)
        base.cache["wish probe"] = found
    return found


def _kept(path: Path) -> Probe | None:
    with suppress(OSError, SafetensorError, KeyError):
        tensors = load_file(path)
        return Probe(tensors["w"], tensors["b"])
    return None


def _place_kept(base: Base, folder: Path) -> Path:
    """Named after all that the probe is made of."""
    arithmetic = base.device, str(base.autocast_dtype)
    made_of = base.weights_hash, base.template_hash, arithmetic, BEFORE, DEPTHS, RIDGE
    digest = hashlib.sha256(repr(made_of).encode() + _file().read_bytes())
    return folder / f"{digest.hexdigest()[:16]}.safetensors"


def example_features(
    base: Base, model: PeftModel | Any, check: Callable[[], None] = lambda: None
) -> tuple[Tensor, Tensor]:
    """Of the `examples`, a sentence a row, (N, F), and what each is, (N,)."""
    told = [(ids, kind) for sentence, kind in examples() for ids in said_ids(base, sentence)]
    kinds_N = torch.tensor([kind for _, kind in told])
    return features(base, model, [ids for ids, _ in told], check), kinds_N


def examples() -> list[tuple[str, float]]:
    """Each sentence of small_talk.json, and what it is: 1 a wish, -1 small talk."""
    told, kinds = _told(), (("wishes", 1.0), ("small talk", -1.0))
    return [(part, kind) for name, kind in kinds for text in told[name] for part in sentences(text)]


@cache
def _told() -> Any:
    return json.loads(_file().read_text(encoding="utf-8"))


def _file() -> Path:
    return Path(__file__).with_suffix(".json")


@torch.no_grad()
def features(
    base: Base,
    model: PeftModel | Any,
    said: Sequence[tuple[int, ...]],
    check: Callable[[], None] = lambda: None,
) -> Tensor:
    """Of each sentence the state in which the base begins to answer it, said after the first of the
    talks, at `DEPTHS` side by side, (N, F)."""
    before, after = _place(base)
    found: dict[int, Tensor] = {}
    by_length = sorted(range(len(said)), key=lambda number: len(said[number]))
    for start in range(0, len(said), AT_ONCE):
        check()
        group = by_length[start : start + AT_ONCE]
        pairs: list[Pair] = [((*before, *said[n], *after), (base.pad_id,)) for n in group]
        states_NF = layer_states(base, model, pairs, DEPTHS).float().cpu()
        found.update(zip(group, states_NF, strict=True))
    return torch.stack([found[number] for number in range(len(said))])


def _place(base: Base) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What stands before a sentence, and between it and its answer."""
    if not (around := base.next_turn_ids):
        return base.encode(BEFORE), ()
    between, after = around
    return (*next(_other_talks(base)), *between), after


def fitted(features_NF: Tensor, kinds_N: Tensor) -> Probe:
    """The least of L(w, b) = 1/N sum_n c_n log(1 + exp(-k_n (w x_n + b))) + ridge |w|^2, x being
    standardized and over sqrt(F), and c such that either kind weighs half. The probe is
    x -> w x + b, nats."""
    mean_F, width = features_NF.mean(dim=0), features_NF.shape[1] ** 0.5
    scale_F = (features_NF.std(dim=0) + 1e-4) * width
    inputs_NF = (features_NF - mean_F) / scale_F
    is_wish_N = kinds_N > 0
    share = float(is_wish_N.float().mean())
    weights_N = torch.where(is_wish_N, 0.5 / share, 0.5 / (1 - share))
    w_F, b = (
        torch.zeros(features_NF.shape[1], requires_grad=True),
        torch.zeros(1, requires_grad=True),
    )
    optimizer = torch.optim.LBFGS([w_F, b], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        margins_N = kinds_N * (inputs_NF @ w_F + b)
        value = (weights_N * softplus(-margins_N)).mean() + RIDGE * w_F @ w_F
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    w_F = w_F.detach() / scale_F
    return Probe(w_F, b.detach() - mean_F @ w_F)
