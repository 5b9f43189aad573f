"""Rows of earlier trainers, that stay until they are run again: which, and how the table marks
them."""

from __future__ import annotations

from typing import Any

from bench.personas.newcomers import EVERYONE
from bench.personas.recipes import RECIPES
from bench.personas.rows import Cells, is_judged_bare
from training.heard import names_kind

Row = dict[str, Any]
EARLIER = (1, 2, 3, 4, 5, 6)  # trainers whose rows still hold


def trainer_of(row: Row) -> int:
    """Rows that do not say are the first one's."""
    number: int = row.get("made_with", {}).get("trainer", 1)
    return number


def is_lossy(row: Row) -> bool:
    """Whether the first trainer made it in bf16, which sampled from less than was learned: replies
    answered anew, and those that the way back looks at. Upstream's recipes and the rivals that are
    not ours to train have neither; of theirs only the gate's own measures were of such replies."""
    recipe = RECIPES[row["recipe"]]
    config = recipe.config
    samples = recipe.steps_back or (config.distils and config.max_steps > 1)
    if recipe.learns != "train" or not samples:
        return False
    return bool(row["updates"]) and row.get("dtype") == "bf16" and trainer_of(row) == 1


def had_fewer_sets(row: Row) -> bool:
    """Whether a job of it answered anew by the share of what was not liked, and no longer by that
    share's root: the jobs that had all or nothing to learn are the same by both."""
    recipe = RECIPES[row["recipe"]]
    config = recipe.config
    if recipe.learns != "train" or not config.distils or config.reanswer_sets == "all":
        return False
    if trainer_of(row) > 2 or config.max_steps == 1:
        return False
    return any(0 < update["liked"] < recipe.batch for update in row["updates"])


def lacks_thumbs(row: Row) -> bool:
    """Whether a job of it that had hints would end with KTO today, if its likes came after the
    wish: until the fourth trainer that was for several wishes, and on thumbs of all times."""
    recipe = RECIPES[row["recipe"]]
    config, liked, unliked = recipe.config, 0, 0
    if recipe.learns != "train" or config.method != "combine" or trainer_of(row) > 3:
        return False
    for update in row["updates"]:
        liked, unliked = liked + update["liked"], unliked + recipe.batch - update["liked"]
        if update["liked"] < recipe.batch and min(liked, unliked) >= config.kto_beside > 0:
            return True
    return False


def taught_unheard(row: Row) -> bool:
    """Whether it was taught by hints that name a kind of request, whatever the base heard: since
    the fifth trainer thumbs alone teach of those that it does not hear."""
    recipe = RECIPES[row["recipe"]]
    config = recipe.config
    is_asked = recipe.learns == "train" and config.distils and config.hint_heard_min > 0
    wishes = EVERYONE[row["person"]].wishes if is_asked and recipe.words else ()
    return trainer_of(row) < 5 and any(names_kind(wish.hint) for wish in wishes)


def was_told_all(row: Row) -> bool:
    """Whether replies were answered anew under what was said of one other alone, too: since the
    sixth trainer under what was said again."""
    recipe = RECIPES[row["recipe"]]
    collects = recipe.learns == "train" and recipe.config.reanswer_hints == "collected"
    return collects and trainer_of(row) < 6 and len(EVERYONE[row["person"]].wishes) > 1


def stepped_shorter(row: Row) -> bool:
    """Whether corrections were learned in steps that shrank with what was left of the hint: since
    the seventh trainer with what is left of the farther of both."""
    recipe = RECIPES[row["recipe"]]
    writes = recipe.learns == "train" and (recipe.corrects or recipe.edits)
    return bool(writes) and recipe.config.correction_weight > 0 and trainer_of(row) < 7


MARKS = {
    "lossy": is_lossy,
    "fewer": had_fewer_sets,
    "thumbless": lacks_thumbs,
    "unheard": taught_unheard,
    "once": was_told_all,
    "shorter": stepped_shorter,
    "bare": is_judged_bare,
}


def seeds_of(group: Cells) -> str:
    """How many, and how many of them bear which mark."""
    counts = {mark: sum(map(bears, group)) for mark, bears in MARKS.items()}
    return ", ".join([str(len(group)), *(f"{n} {mark}" for mark, n in counts.items() if n)])
