"""Ways of asking for a pole that stand in no list word for word: what people type under a reply."""

from __future__ import annotations

import pytest

from clawweb.models import FeedbackReason
from clawweb.selectors.poles import Axes

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("text", "axis", "pole"),
    [
        ("that was a novel", "length", "short"),
        ("that answer goes on and on", "length", "short"),
        ("please go into more depth", "length", "long"),
        ("too superficial", "length", "long"),
        ("present it in bullet form", "layout", "list"),
        ("please format as a list", "layout", "list"),
        ("lose the bullets", "layout", "prose"),
        ("enough with the bullets already", "layout", "prose"),
        ("too chummy", "tone", "formal"),
        ("don't call me buddy", "tone", "formal"),
        ("can you be less uptight", "tone", "casual"),
        ("you don't have to be so polite", "tone", "casual"),
        ("ich verstehe nur Bahnhof", "level", "simple"),
        ("way over my head", "level", "simple"),
        ("keine Grundlagen bitte", "level", "expert"),
        ("talk to me like an expert", "level", "expert"),
        ("bitte begrüße mich", "greeting", "greet"),
        ("begrüß mich zuerst", "greeting", "greet"),
        ("die Begrüßung kannst du dir sparen", "greeting", "none"),
        ("needs more emojis", "emoji", "use"),
        ("i miss the emojis", "emoji", "use"),
        ("emojis are childish", "emoji", "avoid"),
        ("bitte keine Emojis verwenden", "emoji", "avoid"),
        ("bitte stell Rückfragen", "question", "ask"),
        ("the question at the end is annoying", "question", "leave"),
        ("don't ask so many questions", "question", "leave"),
        ("rechne in Meter um", "units", "metric"),
        ("use celsius not fahrenheit", "units", "metric"),
        ("temps in fahrenheit please", "units", "imperial"),
        ("we don't use metric here", "units", "imperial"),
        ("i wrote in english so answer in english", "language", "english"),
        ("switch back to english", "language", "english"),
        ("in deutscher Sprache bitte", "language", "german"),
        ("responde en español por favor", "language", "spanish"),
        ("it's colour not color", "spelling", "british"),
        ("no americanisms please", "spelling", "british"),
        ("-ize not -ise", "spelling", "american"),
        ("lieber amerikanisches Englisch", "spelling", "american"),
        ("i pay in euro", "currency", "euro"),
        ("convert prices to euro", "currency", "euro"),
        ("please quote in dollars", "currency", "dollar"),
        ("Uhrzeiten im 24-Stunden-Format", "clock", "24"),
        ("times in 24 hour format", "clock", "24"),
        ("use 12 hour time", "clock", "12"),
        ("12-hour please", "clock", "12"),
        ("acknowledge my effort", "praise", "give"),
        ("more encouraging words", "praise", "give"),
        ("sycophantic", "praise", "skip"),
        ("spar dir die Komplimente", "praise", "skip"),
        ("show me how with an example", "examples", "give"),
        ("i understand better with examples", "examples", "give"),
        ("enough examples", "examples", "skip"),
        ("ich brauche keine Beispiele", "examples", "skip"),
        ("zu trocken", "humour", "funny"),
        ("dry as dust", "humour", "funny"),
        ("too silly", "humour", "serious"),
        ("the jokes are annoying", "humour", "serious"),
        ("the answer should come first", "order", "first"),
        ("Fazit nach vorne", "order", "first"),
        ("erst die Begründung bitte", "order", "last"),
        ("don't give the answer away immediately", "order", "last"),
        ("too cautious", "confidence", "firm"),
        ("you're so unsure", "confidence", "firm"),
        ("be more careful with claims", "confidence", "careful"),
        ("say when you don't know", "confidence", "careful"),
        ("prove it with sources", "sources", "give"),
        ("don't list your sources", "sources", "skip"),
        ("remove the sources", "sources", "skip"),
        ("ein Vorschlag reicht", "options", "one"),
        ("your favourite only please", "options", "one"),
        ("i'd like to choose from several", "options", "several"),
        ("more than one option please", "options", "several"),
    ],
)
def test_what_was_too_much_is_a_wish(text: str, axis: str, pole: str) -> None:
    assert Axes(FeedbackReason.objects.all()).of_text(text).poles[axis] == pole


@pytest.mark.parametrize(
    "text",
    [
        "thanks for being so formal",
        "nice and short, thanks",
        "i like the examples",
        "very clear and simple, well done",
        "meine Lehrerin sagt immer, keine Listen",
        "formal and casual mixed",
        "this is not the list",
        "a joke",
        "show the steps",
        "more books",
        "could you look",
        "i don't understand the question",
        "in one line of code",
        "it's so funny",
        "use gray",
        "der Wein ist zu trocken",
        "put the butter last",
        "for emails be formal",
    ],
)
def test_what_only_speaks_of_it_is_none(text: str) -> None:
    poles = Axes(FeedbackReason.objects.all()).of_text(text).poles
    assert [axis for axis in poles if not axis.startswith("“")] == []


def test_a_pole_of_several_is_refused_by_itself() -> None:
    axes = Axes(FeedbackReason.objects.all())
    german, no_german, english = map(
        axes.of_text, ["Answer in German.", "Stop answering in German.", "Answer in English."]
    )
    against = "language: german"
    assert (german.poles[against], no_german.poles[against]) == ("yes", "no")
    assert against not in english.poles
