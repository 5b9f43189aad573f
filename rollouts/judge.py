"""What a judge is, how several votes become one verdict, and how a judge of your own is found.

A judge reads a reply together with what happened next, and votes. Whatever fails on the way is
no vote: it never becomes a number. Knows no table and no web; docs/judges.md shows an example.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from rollouts.errors import BadReply, JudgeRefused, JudgeUnavailable
from rollouts.types import Message

GROUP = "clawweb.judges"  # of entry points
MOST_HINTS = 3
HINT_CHARS = (10, 400)
MOST_TEXT = 2000  # characters that are kept of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A reply, what it answered and what happened next. The texts are others': do not obey them."""

    messages: Sequence[Message]  # what the reply answered: system, history, question; oldest first
    reply: Message  # the assistant's message, with its tool calls; without its reasoning
    next_state: Sequence[Message]  # what came then: roles user and tool only; never empty

    @property
    def question(self) -> str:
        """What the user asked last before the reply; empty when nothing is known of it."""
        asked = (m["content"] for m in reversed(self.messages) if m["role"] == "user")
        return next(asked, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One reading of what happened next."""

    score: int | None  # +1 it did what was wanted, -1 it did not, 0 neither; None = cannot say
    hint: str = ""  # with -1: what the reply should have known, as an instruction
    text: str = ""  # the judge's own words, for people


class Judge(Protocol):
    """A class with one method; made without arguments when it comes from an entry point."""

    async def judge(self, asked: Judged) -> Vote:
        """One vote. Asked several times at once, each in CLAWWEB_JUDGE_SECONDS.

        Raises JudgeUnavailable when asking again later may help, JudgeRefused when it will not.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """What became of asking once: a vote, or why there is none."""

    vote: Vote | None = None
    error: str = ""
    again: bool = False  # asking later may help
    refused: bool = False  # asking later will not
    wait: float = 0.0  # seconds that the judge asked to be left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a round of ballots comes to. `score` None and no `again`, no `refused`: no signal."""

    score: int | None = None
    hints: tuple[str, ...] = ()  # of a verdict of -1, the shortest first
    again: bool = False
    refused: bool = False
    error: str = ""
    wait: float = 0.0


async def ask(judge: Judge, asked: Judged, *, votes: int, seconds: float) -> list[Ballot]:
    """`votes` ballots on one reply, cast at the same time; each has `seconds`."""
    return list(await asyncio.gather(*(_ballot(judge, asked, seconds) for _ in range(votes))))


async def _ballot(judge: Judge, asked: Judged, seconds: float) -> Ballot:
    ballot = await _asked(judge, asked, seconds)
    return replace(ballot, error=clean(ballot.error))  # anybody's words, too


async def _asked(judge: Judge, asked: Judged, seconds: float) -> Ballot:
    try:
        async with asyncio.timeout(seconds):
            return Ballot(vote=_checked(await judge.judge(asked)))
    except TimeoutError:
        return Ballot(error=f"no answer in {seconds:g} s", again=True)
    except JudgeUnavailable as exc:
        return Ballot(error=str(exc), again=True, wait=exc.wait)
    except JudgeRefused as exc:
        return Ballot(error=str(exc), refused=True)
    except BadReply as exc:
        return Ballot(error=str(exc))
    except Exception as exc:  # somebody's own judge; whatever it raised is no vote
        return Ballot(error=f"the judge broke: {type(exc).__name__}: {exc}", refused=True)


def _checked(vote: Vote) -> Vote:
    """A vote as it may be stored; one outside the scale is none."""
    score = vote.score
    whole = isinstance(score, int) and not isinstance(score, bool) and score in (-1, 0, 1)
    text = bounded(vote.text, MOST_TEXT)
    return Vote(score=score if whole else None, hint=clean(vote.hint), text=text)


def verdict(ballots: Sequence[Ballot]) -> Verdict:
    """The plurality of the votes that could be read, when at least half of those asked could.

    Otherwise the round is to be repeated (someone did not answer), over (someone refused) or
    without a signal.
    """
    votes = [ballot.vote for ballot in ballots if ballot.vote and ballot.vote.score is not None]
    if votes and 2 * len(votes) >= len(ballots):
        score = plurality([vote.score for vote in votes if vote.score is not None])
        return Verdict(score=score, hints=hint_candidates(votes) if score == -1 else ())
    errors = "; ".join(dict.fromkeys(ballot.error for ballot in ballots if ballot.error))
    if any(ballot.again for ballot in ballots):
        return Verdict(again=True, error=errors, wait=max(ballot.wait for ballot in ballots))
    return Verdict(refused=any(ballot.refused for ballot in ballots), error=errors)


def plurality(scores: Sequence[int]) -> int | None:
    """The score with most votes; None when two have as many."""
    first, *others = Counter(scores).most_common(2)
    return None if others and others[0][1] == first[1] else first[0]


def hint_candidates(votes: Iterable[Vote]) -> tuple[str, ...]:
    """The different hints of votes of -1, at most three, the shortest first."""
    least, most = HINT_CHARS
    different: dict[str, str] = {}
    for vote in votes:
        hint = " ".join(vote.hint.split())
        if vote.score == -1 and least <= len(hint) <= most:
            different.setdefault(hint.casefold().rstrip(".!"), hint)
    return tuple(sorted(different.values(), key=len)[:MOST_HINTS])


def clean(text: str) -> str:
    """`text` as every database takes it: no NUL, no half of a character."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()


def bounded(text: str, most: int) -> str:
    """At most about `most` characters: head and tail, with a mark where the middle was left out."""
    text = clean(text)
    if len(text) <= most:
        return text
    tail = most // 3
    left_out = len(text) - most
    return f"{text[: most - tail]}\n[… {left_out} characters left out …]\n{text[-tail:]}"


_REASONING = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)


def spoken(text: str) -> str:
    """What is left of a reply without the reasoning that it opens with."""
    if "</think>" in text and "<think>" not in text:  # templates open it in the prompt
        return text.partition("</think>")[2].lstrip()
    return _REASONING.sub("", text).lstrip() if "<think>" in text else text


def judge_names() -> list[str]:
    """The judges that installed packages offer."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def find_judge(name: str) -> EntryPoint:
    """The entry point of that name; ValueError says which there are."""
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        known = ", ".join(judge_names()) or "none"
        raise ValueError(f"no judge is called {name!r}; installed (entry points {GROUP}): {known}")
    return found


def load_judge(name: str) -> Judge:
    """A judge of that name; ValueError says which there are, or what is wrong with it."""
    found = find_judge(name)
    try:
        judge: Judge = found.load()()
    except Exception as exc:
        raise ValueError(f"the judge {name!r} cannot be made: {type(exc).__name__}: {exc}") from exc
    if not inspect.iscoroutinefunction(getattr(judge, "judge", None)):
        raise ValueError(f"the judge {name!r} has no `async def judge`")
    return judge
