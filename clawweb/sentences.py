"""What rows say in English sentences, with their values, said to people in their language. Pure.

Programs and logs read the row as it is. A page finds its sentence among those below and says that
one with the same values; what is none of ours, as an error's own words, stays as it is."""

from __future__ import annotations

import re
from functools import cache

from django.utils.formats import get_format, number_format
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

# Why a job ended, or none begins
CANCELLED = gettext_noop("It was cancelled.")
UNWANTED = gettext_noop("Your settings say not to train on your chats.")
DIED = gettext_noop("It was started %(n)s times and its worker died each time.")
FAILED = gettext_noop("Training failed: %(why)s")
BROKE = gettext_noop("Training broke: %(why)s")
WENT_LIVE = gettext_noop("Version %(n)s went live.")
NOT_SERVED = gettext_noop("Version %(n)s could not be served: %(why)s")
# Why a version could not be served
DISAGREES = gettext_noop(
    "trainer and server disagree about it by %(value)s nats per token, more than %(limit)s"
)
FILES_GONE = gettext_noop("its files are gone")
UNREADABLE = gettext_noop("its weights cannot be read: %(why)s")
CHANGED = gettext_noop("its weights are not those that passed the gate")
NO_DIFFERENCE = gettext_noop("the server answers with it exactly as the base model does")
# What happened to a job
READY = gettext_noop("ratings ready: %(n)s")
ATTEMPT = gettext_noop("attempt %(n)s")
NOT_REACHED = gettext_noop("ratings that were not reached and count again: %(n)s")
UNHEARD = gettext_noop(
    "ratings that taught by their thumb alone, as the model does not hear which kind of request"
    " their words are about: %(n)s"
)
# Why training ended before its last step
LEARNED = gettext_noop(
    "after step %(n)s of %(of)s: it answers by now as if it had been told your wishes"
)
TIME_UP = gettext_noop("after step %(n)s of %(of)s: the time that a training has was up")
AS_ASKED = gettext_noop("after step %(n)s of %(of)s, as was asked for")
# What happened to a version
DEPLOYED_BY = gettext_noop("deployed by %(job)s")
PROMOTED = gettext_noop("promoted by hand")
ROLLED_BACK = gettext_noop("rolled back from version %(n)s")
REPLACED = gettext_noop("Its files were removed: newer versions replaced it.")
DELETED = gettext_noop("Its user deleted it.")
GOING_LIVE = gettext_noop("deploying")
# What a process is at
IDLE = gettext_noop("waits for work")
SWEPT = gettext_noop("has looked for what was left undone")
WRITES = gettext_noop("replies being written: %(n)s")
TRAINS = gettext_noop("training %(job)s")
LOADS = gettext_noop("loading the model")
READS_EXAMPLES = gettext_noop("reading examples of small talk, part %(n)s of %(of)s")
CANNOT_TRAIN = gettext_noop("cannot train: %(why)s")
READS = gettext_noop("reading what followed a reply")
# Why base answered in a version's place
NOT_THERE = gettext_noop("version %(n)s is not there any more")
OTHER_BASE = gettext_noop("the base model has changed since this version was trained")
NOT_LOADED = gettext_noop("version %(n)s could not be loaded")
# Why a reply ended early, or never came
SERVER_STOPPED = gettext_noop("The server was stopped while it wrote this reply.")
WRITER_DIED = gettext_noop(
    "The process that wrote this reply stopped. What it had written is kept."
)
OUR_FAULT = gettext_noop("Something broke on our side.")
NO_MODEL = gettext_noop(
    "The model server does not answer right now. Your message is saved: try again soon."
)
NOBODY_CAME = gettext_noop(
    "Nobody came to write this reply for %(n)s s. Your message is saved: try again."
)
TOO_LONG = gettext_noop("The conversation is longer than %(limit)s tokens.")
MESSAGE_TOO_LONG = gettext_noop(
    "This message is too long for the model, which takes about %(words)s words at once."
    " Edit your message to make it shorter."
)
NOT_KEPT = gettext_noop("The text of this message was not kept. Write it again.")
REFUSED = gettext_noop("The model server refused: %(why)s")
# Why a judge's score does not count
NOT_JUDGED = gettext_noop("It may not be judged any more.")
RATED_INSTEAD = gettext_noop("Your own rating counts instead.")
RATING_TAKEN_BACK = gettext_noop("You took your own rating back, so nothing is counted.")
RARELY_AGREES = gettext_noop("It agrees with your ratings too rarely to count.")
# What came of an export or import, and of lines of a file
EXPORTED = gettext_noop("Lines: %(n)s.")
IMPORTED = gettext_noop("New sessions: %(sessions)s, turns: %(turns)s, ratings: %(ratings)s.")
SCORES = gettext_noop("New scores of judges: %(n)s.")
KNOWN = gettext_noop("Here already: %(n)s.")
LEFT_OUT = gettext_noop("Lines left out: %(n)s.")
LINE = gettext_noop("line %(n)s: %(why)s")
MORE = gettext_noop("… and %(n)s more")
LINE_TOO_LONG = gettext_noop("it is longer than %(n)s MB")
LINE_TOO_DEEP = gettext_noop("it nests deeper than %(n)s")
NOT_JSON = gettext_noop("it is not JSON: %(why)s")
OTHER_FORMAT = gettext_noop("its version is not %(n)s, the one that is known here")
TRANSFER_BROKE = gettext_noop("It broke, and the log says more: %(why)s")
# What the gate says in other words than it once did
_NOT_JUDGED_CUT = gettext_noop(
    "%(value)s of its test replies do not come to an end: not judged, as its parent's"
    " hardly ever do"
)
_WHOLE = gettext_noop("nothing of what was learned had to be taken back")
_KEPT = gettext_noop("%(value)s of what was learned is kept: the whole of it led too far")
# What the gate says (training/gate.py and way_back.py, which know no languages)
_GATE = (
    gettext_noop("%(value)s of its test replies are empty (at most %(limit)s)"),
    gettext_noop("%(value)s of its test replies do not come to an end (at most %(limit)s)"),
    _NOT_JUDGED_CUT,
    gettext_noop("%(value)s of its test replies is repetition (at most %(limit)s)"),
    gettext_noop(
        "its test replies fit what was asked %(value)s as well as the base model's"
        " (at least %(limit)s)"
    ),
    gettext_noop("not measured: the base model's own test replies do not tell what was asked"),
    gettext_noop("its test replies are %(value)s tokens long (at least %(limit)s)"),
    gettext_noop(
        "not measured: needs %(liked)s liked and %(disliked)s disliked replies that were held back"
    ),
    gettext_noop(
        "replies you liked became more likely than replies you did not like"
        " (%(value)s, at least %(limit)s)"
    ),
    gettext_noop(
        "replies you liked became less likely than replies you did not like"
        " (%(value)s, at least %(limit)s)"
    ),
    gettext_noop(
        "on subjects you never rated it differs from the base model by %(value)s"
        " (at most %(limit)s, what your wishes explain)"
    ),
    _WHOLE,
    _KEPT,
)
_WITH_VALUES = (
    *(DIED, FAILED, BROKE, WENT_LIVE, NOT_SERVED, DISAGREES, READY, ATTEMPT, NOT_REACHED),
    *(UNHEARD, LEARNED, TIME_UP, AS_ASKED, WRITES, TRAINS, CANNOT_TRAIN, READS_EXAMPLES),
    *(UNREADABLE, DEPLOYED_BY, ROLLED_BACK, NOT_THERE, NOT_LOADED, NOBODY_CAME, TOO_LONG, REFUSED),
    MESSAGE_TOO_LONG,
    *(EXPORTED, IMPORTED, SCORES, KNOWN, LEFT_OUT, LINE, MORE),
    *(LINE_TOO_LONG, LINE_TOO_DEEP, NOT_JSON, OTHER_FORMAT, TRANSFER_BROKE),
    *_GATE,
)


def said(text: str) -> str:
    """The row's sentence in the reader's language, its values as they are; where it holds several
    (all tests that a version failed, what came of a file) each of them."""
    if (one := _known(text)) is not None:
        return one
    for end, joint in ((r"\)", "; "), (r"\.", " ")):
        several = [_known(part) for part in re.split(rf"(?<={end}) ", text)]
        if len(several) > 1 and None not in several:
            return joint.join(filter(None, several))
    return _(text) if text else ""


def gets_ready(doing: str) -> bool:
    """Whether who is at this will take work only when it is done."""
    return doing == LOADS or _pattern(READS_EXAMPLES).fullmatch(doing) is not None


def written(number: str) -> str:
    """With the decimal sign of the reader's language, and a space before "%" where it has one."""
    number = number.replace(".", get_format("DECIMAL_SEPARATOR"))
    return _("%(n)s%%") % {"n": number[:-1]} if number.endswith("%") else number


def counted(number: float) -> str:
    """As a whole number, its thousands apart as the reader's language has them."""
    return number_format(round(number), use_l10n=True, force_grouping=True)


def _known(text: str) -> str | None:
    for sentence, pattern in _patterns():
        if found := pattern.fullmatch(text):
            values = found.groupdict()
            if "why" in values:
                values["why"] = said(values["why"])
            for name in values.keys() & {"value", "limit"}:
                values[name] = written(values[name])
            return _(sentence) % values
    return None


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    known = [(sentence, _pattern(sentence)) for sentence in _WITH_VALUES if "%(" in sentence]
    return (*known, *((now, _pattern(before)) for before, now in _worded_before().items()))


def _worded_before() -> dict[str, str]:
    """What older rows say, and what says it today."""
    return {
        "Version %(n)s answers now.": WENT_LIVE,  # wrong after a rollback
        _NOT_JUDGED_CUT.replace("not judged", "not measured"): _NOT_JUDGED_CUT,
        "it goes the whole way that training went": _WHOLE,
        "it goes %(value)s of the way from the base model that training had gone: the whole"
        " way led too far": _KEPT,
    }


def _pattern(sentence: str) -> re.Pattern[str]:
    parts = re.split(r"%\((\w+)\)s", sentence)
    written = [
        # Every second one is a value's name; only an error's words have more than one word
        (f"(?P<{part}>.+)" if part == "why" else rf"(?P<{part}>[^\s()]+)")
        if i % 2
        else re.escape(part)
        for i, part in enumerate(parts)
    ]
    return re.compile("".join(written), re.DOTALL)
