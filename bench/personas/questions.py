"""The questions of the bench: which are rated, in which order, and which are held out.

None that is rated is held out, or among the gate's neutral prompts, by whose replies a version is
moved back. Of the 96 held out two are (`NEUTRAL`, places from 0; of the first 24 none): no figure
of the aims is 0.01 off for it (docs/LOG.md, Asked as many as the others).
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from bench.personas.people import Person

HERE = Path(__file__).parent
HELD_OUT = 24  # questions that are never rated
FIRST = 48  # questions that are rated before the others
NEUTRAL = (28, 65)  # held-out questions that are the gate's, too


@cache
def all_questions() -> dict[str, list[str]]:
    """The lists of questions.json by name."""
    found: dict[str, list[str]] = json.loads((HERE / "questions.json").read_text(encoding="utf-8"))
    return found


def questions_for(
    person: Person, seed: int, held_out: int = HELD_OUT
) -> tuple[list[str], list[str]]:
    """(to be rated, in this seed's order; held out). The list grew: what came later is asked later,
    so that each seed's first questions stay what they were."""
    data = all_questions()
    first, later = data["train"][:FIRST], data["train"][FIRST:]
    kept = data["held_out"][:held_out]
    if person.recipes:
        half = FIRST // 2
        first, later = data["train"][:half] + data["recipes"][:half], data["recipes"][half:]
        later = data["train"][half : half + len(later)] + later
        kept = data["held_out"][: held_out // 2] + data["recipes_held_out"][: held_out // 2]
    chance = random.Random(seed)
    return [q for part in (first, later) for q in chance.sample(part, len(part))], kept


def is_recipe(question: str) -> bool:
    data = all_questions()
    return question in data["recipes"] or question in data["recipes_held_out"]


def elsewhere() -> tuple[str, ...]:
    """Questions that no wish is about, no version was ever moved back by and nothing tuned on."""
    return tuple(all_questions()["elsewhere"])
