"""What rows say in English is read in the reader's language, and rows keep it for programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from django.test import Client
from django.utils import translation

from clawweb import sentences
from clawweb.figures import CHARTS, cells, summary
from clawweb.models import JobState, User
from clawweb.selectors import tokens
from clawweb.sentences import said
from clawweb.services import jobs
from tests.factories import claimed_job, make_adapter, rated
from training.config import TrainConfig
from training.gate import ReplyFigures, judged
from training.way_back import way_measure

ALL = [
    text
    for name, value in vars(sentences).items()
    if name.isupper()
    for text in (value if isinstance(value, tuple) else [value])
]


@pytest.fixture(autouse=True)
def plain_language() -> Iterator[None]:
    """A request in German would leave its language to later tests."""
    with translation.override("en"):
        yield


def in_german(text: str) -> str:
    with translation.override("de"):
        return said(text)


def filled(sentence: str) -> tuple[str, list[str]]:
    """The sentence with a value of its own in each place."""
    names = re.findall(r"%\((\w+)\)s", sentence)
    values = {name: f"{i}.5" for i, name in enumerate(names)}
    return sentence % values if values else sentence, list(values.values())


@pytest.mark.parametrize("sentence", dict.fromkeys(ALL))
def test_a_sentence_is_found_again_with_its_values(sentence: str) -> None:
    text, values = filled(sentence)
    with translation.override("en"):
        assert said(text) == text
    german = in_german(text)
    assert german != text
    assert [value for value in values if value not in re.sub(r"(\d),(\d)", r"\1.\2", german)] == []


def test_numbers_have_the_decimal_sign_of_the_language() -> None:
    """In what a test says, in a chart's summary and its table, and of each word of a reply."""
    tested = (
        "on subjects you never rated it differs from the base model by 0.25 (at most 0.29, what "
        "your wishes explain)"
    )
    points = [{"step": 1, "attempt": 1, "loss": 1.5}]
    for language, sign, other in (("en", ".", ","), ("de", ",", r"\.")):
        with translation.override(language):
            assert f"0{sign}25" in said(tested)
            assert f"1{sign}500" in summary(CHARTS[0], points)
            assert f"1{sign}500" in cells(points)[0]
            assert f"-0{sign}69" in tokens._look(tokens.LIKELIHOOD, -0.69)[1]
            assert [c.key for c in CHARTS if re.search(rf"\d{other}\d", str(c.meaning))] == []
            assert f"+0{sign}25" in tokens._look(tokens.EFFECT, 0.25)[1]


@pytest.mark.usefixtures("valkey_server", "engine")
def test_a_share_has_a_space_before_its_sign_in_german_alone(client: Client, alice: User) -> None:
    """In what a test says, of each word of a reply, and on a page."""
    kept = way_measure(0.6).text
    make_adapter(alice, 1)
    client.force_login(alice)
    for language, share in (("en", "%d%%"), ("de", "%d %%")):
        page = client.get("/adapters/", headers={"Accept-Language": language})
        assert f">{share % 20}</option>" in page.content.decode()
        with translation.override(language):
            assert share % 60 in said(kept)
            assert share % 50 in tokens._look(tokens.LIKELIHOOD, -0.69)[1]


def test_what_the_gate_says_is_known() -> None:
    good = ReplyFigures(empty=0.0, cut=0.1, length=30.0, repeats=0.02, count=12, question=40.0)
    vague = replace(good, question=None)
    measures = judged(good, good, good, TrainConfig())
    measures += judged(good, good, vague, TrainConfig())
    measures += [way_measure(1.0), way_measure(0.6)]
    assert [m.text for m in measures if in_german(m.text) == m.text] == []


def test_all_tests_that_a_version_failed_are_told() -> None:
    worse = ReplyFigures(empty=0.5, cut=1.0, length=1.0, repeats=0.9, count=12, question=2.0)
    good = ReplyFigures(empty=0.0, cut=0.1, length=30.0, repeats=0.02, count=12, question=40.0)
    failed = [m.text for m in judged(worse, good, good, TrainConfig()) if m.ok is False]
    assert len(failed) == 5
    assert in_german(" ".join(failed)) == "; ".join(map(in_german, failed))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("Version 3 answers now.", "Version 3 went live."),
        (
            "92% of its test replies do not come to an end: not measured, as its parent's"
            " hardly ever do",
            "92% of its test replies do not come to an end: not judged, as its parent's"
            " hardly ever do",
        ),
        ("it goes the whole way that training went", way_measure(1.0).text),
        (
            "it goes 60% of the way from the base model that training had gone: the whole"
            " way led too far",
            way_measure(0.6).text,
        ),
    ],
)
def test_what_an_old_row_says_is_read_as_what_says_it_today(before: str, now: str) -> None:
    assert said(before) == now


def test_an_errors_own_words_stay_and_what_leads_to_them_does_not() -> None:
    german = in_german("Training broke: ValueError: a (strange) thing")
    assert german.endswith("ValueError: a (strange) thing")
    assert not german.startswith("Training broke")
    assert in_german("nobody's sentence") == "nobody's sentence"
    assert said("") == ""


@pytest.mark.usefixtures("valkey_server", "engine")
def test_a_jobs_history_is_read_in_german_and_kept_in_english(client: Client, alice: User) -> None:
    rated(alice, 2)
    job = claimed_job(alice)
    reason = "Training failed: its files are gone"
    jobs.end_job(job, state=JobState.FAILED, reason=reason)
    texts = [event.text for event in job.events.all() if event.text]
    assert "ratings ready: 2" in texts
    assert [text for text in texts if in_german(text) == text] == []
    client.force_login(alice)
    page = client.get(f"/jobs/{job.public_id}/", headers={"Accept-Language": "de"})
    assert in_german(reason) in page.content.decode()
    assert "its files are gone" not in page.content.decode()
    kept = client.get(f"/api/jobs/{job.public_id}", headers={"Accept-Language": "de"}).json()
    assert kept["reason"] == reason


@pytest.mark.usefixtures("valkey_server", "engine")
def test_refusals_with_values_are_in_the_callers_language(client: Client, alice: User) -> None:
    adapter = make_adapter(alice, 3, "refused")
    client.force_login(alice)
    for path in (f"adapters/{adapter.name}/trial", f"adapters/{adapter.name}/promote"):
        answer = client.post(
            f"/api/{path}", {"share": 20}, "application/json", headers={"Accept-Language": "de"}
        )
        assert answer.status_code == 409
        assert "Version 3" in answer.json()["detail"]
        assert "only a version" not in answer.json()["detail"]
