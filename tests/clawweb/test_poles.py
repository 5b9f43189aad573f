"""Which pole of which axis words ask for: by the shipped reasons' phrases."""

from __future__ import annotations

import pytest

from clawweb.models import Consent, FeedbackReason, TrainingSample, User
from clawweb.selectors.hints import contradicted_by_newer, hints_to_prompt
from clawweb.selectors.poles import Axes
from clawweb.services import accounts, feedback
from tests.factories import down, make_turn

pytestmark = pytest.mark.django_db

SHORT, LONG = {"length": "short"}, {"length": "long"}
GERMAN = {"language": "german", "language: german": "yes"}
PROSE, LIST = {"layout": "prose"}, {"layout": "list"}


def axes() -> Axes:
    return Axes(FeedbackReason.objects.all())


@pytest.mark.parametrize(
    ("text", "poles"),
    [
        ("Shorter, please.", SHORT),
        ("That was far TOO LONG", SHORT),
        ("No, keep it short!", SHORT),
        ("Your answer was way too detailed.", SHORT),
        ("I want more detail.", LONG),
        ("Please give me a lot more detail", LONG),
        ("Too concise.", LONG),
        ("Bitte etwas ausführlicher.", LONG),
        ("Zu lang.", SHORT),
        ("Weniger ausführlich bitte", SHORT),
        ("No lists, please", PROSE),
        ("please don’t use bullet points", PROSE),
        ("Please avoid bullet points", PROSE),
        ("Use bullet points.", LIST),
        ("As a numbered list, and be brief.", LIST | SHORT),
        ("no lists and keep it short", PROSE | SHORT),
        ("Less formal!", {"tone": "casual"}),
        ("Please be more formal", {"tone": "formal"}),
        ("Too many bullet points", PROSE),
        ("Instead of a list, write a paragraph", PROSE),
        ("Give me bullet points instead of text.", LIST),
        ("Could you be more concise?", SHORT),
        ("Don't be so brief", LONG),
        ("You never greet me.", {"greeting": "greet"}),
        ("You always use lists", PROSE),
        ("You don't need to greet me every time", {"greeting": "none"}),
        ("A bit of humour would be nice.", {"humour": "funny"}),
        ("Where are the sources?", {"sources": "give"}),
        ("Use metres.", {"units": "metric"}),
        ("in feet please", {"units": "imperial"}),
        ("No feet!", {"units": "metric"}),  # the other of two
        ("Fahrenheit means nothing to me", {"units": "metric"}),
        ("Metres, not feet", {"units": "metric"}),
        ("Answer in German.", GERMAN),
        ("Auf Englisch bitte", {"language": "english", "language: english": "yes"}),
        ("No German, please", {"language: german": "no"}),  # which other is not said
        ("Not so formal", {"tone": "casual"}),
        # What may say what the reply was, or lacked, asks for nothing.
        ("not formal", {}),
        ("not helpful", {}),
        ("No tables", {}),
        ("no sources, how can I check that", {}),
        ("so formal", {"tone": "casual"}),
        ("very formal", {}),
        ("So many bullet points", {}),
        ("Less wordy, please.", SHORT),
        ("Don't be so verbose", SHORT),
        ("Not too many emoji", {"emoji": "avoid"}),
        ("Nothing but lists", {}),
        ("Use both metres and feet", {}),
        ("few words, please", SHORT),
        ("Lass die Emojis weg", {"emoji": "avoid"}),
        ("to short", LONG),
        ("a bit long", SHORT),
        ("you use emojis", {}),
        ("these lists", {}),
        ("still in English", {}),
        ("emojis not needed", {"emoji": "avoid"}),
        ("emojis not working", {}),
        ("The teacher said: no lists", {}),
        ("It's 5 km, not miles", {}),
        ("You never listen", {}),
        ("Schreib den Brief", {}),
        ("I don't have options", {"“hav option”": "no"}),
        ("should I use feet", {}),
        ("One more option", {"options": "several"}),
        ("I prefer the first option.", {}),
        ("I'm German", {}),
        ("Don't only use bullet points.", {"“merely bullet point”": "no"}),
        ("Answer my question!", {}),
        ("You never answer my question.", {"“attend”": "yes"}),
        # What lies on no axis that is known has one of its own.
        ("Always name the year.", {}),
        ("Always mention the year.", {"“year”": "yes"}),
        ("Stop mentioning the year", {"“year”": "no"}),
        ("No tables, please", {"“tabl”": "no"}),
        ("I want more tables", {"“tabl”": "yes"}),
        ("Tell me more about cats", {"“about cat”": "yes"}),
        # A wish for one sort of request is none for the others.
        ("For recipes, give me a list.", {}),
        ("When I ask about code, be brief.", {}),
        ("Use lists for recipes only", {}),
        ("Nur bei Rezepten bitte eine Liste.", {}),
        ("In letters, be formal.", {}),
        # What describes, denies or speaks of something else asks for nothing that is known.
        ("This is not too long.", {}),
        ("It was brief.", {}),
        ("You weren't concise", {}),
        ("You only gave me a short answer", {}),
        ("You answered in one sentence", {}),
        ("I never asked you to be longer", {"“asked longer”": "no"}),
        ("You gave me more detail than I needed", {"“gav detail than”": "yes"}),
        ("Why so elaborate?", {}),
        ("Why did you give me a list?", {}),
        ("This is a list.", {}),
        ("bullet points not needed", PROSE),
        ("Warum so ausführlich?", {}),
        ("Statt eine Liste zu machen, erzähl", {}),
        ("The Nile is longer than the Amazon", {}),
        ("Ich wohne schon länger in Berlin", {}),
        ("Use shorter words", {"“shorter word”": "yes"}),
        ("The password was too short", {}),
        ("Return a list, not a tuple", {"“tupl”": "no"}),
        ("Formally, that is wrong", {}),
        ("Die Schraube ist zu locker", {}),
        ("Shorter, no, longer", {}),  # both poles
        ("My name is Sam and I live in Norway.", {}),
        ("", {}),
    ],
)
def test_words_ask_for_a_pole(text: str, poles: dict[str, str]) -> None:
    assert axes().of_text(text).poles == poles


@pytest.mark.parametrize(
    ("text", "says_more"),
    [
        ("Shorter, please.", False),
        ("Shorter, and my name is Sam.", True),
        ("Shorter, use metres", False),
        ("No, shorter!", False),
        ("", False),
    ],
)
def test_what_says_more_than_its_pole_is_known(text: str, says_more: bool) -> None:
    assert axes().of_text(text).says_more is says_more


def test_no_phrase_of_a_reason_asks_for_the_other_pole() -> None:
    shipped = axes()
    rows = FeedbackReason.objects.exclude(phrases="")
    assert len(rows) == 6
    for row in rows:
        for line in row.phrases.splitlines():
            assert shipped.of_text(line).poles == {row.axis: row.pole}, line


def test_an_admin_adds_a_phrase_and_takes_a_reason_away() -> None:
    greet = FeedbackReason.objects.filter(slug="greet_me")
    greet.update(phrases="wave at me\n\n  Bow First ")
    assert axes().of_text("Please bow last").poles == {}
    assert axes().of_text("Always wave at me!").poles == {"greeting": "greet"}
    greet.update(active=False)
    assert axes().of_text("Always wave at me!").poles == {}
    assert axes().of_reason("greet_me") == {"greeting": "greet"}  # what was ticked stays ticked


def test_words_contradict_reasons_and_each_other(alice: User) -> None:
    accounts.set_consent(user=alice, consent=Consent.TRAIN, prompt_hints=True)
    alice.refresh_from_db()

    def comment(text: str) -> None:
        changes = {"value": -1, "comment": text}
        feedback.rate_turn(turn=make_turn(alice), author=alice, changes=changes)

    down(make_turn(alice), "too_long")
    comment("My name is Sam, and I like lists of films.")
    comment("Please give me more detail.")
    name, detail = "My name is Sam, and I like lists of films.", "Please give me more detail."
    assert hints_to_prompt(alice) == [detail, name]
    comment("Shorter, please.")
    assert hints_to_prompt(alice)[:2] == ["Shorter, please.", name]
    assert detail not in hints_to_prompt(alice)
    down(make_turn(alice), "too_short")
    assert "Shorter, please." not in hints_to_prompt(alice)


def rated(user: User, comment: str, *reasons: str) -> TrainingSample:
    turn = make_turn(user)
    changes = {"value": -1, "comment": comment, "reasons": list(reasons)}
    feedback.rate_turn(turn=turn, author=user, changes=changes)
    return TrainingSample.objects.select_related("feedback", "turn").get(turn=turn)


def test_what_says_more_wins_and_is_not_put_aside(alice: User) -> None:
    brief = rated(alice, "Be brief.")
    mixed = rated(alice, "My name is Sam. Use metres, and give more detail.")
    assert contradicted_by_newer([brief, mixed]) == {brief.pk}
    assert contradicted_by_newer([mixed, rated(alice, "", "too_long")]) == set()


def test_a_reason_says_it_more_plainly_than_the_words_beside_it(alice: User) -> None:
    ticked = rated(alice, "more detail", "too_long")
    assert contradicted_by_newer([ticked, rated(alice, "Shorter!")]) == set()
    assert contradicted_by_newer([ticked, rated(alice, "Longer!")]) == {ticked.pk}


def test_a_judges_words_put_nothing_aside(alice: User) -> None:
    short = rated(alice, "", "too_long")
    judged = TrainingSample(pk=short.pk + 1, user=alice, turn=make_turn(alice), hint="More detail.")
    assert contradicted_by_newer([short, judged]) == set()
    # but what a liked reply followed is put aside, whoever liked it
    liked = make_turn(alice, prompted_hints=[short.hint])
    judged = TrainingSample(pk=short.pk + 2, user=alice, turn=liked, reward=1)
    newer = rated(alice, "", "too_short")
    newer.pk = short.pk + 3
    assert contradicted_by_newer([judged, newer]) == {judged.pk}
