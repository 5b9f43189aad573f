"""People with whom nothing was tuned: their wishes were written down before anybody saw how the
model takes them, and none was left out or reworded since.

    make bench-personas ARGS="--people steps paragraph few example named summed titled simple \\
      --recipes hinted combine memory --turns 16 --out bench/personas/results/newcomers.jsonl"
    .venv/bin/python -m bench.personas.newcomers    # a line for each of them

What the other people of this bench taught about the trainer may be true of them alone; these say
whether it is.
"""

from __future__ import annotations

import re

from bench.personas.people import (
    BOLD,
    PEOPLE,
    SENTENCE_END,
    Answer,
    Person,
    Wish,
    has_list,
    words,
)

NUMBERED = re.compile(r"^\s*\d+[.)]\s+\S", re.MULTILINE)
EXAMPLE = re.compile(r"\bfor (?:example|instance)\b", re.IGNORECASE)
IN_SHORT = re.compile(r"\S+(?:\s+\S+){9,}.*\bin short\b", re.IGNORECASE | re.DOTALL)
NAME = re.compile(r"\bSam\b")
WORD = re.compile(r"[A-Za-z]+")


def sentences(answer: Answer) -> int:
    return len([each for each in SENTENCE_END.split(answer.text.strip()) if each])


def is_one_paragraph(answer: Answer) -> bool:
    lines = [line for line in answer.text.strip().splitlines() if line.strip()]
    return len(lines) == 1 and sentences(answer) >= 2 and answer.has_ended


def word_length(answer: Answer) -> float:
    """Letters in the mean."""
    found = WORD.findall(answer.text)
    return sum(map(len, found)) / max(len(found), 1)


def _person(name: str, wish: Wish) -> Person:
    return Person(name, (wish,))


NEWCOMERS = {
    person.name: person
    for person in (
        _person(
            "steps",
            Wish(
                "Please answer with a numbered list of steps.",
                "two numbered lines or more",
                lambda a: len(NUMBERED.findall(a.text)) >= 2,
            ),
        ),
        _person(
            "paragraph",
            Wish(
                "Please answer in one single paragraph.",
                "one paragraph of two sentences or more, and the reply ended by itself",
                is_one_paragraph,
            ),
        ),
        _person(
            "few",
            Wish(
                "Please answer in three or four sentences.",
                "two to five sentences, no list, and the reply ended by itself",
                lambda a: 2 <= sentences(a) <= 5 and not has_list(a) and a.has_ended,
            ),
        ),
        _person(
            "example",
            Wish(
                'Please give me an example: say "for example".',
                '"for example" or "for instance" is in it',
                lambda a: bool(EXAMPLE.search(a.text)),
            ),
        ),
        _person(
            "named",
            Wish(
                "My name is Sam. Please call me by it.",
                '"Sam" is in it, and five words or more',
                lambda a: bool(NAME.search(a.text)) and words(a) >= 5,
            ),
        ),
        _person(
            "summed",
            Wish(
                'Please end with a short summary that begins with "In short".',
                '"in short" comes after ten words or more',
                lambda a: bool(IN_SHORT.search(a.text)),
            ),
        ),
        _person(
            "titled",
            Wish(
                "Please begin your answer with a title in bold.",
                "begins with bold text or a heading",
                lambda a: bool(BOLD.match(a.text.lstrip())),
            ),
        ),
        _person(
            "simple",
            Wish(
                "Please use simple words, as for a child of ten.",
                "words have 4.5 letters in the mean or fewer, and there are five or more",
                lambda a: words(a) >= 5 and word_length(a) <= 4.5,
            ),
        ),
    )
}
EVERYONE = PEOPLE | NEWCOMERS
