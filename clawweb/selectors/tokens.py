"""A turn's tokens as texts, each with what was measured on it: the hint's effect, its likelihood.

Where the tokenizer has changed since, or cannot be read, tokens are shown by their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from clawweb.engine import current_template_hash, decoder
from clawweb.models import Turn
from clawweb.sentences import written

if TYPE_CHECKING:
    from rollouts.tokens import Piece

EFFECT, LIKELIHOOD, TEXT = "effect", "likelihood", "text"
_STRONGER = (0.1, 0.5, 1.5, 3.0)  # nats, either way: from 1.1, 1.6, 4.5, 20 times on
_RARER = (0.9, 0.5, 0.2, 0.05, 0.01)  # probabilities: below each the colour gets deeper


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A piece of a text with its number; `level` is its colour's class, "" for none."""

    text: str
    value: float | None = None  # nats; None: not measured
    level: str = ""
    words: str = ""  # the value, to be read
    is_control: bool = False

    @property
    def shown(self) -> str:
        """The text where spaces and line ends must be seen."""
        return self.text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    kind: str
    tokens: list[Token]
    by_number: bool  # the texts are the tokens' numbers
    measured: int  # tokens that have a value


def heats_of(turn: Turn) -> list[str]:
    """What the reply can be coloured by."""
    if not turn.response_ids:
        return []
    kinds = [EFFECT] if token_effects(turn) else []
    return [*kinds, LIKELIHOOD] if turn.logprobs else kinds


def token_effects(turn: Turn) -> list[float] | None:
    """Of the newest sample that trained under a hint: of the reply's first tokens, maybe not
    all."""
    found = [sample for sample in turn.samples.all() if sample.token_effects]
    return list(max(found, key=lambda sample: sample.pk).token_effects) if found else None


def heat(turn: Turn, kind: str) -> Heat | None:
    """The reply's tokens coloured by `kind`; None when that was not measured."""
    if kind not in heats_of(turn):
        return None
    values = (token_effects(turn) if kind == EFFECT else turn.logprobs) or []
    pieces, by_number = _pieces(turn, turn.response_ids or [])
    tokens: list[Token] = []
    at = measured = 0
    for piece in pieces:
        of_piece = values[at : at + piece.count]
        at += piece.count
        # Of several tokens that make one character: log-probs of parts add up to the whole's
        value = math.fsum(of_piece) if len(of_piece) == piece.count else None
        measured += value is not None
        level, words = _look(kind, value)
        tokens.append(
            Token(
                text=piece.text,
                value=value,
                level=level,
                words=words,
                is_control=piece.is_control,
            )
        )
    return Heat(kind=kind, tokens=tokens, by_number=by_number, measured=measured)


def prompt_tokens(turn: Turn) -> tuple[list[Token], bool] | None:
    """The prompt as the model saw it, control tokens apart from the runs of text between them, and
    whether it is in numbers; None when it was not kept."""
    if turn.prompt_ids is None:
        return None
    pieces, by_number = _pieces(turn, turn.prompt_ids)
    runs: list[Token] = []
    text: list[str] = []
    for piece in pieces:
        if piece.is_control:
            runs.append(Token(text="".join(text)))
            runs.append(Token(text=piece.text, is_control=True))
            text = []
        else:
            text.append(piece.text)
    runs.append(Token(text="".join(text)))
    return [run for run in runs if run.text], by_number


def _pieces(turn: Turn, ids: Sequence[int]) -> tuple[list[Piece], bool]:
    """The ids as texts, and whether these are only their numbers."""
    from rollouts.tokens import Piece  # most requests need no tokenizer

    known = decoder() if turn.template_hash == current_template_hash() else None
    if known is None:
        return [Piece(text=f"{number} ", count=1) for number in ids], True
    return known.pieces(ids), False


def _look(kind: str, value: float | None) -> tuple[str, str]:
    """The colour's class and the words for a value."""
    if value is None:
        return "", _("not measured")
    if kind == LIKELIHOOD:
        chance = math.exp(min(value, 0.0))
        step = sum(chance < limit for limit in _RARER)
        return f"rare{step}" if step else "", _likelihood_words(chance, value)
    step = sum(abs(value) >= limit for limit in _STRONGER)
    way = "more" if value > 0 else "less"
    return f"{way}{step}" if step else "", _effect_words(value, step)


def _likelihood_words(chance: float, value: float) -> str:
    share = f"{100 * chance:.0f}" if chance >= 0.1 else f"{100 * chance:.2g}"
    return _("%(share)s%% likely (log-prob %(value)s)") % {
        "share": written(share),
        "value": written(f"{value:.2f}"),
    }


def _effect_words(value: float, step: int) -> str:
    times = math.exp(min(abs(value), 7.0))
    known = {
        "times": written(f"{times:.1f}" if times < 10 else f"{times:.0f}"),
        "value": written(f"{value:+.2f}"),
    }
    if not step:
        return _("about as likely (%(value)s)") % known
    if value > 0:
        return _("%(times)s times as likely with your note (%(value)s)") % known
    return _("%(times)s times less likely with your note (%(value)s)") % known
