"""What somebody says, clause by clause: what it is about, and whether that is wanted or not.

"Don't use bullet points", "too many bullets" and "stop using bullet points, please" say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

# Words that say nothing by themselves of what is asked for.
_FILLERS = """
please just a an the bit lot much far way really always next time i i'd like want
would prefer it this that be answer answers reply replies response responses your you me my give
make write keep them they then also ok okay
bitte etwas ein eine einen bisschen noch viel immer mal doch das die der deine dein antwort
antworten ich hätte gern gerne will möchte es sie mir gib mach schreib dann auch
pls plz thanks thx danke
"""
FILLERS = frozenset(_FILLERS.split())
# These say what a reply was, "it was brief", and no wish; but where something was too much.
BEING = frozenset({"was", "were", "is", "are", "it's", "that's", "you're", "ist", "sind", "war"})
TOO = frozenset({"too", "zu", "enough"})
# Alone between two signs they say nothing either.
ALONE = frozenset({"no", "nope", "nein", "yes", "yeah", "ja", "well", "sorry", "hmm", "hey"})

# What turns a wish into its opposite, and what wishes are put with. Each has a longer way.
_NO = """
no not never don't stop quit avoid without skip drop less fewer hate dislike weg
kein keine keinen keiner nicht nie ohne weniger lass hör
"""
_WISHING = """
use using add adding include including put putting show showing say saying tell telling mention
mentioning writing giving making answering speak speaking talk need love enjoy appreciate more some
any try rather could can should must shall
nutze verwende benutze füge nimm sag erwähne nenne zeig brauche mehr einige könntest kannst soll
sollte
"""
_BETWEEN = """
in with as of by at to into on every each everything all being
tone manner register style needed necessary straight
mit im als auf den dem einfach
"""
NO = frozenset(_NO.split())
BARE = frozenset({"no", "not", "nicht", "kein", "keine", "keinen", "keiner"})
SO = frozenset({"so", "very", "such", "sehr"})  # "so formal" complains; "not so formal" asks
BEGGING = frozenset({"please", "pls", "plz", "bitte"})
WISHING = frozenset(_WISHING.split())
EMPTY = FILLERS | NO | WISHING | frozenset(_BETWEEN.split())
_PRAISE = r"\bi (?:really )?(?:like|love|prefer) it when you\b"  # the "when" of no sort of request
# In this order: "too few" before "a few", "not too many" before "too many". The ways of saying a
# pole go through them as well.
_LONGER_WAYS = tuple(
    (re.compile(pattern), shorter)
    for pattern, shorter in (
        (r"^\s*(?:way )?to (?=(?:short|long|formal|casual)\b)", "too "),
        (r"\ba (?:bit|little) (?=(?:short|brief|long|formal|stiff|dry|casual)\s*$)", "too "),
        (r"\betwas (?=(?:kurz|knapp|lang|förmlich|steif|trocken)\s*$)", "zu "),
        (r"\blisten to\b|\b(?:you|don't|never|please|just) listen\b", "attend"),
        (r"\b(?:ein|einen|den|der|dem|kein) brief\b", "letter"),
        (r"\b(?:not|don't|do not|nicht) (?:just|only|bloß|nur)\b", "don't merely"),
        (r"\banswer(?:ed|ing)? (?:my|the|this|that) question\b", "attend"),
        (r"\b(?:instead of|rather than|anstatt|statt)\b[^,]*", ""),
        (_PRAISE + r"|\bi'd rather have\b", "more"),
        (r"\byou (?:never|(?:don't|do not)(?! (?:need|have)\b))|\bwhere (?:is|are)\b", "more"),
        (r"\bnot too (?:many|much)\b", "less"),
        (r"\byou (?:always|keep)\b|\b(?:is|are) not for me\b|\bmeans? nothing to me\b", "less"),
        (r"^\s*(?!do\b)(\S+) not (?!\w*(?:ed|ful|ing|ary|able|good|true)\b)\S+\s*$", r"\1"),
        (r"\b(?:do|need|must) not\b|\bdont\b|\bno need (?:to|for)\b|\bneedn't\b", "don't"),
        (r"\bdon't (?:(?:want|like|need)(?: to)?|have to)\b|\bspare me\b", "don't"),
        (r"\bno (?:longer|more)\b", "don't"),
        (r"\b(?:leave|take) (?:the |your |all )*(\w+) (?:out|off)\b", r"skip \1"),
        (r"\b(?:leave|take) (?:out|off)\b|\benough (?:with|of)\b|\btoo (?:many|much)\b", "less"),
        (r"(?<!too )\bfew words\b", "fewer words"),
        (r"(?<!too )\b(?:a few|ein paar)\b", "some"),
        (r"\bnot enough\b|\btoo (?:few|little)\b|\bnicht genug\b|\bzu wenige?\b", "more"),
        (r"\blass\b(.*)\bweg\b", r"\1 weg"),
        (r"\bzu viele?\b|\b(?:schluss|weg) mit\b|\bauf keinen fall\b", "weniger"),
        (r"\bwould (?:be|have been) (?:nice|good|great|better|fine)\b|\bwould help\b", "more"),
        (r"\bwould have helped\b|\bwären? (?:schön|gut|nett)\b|\bhätte geholfen\b", "mehr"),
        (r"\b(?:convert|switch|change)(?: it| them| everything)*(?: to| into)\b", "use"),
        (r"\bfrom now on\b|\bin (?:the )?future\b|\bab jetzt\b|\bin zukunft\b", ""),
        (r"\bevery (?:single )?time\b|\bjedes mal\b", ""),
        (r"\bor two\b|\b(?:here|now) and the(?:re|n)\b|\bgoing forward\b", ""),
        (r"\bfor me\b|\bfür mich\b|\bto me\b", ""),
        (r"\bam (ende|schluss|anfang)\b", r"\1"),
        (r"\banswer(?= (?:first|last|up front|at the)\b)", "conclusion"),
        (r"\b(with|mit) (?:the|your|der) (?:answer|antwort)\b", r"\1 conclusion"),
        (r"\b(?:begin|open|lead|beginning|opening|starting|beginne?|starte)\b", "start"),
        (r"\b(?:finish|close|finishing|closing|ending|sign off)\b", "end"),
    )
)
# A wish for one sort of request contradicts none for the others; nor does one for both poles.
_SCOPED = re.compile(
    r"\b(?:when|if|unless|except|where(?! is| are)|wenn|falls|außer|sofern|sobald)\b"
    r"|^\s*(?:for|in|at|on|during|bei|beim|für)\b[^,]*,\s*(?!not\b|nicht\b|please\b|bitte\b)\w"
    r"|\b(?:both|either|nothing but|beides|nichts als)\b"
    r"|\bonly (?:for|in|at|on)\b|\bnur (?:bei|für|in)\b|\b(?:for|in|bei|für) \w+ (?:only|nur)\b"
)
# What tells of a reply, or of words that somebody else said, asks for nothing by itself.
_TELLS = re.compile(
    r"(?<!\bi )\b(?:says|said|wrote|called|named|titled?)\b"
    r"|\d[^.]*, (?:not|nicht)\b"
    r"|^\s*you (?:use|write|give|make|answer|reply|speak|talk|tell|ask|greet|praise|say)\b"
    r"(?!.*\b(?:too|so)\b)"
)
_ASKS_FOR = re.compile(
    r"^\s*(?:(?:can|could|would|will|kannst|könntest|würdest) (?:you|du)|where (?:is|are))\b"
)
_ASKS = re.compile(
    r"\s*(?:(?:should|shall|must|may|do|does|did|soll|darf) (?:i|we|ich|wir)"
    r"|how|why|what|who|which|wie|warum|wieso|was|wer|welche[rs]?)\b"
)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n]*")
_CLAUSE = re.compile(r"[.,;:!?()\n]+|\band\b|\bund\b|\bbut\b|\baber\b")
_WORD = re.compile(r"\w+(?:'\w+)?|[€$£]")


class Manner(Enum):
    """How a clause puts it."""

    ASKS = "says by a word of its own that it is, or is not, wanted"
    PLAIN = "names it"
    DENIES = "says that something is not: the reply, or what should be"  # "not formal", "no tables"


@dataclass(frozen=True, slots=True)
class Clause:
    """`subject`: the words that say something, but for the no and what wishes are put with, each
    without its ending; empty where no wish is read. `is_too_much`: there was too much of it."""

    subject: tuple[str, ...]
    is_wanted: bool
    manner: Manner
    is_too_much: bool


def clauses(text: str) -> list[Clause]:
    """Those that say anything, in their order."""
    found = []
    for sentence in _SENTENCE.findall(text.casefold().replace("’", "'")):
        is_question = "?" in sentence and not _ASKS_FOR.search(sentence)
        is_scoped = _SCOPED.search(re.sub(_PRAISE, "", sentence))
        is_wish = not (is_question or is_scoped or _TELLS.search(sentence))
        parts = [part for part in _CLAUSE.split(sentence) if not ALONE.issuperset(_telling(part))]
        begs = not BEGGING.isdisjoint(_WORD.findall(sentence))
        found += [_read(part, is_wish, begs or part is not parts[0]) for part in parts]
    return found


def _telling(part: str) -> list[str]:
    """Its words, without those that say nothing."""
    words = _WORD.findall(part)
    empty = FILLERS if TOO.isdisjoint(words) else FILLERS | BEING
    return [word for word in words if word not in empty]


def _read(part: str, is_wish: bool, begs: bool) -> Clause:
    for pattern, shorter in _LONGER_WAYS:
        part = pattern.sub(f" {shorter} ", part)
    said = _WORD.findall(part)
    telling = _telling(part)
    is_wanted = sum(word in NO for word in said) % 2 == 0
    empty = EMPTY if is_wanted and not begs else EMPTY | SO
    told = [word for word in telling if word not in empty]
    if not told and len(telling) > 1:
        told = telling  # "say more"
    is_wish &= BEING.isdisjoint(told) and not _ASKS.match(part)
    return Clause(
        subject=tuple(map(_stem, told)) if is_wish else (),
        is_wanted=is_wanted,
        manner=_manner(set(said), begs),
        is_too_much=not TOO.isdisjoint(told),
    )


def _manner(said: set[str], begs: bool) -> Manner:
    """A bare "not" or "no" asks where somebody begs for it, where it is "not so", or where it goes
    on from something: "metres, not feet"."""
    if not begs and "so" not in said and (nos := said & NO) and nos <= BARE:
        return Manner.DENIES
    return Manner.PLAIN if said.isdisjoint(NO | WISHING) else Manner.ASKS


def _stem(word: str) -> str:
    """Without its plural, "ing" and last e: "joking" and "jokes" are of one kind."""
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
