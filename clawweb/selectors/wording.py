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
already again even slightly significantly quite super respond we here for of at least
bitte etwas ein eine einen bisschen noch viel immer mal doch das die der deine dein antwort
antworten ich hätte gern gerne will möchte es sie mir gib mach schreib dann auch
schon bereits ruhig lieber eher deutlich wenigstens wir hier
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
cut lose remove ditch zero verzichte
kein keine keinen keiner nicht nie ohne weniger lass hör
"""
_WISHING = """
use using add adding include including put putting show showing say saying tell telling mention
mentioning writing giving making answering speak speaking talk need love enjoy appreciate more some
any try rather could can should must shall provide state quote offer throw sprinkle needs
nutze verwende benutze füge nimm sag erwähne nenne zeig brauche mehr einige könntest kannst soll
sollte sagen verwenden benutzen nutzen schreiben reden sprechen füge
"""
_BETWEEN = """
in with as of by at to into on every each everything all being
tone manner register style needed necessary straight
go stay stick continue come comes belongs belong form format
mit im als auf den dem einfach ton stil zur zum sein muss musst form
"""
NO = frozenset(_NO.split())
BARE = frozenset({"no", "not", "nicht", "kein", "keine", "keinen", "keiner"})
SO = frozenset({"so", "very", "such", "sehr"})  # "so formal" complains; "not so formal" asks
BEGGING = frozenset({"please", "pls", "plz", "bitte"})
WISHING = frozenset(_WISHING.split())
EMPTY = FILLERS | NO | WISHING | frozenset(_BETWEEN.split())
_WORD = re.compile(r"\w+(?:'\w+)?|[€$£]")
_Ways = list[tuple[frozenset[str], re.Pattern[str], str]]


def _table(*ways: tuple[str, str, str]) -> _Ways:
    return [(frozenset(any_of.split()), re.compile(said), f" {to} ") for any_of, said, to in ways]


# fmt: off
# What is said at length, and how shorter: words of which it holds one, lest each be looked for in
# everything; the pattern; what it comes to. First what goes beyond a clause or holds an "and".
_WHOLE_WAYS = _table(
    ("dont doesnt didnt isnt arent wasnt cant couldnt wouldnt shouldnt wont",
     r"\b(do|does|did|is|are|was|ca|could|would|should|wo)nt\b", r"\1n't"),
    ("s'il svp favor favore",
     r"\bs'il (?:te|vous) pla[iî]t\b|\bpor favor\b|\bper favore\b|\bsvp\b", "please"),
    ("tl", r"\btl;dr\b", "tldr"),
    ("then there while", r"\b(?:now|here) and (?:then|there)\b|\bonce in a while\b", ""),
    ("on", r"\bon and on\b", "endlessly"),
    ("sweet bündig", r"\b(?:short and sweet|kurz und bündig)\b", "short"),
    ("pm", r"\bam (?:and|und) pm\b", "am pm"),
    ("not nicht instead rather statt",
     r"\b(?:it's |use |write )?-?(\w*?)(?:our|is[ei]|re|ey)(\w*),? (?:not|instead of|rather than"
     r"|nicht|statt) -?\1(?:or|iz[ei]|er|ay)\2\b", "british english"),
    ("not nicht instead rather statt",
     r"\b(?:it's |use |write )?-?(\w*?)(?:or|iz[ei]|er|ay)(\w*),? (?:not|instead of|rather than"
     r"|nicht|statt) -?\1(?:our|is[ei]|re|ey)\2\b", "american english"),
    ("and or", r"\b(no|without|using|avoid|less|fewer|the) (\w+s|feet) (?:and|or) (\w+s)"
     r"(?=\s*(?:[.,!]|$|please))", r"\1 \2, \1 \3"),
    ("if", r"\bit if you(?: could| would)?\b", "more"),  # "I'd like it if you …"
    ("if when whenever wenn",
     r"\b(?:if|when|whenever) (?:you(?:'re| are| do|'ve)?|something is|it is)"
     r"(?: not|n't| are| un)? ?(?:know|sure|certain|unsure|uncertain|guessing|in doubt)\b"
     r"|\bwenn du (?:\w+ )?(?:unsicher bist|nicht (?:sicher bist|weißt)|etwas nicht weißt)\b",
     "uncertainty"),
)
_PRAISE = r"\bi (?:really )?(?:like|love|prefer) it when you\b"  # the "when" of no sort of request
# In this order: "too few" before "a few", "not too many" before "too many". The ways of saying a
# pole go through them as well.
_LONGER_WAYS = _table(
    ("to", r"^\s*(?:way )?to (?=(?:short|long|formal|casual)\b)", "too "),
    ("bit little tad rather pretty kinda kind sort somewhat",
     r"\b(?:a (?:bit|little|tad)|rather|pretty|kinda|(?:kind|sort) of|somewhat)"
     r" (?=(?:short|brief|long|formal|stiff|dry|casual|thin|vague|wordy|lengthy|technical"
     r"|complicated|complex|abstract|harsh|serious|terse|basic|superficial)\s*$)", "too "),
    ("little touch dash", r"\ba (?:little|touch of|dash of)\b", ""),
    ("etwas recht ziemlich",
     r"\b(?:etwas|recht|ziemlich) (?=(?:kurz|knapp|lang|förmlich|steif|trocken|vage|dünn"
     r"|technisch|kompliziert|abstrakt|schwammig|oberflächlich)\s*$)", "zu "),
    ("sounds reads feels seems klingt wirkt klingst wirkst sound seem come act",
     r"\b(?:(?:sounds|reads|feels|seems|klingt|wirkt|klingst|wirkst)"
     r"|you (?:sound|seem|come across|act))(?: a (?:bit|little)| so| too| very| rather| etwas| sehr"
     r"| zu)? (?!like|as\b|wie\b|more|less|mehr)", "too "),
    ("so such too zu",
     r"^\s*(?:it's|that's|you're|(?:it|this|that|you|your answers?|das) (?:is|are|was|were|ist"
     r"|war))"
     r" (?=so\b|such\b|zu\b|too\b)", ""),
    ("too", r"\b(too \w+) for (?:my (?:taste|liking)|work|this|that"
     r"|(?:such )?an? (?:simple|easy|quick|short)\b.*)", r"\1"),
    ("possible can möglich",
     r"\bas (\w+) as (?:possible|you can)\b|\bso (\w+) wie möglich\b", r"\1\2"),
    ("one version", r"\b(?:a|an|eine?) (\w+er) (?:one|version)\b", r"\1"),
    ("geht geht's", r"^\s*(?:geht (?:das|es)|geht's)(?: nicht)?\b", ""),
    ("more less mehr weniger",
     r"\b(?:write|talk|schreibe?) (more|less|mehr|weniger)\s*$", r"say \1"),
    ("listen", r"\blisten to\b|\b(?:you|don't|never|please|just) listen\b", "attend"),
    ("brief", r"\b(?:ein|einen|den|der|dem|kein) brief\b", "letter"),
    ("just only bloß nur",
     r"\b(?:not|don't|do not|nicht) (?:just|only|bloß|nur)\b", "don't merely"),
    ("away immediately once front upfront sofort zuerst anfang top beginning start vorn vorne oben",
     r"\b(?:right|straight) away\b|\bimmediately\b|\bat once\b|\bup ?front\b|\bsofort\b"
     r"|\bzuerst\b|\bam anfang\b|\b(?:at|to|in) the (?:very )?(?:top|beginning|start)\b"
     r"|\ban den anfang\b|\b(?:nach|ganz) (?:vorne?|oben)\b", "firstly"),
    ("first erst erstmal",
     r"\bfirst\s*(?:please|pls|bitte)?\s*$"
     r"|^\s*(?:please |bitte )?(?:first|erst(?:mal)?|erst mal)\b(?! \w+\s*$)", "firstly"),
    ("with mit",
     r"\b(?:starte?|beginn?e?|beginning|open|lead|opening|starting)(?: off| out)? (?:with|mit)\b",
     "firstly"),
    ("end bottom ende schluss unten last zuletzt",
     r"\b(?:at|to|for|until|till) the (?:very )?(?:end|bottom)\b|\bzuletzt\b|\bnach unten\b"
     r"|\b(?:am|zum|ans) (?:ende|schluss)\b|\blast\s*(?:please|pls|bitte)?\s*$", "lastly"),
    ("with mit on",
     r"\b(?:wrap (?:it )?up|ende?|conclude|finish|close|sign off|ending|closing|finishing)(?: it)?"
     r" (?:with|mit|on)\b", "lastly"),
    ("fang fange", r"\bfange?\b(.*)\ban\b", r"firstly \1"),
    ("answer antwort",
     r"\b(?:answer|antwort)(?=(?: \w+)? ?(?:\w+ )?(?:firstly|lastly)\b)", "conclusion"),
    ("answer antwort",
     r"\b(firstly|lastly) (?:(?:the|die|your|deine) )?(?:answer|antwort)\b", r"\1 conclusion"),
    ("question", r"\banswer(?:ed|ing)? (?:my|the|this|that) question\b", "attend"),
    ("instead rather anstatt statt",
     r"\b(?:instead of|rather than|anstatt|statt)\b[^,]*", ""),
    ("when i'd", _PRAISE + r"|\bi'd rather have\b", "more"),
    ("never don't do where",
     r"\byou (?:never|(?:don't|do not)(?! (?:need|have)\b))|\bwhere (?:is|are)\b", "more"),
    ("too", r"\bnot too (?:many|much)\b", "less"),
    ("miss missing lack lacks lacking fehlt fehlen why warum",
     r"\b(?:i miss|i'm missing|missing|lacks?|lacking|(?:mir |es )?fehl(?:t|en))\b"
     r"|^\s*(?:why|warum) (?:no|keine?n?|are there no|is there no)\b", "more"),
    ("use mean sagt sagen anfangen help confuse confuses verwirrt verwirren",
     r"\b(?:no|not any|keine?) (?:use|help) to (?:me|us)\b|\bmean nothing to (?:me|us)\b"
     r"|\bsag(?:t|en) mir nichts\b|\bkann ich nichts anfangen\b|\b(?:don't|doesn't) help\b"
     r"|\bconfuses? me\b|\bverwirr(?:t|en) mich\b", "less"),
    ("i ich", r"\bi (?:can't|cannot|don't|do not) (?:do anything with|relate to|know|understand|get"
     r"|use|read|speak|work with|think in)(?! (?:the|this|that|your|it|what|why|how|an?)\b)"
     r"|\bich (?:kann|verstehe|kenne|spreche) (?:kein\w*|nicht)\b", "don't"),
    ("i we rechne", r"\b(?:i|we) (?:only )?(?:think|measure|cook|calculate|pay) in\b"
     r"|\bi(?:'m| am) (?:more )?used to\b|\brechne(?: \w+)? in (?=\w+ um)", "use"),
    ("into in as to",
     r"\b(?:turn|make|break|split|put|chop|format|present|structure|write|lay|organi[sz]e)"
     r"(?: (?:it|this|that|them|everything|all|things?|your|the|answers?|up|out|down|text|stuff))+"
     r" (?:into|in|as|to(?! the point))\b", "use"),
    ("in im with mit",
     r"\b(?:distances?|temp(?:erature)?s?|weights?|lengths?|sizes?|heights?|quantities|prices?"
     r"|measurements?|costs?|amounts?|times?|entfernungen|temperaturen|gewichte|mengen"
     r"|preise?|beträge|kosten|uhrzeiten|zeiten)(?= (?:in|im|with|mit)\b)", ""),
    ("is are ist sind nerven nervt stört stören annoy annoys overload overkill",
     r"^\s*(?:(?:the|these|those|this|your|all|die|diese|deine|das|der) )*(\b.+?)"
     r" (?:(?:is|are|ist|sind)(?: \w+)? (?:annoying|distracting|irritating|unnecessary|childish"
     r"|silly|cringe|unprofessional|superfluous|overkill|nervig|unnötig|überflüssig|störend"
     r"|kindisch|albern)|nerven|nervt|stört|stören|annoys? me|overload|overkill)\b.*", r"skip \1"),
    ("what's whats what why enough rid back down spar spare save",
     r"\b(?:what's|whats|what is|what's up) with (?:all )?the\b|\bwhy all the\b"
     r"|^\s*enough (?=\w+s\b)|\bget rid of\b|\bcut (?:down|back) on\b"
     r"|\bspare? dir\b|\bsave (?=.*s\s*$)", "skip"),
    ("sparen ersparen yourself",
     r"^\s*(.+) (?:kannst|könntest) du (?:dir|mir) (?:er)?sparen\b|^\s*keep (.+) to yourself",
     r"skip \1\2"),
    ("nicht", r"\bnicht (?:immer|ständig|dauernd|schon wieder|mehr)\b", "nie"),
    ("so", r"\b(?:not|don't|nicht)\b(.*)\bso (?:many|much|viele?)\b", r"less \1 "),
    ("no kein keine keinen",
     r"\b(?:want|need|brauche|will|möchte|mag) (?:no|kein(?:e|en)?)\b", "don't"),
    ("enough reicht", r"\b(?:is|are|was|were) (?:just |simply )?not enough\b|\breicht nicht\b",
     "insufficient"),
    ("enough plenty suffices do done reicht genügt gereicht",
     r"\b(?:would (?:be|have been)|would've been|is|are) (?:enough|plenty)\b|\bsuffices\b"
     r"|\bwould (?:do|have done)\b|\breicht(?: mir)?\b|\bgenügt\b|\bhätte (?:gereicht|genügt)\b",
     "suffices"),
    ("always keep not means",
     r"(?<!can )(?<!could )\byou (?:always|keep)\b|\b(?:is|are) not for me\b"
     r"|\bmeans? nothing to me\b", "less"),
    ("not", r"^\s*((?:(?:i (?:want|need|prefer)|use|give me|in|as|please) )*(?:an? )?"
     r"(?!(?:do|does|is|was|are|could|would|should|can|can't|must|may|it|you|i|this|that)\b)\S+)"
     r" not (?:in |as |an? )?(?!\w*(?:ed|ful|ing|ary|able|good|true)\b)\S+\s*$", r"\1"),
    ("not no needn't", r"\b(?:do|need|must) not\b|\bno need (?:to|for)\b|\bneedn't\b", "don't"),
    ("don't spare", r"\bdon't (?:(?:want|like|need)(?: to)?|have to)\b|\bspare me\b", "don't"),
    ("no", r"\bno (?:longer|more)\b", "don't"),
    ("out off", r"\b(?:leave|take) (?:the |your |all )*(\w+) (?:out|off)\b", r"skip \1"),
    ("out off enough too",
     r"\b(?:leave|take) (?:out|off)\b|\benough (?:with|of)\b|\btoo (?:many|much)\b", "less"),
    ("words", r"(?<!too )\bfew words\b", "fewer words"),
    ("few couple paar", r"(?<!too )\b(?:a few|a couple(?: of)?|ein paar)\b", "some"),
    ("enough too genug zu",
     r"\bnot enough\b|\btoo (?:few|little)\b|\bnicht genug\b|\bzu wenige?\b", "more"),
    ("lass", r"\blass\b(.*)\bweg\b", r"\1 weg"),
    ("zu mit fall", r"\bzu viele?\b|\b(?:schluss|weg) mit\b|\bauf keinen fall\b", "weniger"),
    ("would wouldn't couldn't schaden",
     r"\bwould (?:be|have been) (?:much )?(?:nicer?|good|great|better|fine|easier|clearer|useful"
     r"|helpful|cool|lovely)(?: to (?:read|follow|have|understand))?\b|\bwould help\b"
     r"|\b(?:wouldn't|couldn't) hurt\b|\bkönnten? nicht schaden\b", "more"),
    ("would hätte hätten wär wäre wären",
     r"\bwould have helped\b|\bwären? (?:schön|gut|nett|besser|toll|hilfreich|übersichtlicher"
     r"|klarer|prima)\b|\bhätten? geholfen\b", "mehr"),
    ("is are ist sind",
     r"^\s*(?!(?:the|this|that|your|it|das|die|der)\b)(.+) (?:is|are|ist|sind) (?:much )?"
     r"(?:better|easier|clearer|nicer|besser|übersichtlicher|klarer|schöner)\b"
     r"(?: to (?:read|scan|follow|understand)| zu lesen)?", r"use \1"),
    ("to into",
     r"\b(?:convert|switch|change)(?: back| it| them| everything| the| all| prices"
     r"| amounts| units| temperatures| distances)*(?: to| into)\b", "use"),
    ("sentence sentences line lines satz sätzen zeilen words wörter cut",
     r"\b(?:in|with|to|mit|auf) (?:just |only |nur |max )?(?:one|two|three|four|a few|ein|einem"
     r"|einen|zwei|drei|\d)(?: (?:or|to|oder|bis) \w+)? (?:short )?(?:sentences?|lines?|satz"
     r"|sätzen|zeilen)\b|\b(?:max(?:imum|imal)?|at most|no more than|under|less than|up to"
     r"|höchstens)(?: of)? \w+ (?:words|sentences|lines|wörter|sätze|zeilen)\b"
     r"|\bcut (?:it|this|that)(?: down| short)?\b", "shorter"),
    ("from auswahl", r"\bto (?:choose|pick|select) from\b|\bzur auswahl\b", ""),
    ("straight", r"\bstraight (?=answer\b)", "definite "),
    ("on future jetzt zukunft time mal or there forward",
     r"\bfrom now on\b|\bin (?:the )?future\b|\bab jetzt\b|\bin zukunft\b"
     r"|\bevery (?:single )?time\b|\bjedes mal\b|\bor two\b|\bgoing forward\b", ""),
    ("me mich", r"\bfor me\b|\bfür mich\b|\bto me\b", ""),
)
# fmt: on
# A wish for one sort of request contradicts none for the others; nor does one for both poles.
_SCOPED = re.compile(
    r"\b(?:when|if|unless|except|where(?! is| are)|wenn|falls|außer|sofern|sobald)\b"
    r"|^\s*(?:for|in|at|on|during|bei|beim|für)\b[^,]*,\s*(?!not\b|nicht\b|please\b|bitte\b)\w"
    r"|\b(?:both|either|nothing but|beides|nichts als|mix(?:ed|ture)?)\b"
    r"|\bonly (?:for|in|at|on)\b|\bnur (?:bei|für|in)\b|\b(?:for|in|bei|für) \w+ (?:only|nur)\b"
)
# What tells of a reply, or of words that somebody else said, asks for nothing by itself.
_TELLS = re.compile(
    r"(?<!\bi )\b(?:says|said|wrote|called|named|titled?|sagte?|meinte?|schrieb)\b"
    r"|\bi (?:really )?(?:like|love)d? (?:the|your) \w+\s*$|, well done"
    r"|\b(?:thanks|danke) (?:for|für)\b"
    r"|^\s*(?:very )?(?:nice|clear|good|great|lovely) and\b(?!.*(?:please|next))"
    r"|\d[^.]*, (?:not|nicht)\b"
    r"|^\s*you (?:use|write|give|make|answer|reply|speak|talk|tell|ask|greet|praise|say)\b"
    r"(?!.*\b(?:too|so)\b)"
)
_ASKS_FOR = re.compile(
    r"^\s*(?:(?:can|could|would|will|can't|couldn't|kannst|könntest|würdest) (?:you|du|i have)"
    r"|where (?:is|are)|geht(?:'s| das| es)|(?:what's|what is) with|(?:why|warum) (?:no|kein|all))"
    r"|^\s*(?:any )?(?:sources?|links?|references?|examples?|quellen?|belege?|beispiele?)\s*\?"
)
_ASKS = re.compile(
    r"\s*(?:(?:should|shall|must|may|do|does|did|soll|darf) (?:i|we|ich|wir)"
    r"|how|why|what|who|which|wie|warum|wieso|was|wer|welche[rs]?)\b"
)
_SENTENCE = re.compile(r"[^.!?\n]+[.!?\n]*")
_CLAUSE = re.compile(
    r"[.,;:!?()\n]+|\s[-–—]+\s|\b(?:and|und|but|aber|then|dann|sondern|because|weil|denn)\b"
    r"|\bso (?=use\b|please\b|give\b|write\b|keep\b|answer\b|no\b|don't\b|prices\b)"
)
_URGES = re.compile(  # nobody complains by these: "frag nicht immer", "nicht mit einer Frage enden"
    r"^\s*(?:sei|fra[gk]e?|lobe?|begrüße?|grüße?|duze?|sieze?|schleime?|schreibe?|sprich|rede?|nutze?"
    r"|verwende?|stelle?|erkläre?|antworte?)\b|\b(?:sagen|fragen|stellen|enden|verwenden|benutzen"
    r"|nutzen|schreiben|erklären|loben|begrüßen)\s*$"
)


class Manner(Enum):
    """How a clause puts it."""

    ASKS = "says by a word of its own that it is, or is not, wanted"
    BEGS = "names it with a please"
    PLAIN = "names it"
    TELLS = "says what the reply was"  # "that was a novel"
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
    text = _shortened(text.casefold().replace("’", "'"), _WHOLE_WAYS)
    for sentence in _SENTENCE.findall(text):
        is_question = "?" in sentence and not _ASKS_FOR.search(sentence)
        is_scoped = _SCOPED.search(re.sub(_PRAISE, "", sentence))
        is_wish = not (is_question or is_scoped or _TELLS.search(sentence))
        parts = [part for part in _CLAUSE.split(sentence) if not ALONE.issuperset(_telling(part))]
        begs = not BEGGING.isdisjoint(_WORD.findall(sentence))
        found += [_read(part, is_wish, begs or part is not parts[0]) for part in parts]
    return found


def _shortened(text: str, ways: _Ways) -> str:
    words = set(_WORD.findall(text))
    for triggers, pattern, shorter in ways:
        if not triggers.isdisjoint(words):
            text, changes = pattern.subn(shorter, text)
            if changes:
                text = text.replace("  ", " ")
                words = set(_WORD.findall(text))
    return text


def _telling(part: str) -> list[str]:
    """Its words, without those that say nothing."""
    words = _WORD.findall(part)
    empty = FILLERS if TOO.isdisjoint(words) else FILLERS | BEING
    return [word for word in words if word not in empty]


def _read(part: str, is_wish: bool, begs: bool) -> Clause:
    part = _shortened(part, _LONGER_WAYS)
    said = _WORD.findall(part)
    telling = _telling(part)
    is_wanted = sum(word in NO for word in said) % 2 == 0
    begs = begs or _URGES.search(part) is not None
    empty = EMPTY if is_wanted and not begs else EMPTY | SO
    told = [word for word in telling if word not in empty]
    if not told and len(telling) > 1:
        told = telling  # "say more"
    is_wish &= not _ASKS.match(part)
    tells = not BEING.isdisjoint(told)
    told = [word for word in told if word not in BEING]
    return Clause(
        subject=tuple(map(_stem, told)) if is_wish else (),
        is_wanted=is_wanted,
        manner=Manner.TELLS if tells else _manner(set(said), begs),
        is_too_much=not TOO.isdisjoint(told),
    )


def _manner(said: set[str], begs: bool) -> Manner:
    """A bare "not" or "no" asks where somebody begs for it, where it is "not so", or where it goes
    on from something: "metres, not feet"."""
    if not begs and "so" not in said and (nos := said & NO) and nos <= BARE:
        return Manner.DENIES
    if not said.isdisjoint(NO | WISHING):
        return Manner.ASKS
    return Manner.PLAIN if said.isdisjoint(BEGGING) else Manner.BEGS


def _stem(word: str) -> str:
    """Without its plural, "ing" and last e: "joking" and "jokes" are of one kind."""
    if len(word) > 3 and word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
