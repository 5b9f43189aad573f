"""What a simulated person writes instead of a reply that broke a wish.

People correct a reply by editing it: the product's field begins with its text. So do these, as
little as it takes: each wish has one small edit, and an end that was cut off goes. Who cannot edit
takes what the hinted base answers, if that keeps the wish.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bench.personas.lab import Lab, answer_of, asked
from bench.personas.people import (
    ASKS,
    CONTRACTION,
    EMOJIS,
    FORMAL,
    GREETS,
    LIST,
    LISTS_FOR_RECIPES,
    PLAIN,
    PRAISES,
    PROSE_FOR_THE_REST,
    SENTENCE_END,
    SHORT,
    Answer,
    Person,
    Wish,
)
from rollouts.types import BASE, Rollout, Sample

TRIES = 8  # of the hinted base

QUESTIONS = (
    "Does that help?", "What would you like to know next?", "Shall I tell you more?",
    "Have you tried that before?",
)  # fmt: skip
GREETINGS = ("Hello!", "Hi there!", "Good day!", "Hey, nice to hear from you!")
PRAISE = ("Excellent question!", "Well done for asking!", "Great job looking into this!")
FACES = ("😊", "🎉", "👍", "✨")
MOST_WORDS = 30
PARTS = {"n't": " not", "'re": " are", "'ve": " have", "'ll": " will", "'m": " am", "'d": " would"}
WHOLE = {"can't": "cannot", "won't": "will not", "shan't": "shall not", "let's": "let us"}


def edited(person: Person, answer: Answer) -> str:
    """The reply as the person would have had it; "" where they would have to write it anew."""
    text = _whole(answer)
    for wish in person.wishes:
        if not wish.kept(replace(answer, text=text, has_ended=True)):
            text = EDITS[wish](text, answer) if text and wish in EDITS else ""
    now = replace(answer, text=text, tokens=len(text.split()), has_ended=True)
    return text if person.is_satisfied(now) else ""


def answered_anew(
    lab: Lab, person: Person, samples: Sequence[Sample], wanted: Mapping[int, str], *, seed: int
) -> dict[int, Rollout]:
    """By id, a reply instead of each disliked one. It is the base's under the hint, the first of up
    to TRIES that keeps the wish; where none does there is none."""
    found: dict[int, Rollout] = {}
    for attempt in range(TRIES):
        wrong = [s for s in samples if wanted[s.id] and s.id not in found]
        if not wrong:
            break
        prompts = [asked(s.messages[-1]["content"], [wanted[s.id]]) for s in wrong]
        replies = lab.ask(prompts, BASE, seed=seed + 100 * attempt)
        for sample, reply in zip(wrong, replies, strict=True):
            if person.is_satisfied(answer_of(sample.messages[-1]["content"], reply)):
                found[sample.id] = reply
    return found


def _whole(answer: Answer) -> str:
    """Without the sentence that the length limit cut off, if there is one before it."""
    text = answer.text.strip()
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s|$)", text)]
    return text if answer.has_ended or not ends else text[: ends[-1]]


def _one_of(ways: tuple[str, ...], answer: Answer) -> str:
    """Not always the same words."""
    return ways[len(answer.question) % len(ways)]


def _ask(text: str, answer: Answer) -> str:
    return f"{text} {_one_of(QUESTIONS, answer)}"


def _greet(text: str, answer: Answer) -> str:
    return f"{_one_of(GREETINGS, answer)} {text}"


def _praise(text: str, answer: Answer) -> str:
    return f"{_one_of(PRAISE, answer)} {text}"


def _smile(text: str, answer: Answer) -> str:
    """After the first sentence, and at the end."""
    first, *rest = re.split(r"(?<=[.!?])\s+", text, maxsplit=1)
    face = _one_of(FACES, answer)
    return " ".join([first, face, *([*rest, face] if rest else [])])


def _shorten(text: str, answer: Answer) -> str:
    """As many of its first sentences as fit; of one that does not its beginning."""
    kept: list[str] = []
    for sentence in SENTENCE_END.split(_prose(text, answer)):
        if len(" ".join([*kept, sentence]).split()) > MOST_WORDS:
            break
        kept.append(sentence)
    return " ".join(kept) or " ".join(text.split()[:MOST_WORDS]).rstrip(".,:;") + "."


def _prose(text: str, answer: Answer) -> str:
    unmarked = text.replace("**", "").replace("__", "").splitlines()
    lines = [LIST.sub(lambda found: found.group()[-1], each).strip("# ") for each in unmarked]
    return " ".join(each if each[-1] in ".!?:;," else f"{each}." for each in lines if each)


def _list(text: str, answer: Answer) -> str:
    sentences = [each for each in SENTENCE_END.split(text) if each.strip()]
    return "\n".join(f"{number}. {each}" for number, each in enumerate(sentences, start=1))


def _spell_out(text: str, answer: Answer) -> str:
    def whole(found: re.Match[str]) -> str:
        word = found.group().replace("’", "'")
        if word.lower() in WHOLE:
            return word[0] + WHOLE[word.lower()][1:]
        end = next((part for part in PARTS if word.lower().endswith(part)), "'s")
        return word[: -len(end)] + PARTS.get(end, " is")

    return CONTRACTION.sub(whole, text)


EDITS: dict[Wish, Callable[[str, Answer], str]] = {
    ASKS: _ask,
    GREETS: _greet,
    PRAISES: _praise,
    EMOJIS: _smile,
    SHORT: _shorten,
    PLAIN: _prose,
    PROSE_FOR_THE_REST: _prose,
    LISTS_FOR_RECIPES: _list,
    FORMAL: _spell_out,
}
