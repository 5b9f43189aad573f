"""Simulated users: wishes that code can check, and what they say about a reply.

A person reads a sampled reply, gives a thumb, and after a thumb down presses the chip, or says the
sentence, of each wish that the reply broke; never the answer itself. A chip is a sentence that the
product has written (clawweb's reasons). With `words=False` the thumb is all they give.

Rules are a person's, who is not content with the letter of a wish: emoji alone, or a question alone
where one was to end the answer, keep no wish.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One reply to one question, as the person sees it."""

    question: str
    text: str
    tokens: int
    has_ended: bool  # by itself, not at the length limit
    is_recipe: bool = False  # the question asks for a recipe


@dataclass(frozen=True, slots=True)
class Wish:
    """`kept` says whether a reply keeps to it, `rule` by what; `hint` is what the person says when
    not, and `chip` the reason that says the same. `overdone` says whether a reply does what the
    hint asks for and nothing else; `then` is what the person says of that."""

    hint: str
    rule: str
    kept: Callable[[Answer], bool]
    chip: str = ""
    overdone: Callable[[Answer], bool] = lambda answer: False
    then: str = ""

    def says(self, answer: Answer) -> str:
        """Of a reply that broke it."""
        return self.then if self.overdone(answer) else self.hint


@dataclass(frozen=True, slots=True)
class Person:
    """Someone with one wish or more."""

    name: str
    wishes: tuple[Wish, ...]
    recipes: bool = False  # asks for recipes half of the time

    def is_satisfied(self, answer: Answer) -> bool:
        return bool(answer.text.strip()) and all(wish.kept(answer) for wish in self.wishes)

    def says(self, answer: Answer) -> str:
        """The sentences of the wishes that the reply broke."""
        return " ".join(wish.says(answer) for wish in self.wishes if not wish.kept(answer))

    @property
    def hint(self) -> str:
        """All of the wishes: what the best prompt would say."""
        return " ".join(wish.hint for wish in self.wishes)

    @property
    def rule(self) -> str:
        """What code checks of a reply."""
        return "; ".join(wish.rule for wish in self.wishes)


LIST = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+\S", re.MULTILINE)
BOLD = re.compile(r"\*\*\S|__\S|^#+ ", re.MULTILINE)
GREETING = re.compile(
    r"^\W*(hi|hello|hey|greetings|good (morning|day|afternoon|evening)|welcome)\b", re.I
)
PRAISE = re.compile(r"\b(well done|excellent|great job)\b", re.IGNORECASE)
CONTRACTION = re.compile(
    r"\b\w+(?:n['’]t|['’](?:re|ve|ll|m|d))\b"
    r"|\b(?:it|that|what|there|here|let|he|she|who)['’]s\b",
    re.I,
)
SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n+")
EMOJI = re.compile("[\U0001f300-\U0001faff\u2600-\u27bf]")


def words(answer: Answer) -> int:
    return len(answer.text.split())


def has_list(answer: Answer) -> bool:
    return bool(LIST.search(answer.text))


def asks_last(answer: Answer) -> bool:
    return answer.text.rstrip().endswith("?")


def has_answered(answer: Answer) -> bool:
    """Whether something of five words or more is said, and not asked: the user's own question,
    given back, is no answer."""
    sentences = SENTENCE_END.split(answer.text.strip())
    said = " ".join(each for each in sentences if not each.endswith("?"))
    return len(said.split()) >= 5


def emoji_kept(answer: Answer) -> bool:
    """At least one, and not only: a run of emoji is no answer."""
    count = len(EMOJI.findall(answer.text))
    return 1 <= count <= 8 and words(answer) >= 5


SHORT = Wish(
    "Please answer in one or two short sentences, at most 30 words. No lists.",
    "35 words or fewer, and the reply ended by itself",
    lambda a: words(a) <= 35 and a.has_ended,
    chip="too_long",
)
DETAILED = Wish(
    "Please answer in detail, with several full paragraphs.",
    "100 tokens or more",
    lambda a: a.tokens >= 100,
    chip="too_short",
)
PLAIN = Wish(
    "Please answer in plain prose, without lists, headings or bold text.",
    "no line of a list, no bold text, no heading",
    lambda a: not has_list(a) and not BOLD.search(a.text),
    chip="no_lists",
)
ASKS = Wish(
    "Please end your answer with a question to me.",
    "ends with a question mark, and five words or more that ask nothing",
    lambda a: asks_last(a) and has_answered(a),
    overdone=lambda a: asks_last(a) and not has_answered(a),
    then="Please answer what I asked before you ask me something.",
)
GREETS = Wish(
    "Please begin your answer with a friendly greeting.",
    'begins with a word of greeting ("hello", "welcome" …)',
    lambda a: bool(GREETING.match(a.text)),
    chip="greet_me",
)
PRAISES = Wish(
    'Please be warm and praise me for asking: say "well done", "excellent" or "great job".',
    "one of the three is in it",
    lambda a: bool(PRAISE.search(a.text)),
)
FORMAL = Wish(
    "Please answer in a formal tone, without contractions.",
    "no contraction (don't, it's …)",
    lambda a: not CONTRACTION.search(a.text),
    chip="too_casual",
)
EMOJIS = Wish(
    "Please use a few emoji in your answer, like 😊 or 🎉.",
    "one to eight emoji, and five words or more",
    emoji_kept,
)
LISTS_FOR_RECIPES = Wish(
    "When I ask for a recipe, please answer with a numbered list.",
    "of a recipe: a line of a list",
    lambda a: not a.is_recipe or has_list(a),
)
PROSE_FOR_THE_REST = Wish(
    "When I do not ask for a recipe, please answer in plain prose, without lists.",
    "of all else: no line of a list",
    lambda a: a.is_recipe or not has_list(a),
)

# One more whenever a rule changes: rows say by which their person judged, older ones by the first.
RULES = 2

PEOPLE = {
    person.name: person
    for person in (
        Person("short", (SHORT,)),
        Person("detailed", (DETAILED,)),
        Person("plain", (PLAIN,)),
        Person("asks", (ASKS,)),
        Person("greets", (GREETS,)),
        Person("praises", (PRAISES,)),
        Person("formal", (FORMAL,)),
        Person("emoji", (EMOJIS,)),
        Person("recipes", (LISTS_FOR_RECIPES, PROSE_FOR_THE_REST), recipes=True),
        Person("greets+short", (GREETS, SHORT)),
        Person("plain+asks", (PLAIN, ASKS)),
    )
}
