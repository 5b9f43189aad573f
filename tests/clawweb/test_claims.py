"""What a job takes: not what is too old or was contradicted; and what it is reminded of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from clawweb.models import ChatSession, FeedbackReason, JobState, SampleState, TrainingSample
from clawweb.selectors.learning import MAX_VERSION_AGE, receipt
from clawweb.selectors.notes import notes_of
from clawweb.services import feedback, finishing, jobs
from clawweb.training_run import _kept_aside, sample_for
from rollouts.types import SamplingParams
from tests.factories import claimed_job, down, down_alone, hint_of, make_adapter, make_turn, up
from training.config import CANDIDATES

pytestmark = [pytest.mark.db, pytest.mark.django_db]


def versions_until(alice, newest):
    parent = None
    for version in range(1, newest + 1):
        state = "live" if version == newest else "standby"
        parent = make_adapter(alice, version, state, parent=parent)


def test_replies_of_a_version_more_than_three_behind_are_stale(alice):
    versions_until(alice, 5)
    old, young = make_turn(alice, version=1), make_turn(alice, version=2)
    down(old)
    down(young)
    job = claimed_job(alice)
    assert [s.turn for s in jobs.samples_of(job)] == [young]
    assert receipt(old)["drop_reason"] == "stale"


@pytest.mark.parametrize(
    ("how", "is_changed"), [("was_held_back", False), ("was_held_back", True), ("held_back", True)]
)
def test_what_was_kept_aside_for_the_gate_is_not_too_old_once_it_is_not(alice, how, is_changed):
    parent = None
    for version in range(1, 7):
        parent = make_adapter(alice, version, "live" if version == 6 else "standby", parent=parent)
    down(turn := make_turn(alice, version=1))
    TrainingSample.objects.update(**{how: True})
    if is_changed:
        feedback.rate_turn(turn=turn, author=alice, changes={"comment": "Be kind."})
    job = claimed_job(alice)
    (sample,) = jobs.samples_of(job)
    assert sample.turn == turn
    assert sample_for(sample, job.parent).version_age == MAX_VERSION_AGE  # the trainer takes it


def test_the_trainer_sees_the_ids_that_were_sampled_and_not_the_words(alice):
    sampled = {"prompt_ids": [9, 8], "response_ids": [228, 3, 228], "logprobs": [-0.5, -2.0, -0.1]}
    down(make_turn(alice, reply="other words", **sampled))
    (row,) = jobs.samples_of(claimed_job(alice))
    seen = sample_for(row, None)
    assert (seen.prompt_ids, seen.response_ids, seen.rollout_logprobs) == (*sampled.values(),)


def test_the_newest_of_contradicting_reasons_wins(alice):
    long, short, prose = make_turn(alice), make_turn(alice), make_turn(alice)
    down(long, "too_short")
    down(prose, "no_lists")
    down(short, "too_long")
    job = claimed_job(alice)
    assert [s.turn for s in jobs.samples_of(job)] == [prose, short]
    aside = receipt(long)
    assert aside["state"] == "superseded"
    assert aside["text"] == "put aside: the opposite was asked for since"
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    down(make_turn(alice, version=1), "too_short")
    replayed = jobs.samples_of(claimed_job(alice), "replay")
    assert [s.turn for s in replayed] == [prose]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("Use metres.", "Use feet."),
        ("Please answer in German", "English please!"),
        ("You never ask me anything.", "stop asking me questions"),
        ("Please mention the year.", "Don't mention the year"),
    ],
)
def test_the_newest_of_contradicting_words_wins(alice, older, newer):
    turns = [make_turn(alice), make_turn(alice), make_turn(alice)]
    for turn, words in zip(turns, (older, "My cat is called Tom.", newer), strict=True):
        feedback.rate_turn(turn=turn, author=alice, changes={"value": -1, "comment": words})
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == turns[1:]
    assert receipt(turns[0])["state"] == "superseded"
    replaced = {note.text: note.replaced_by for note in notes_of(alice)}
    assert replaced == {older: newer, "My cat is called Tom.": "", newer: ""}


@pytest.mark.parametrize(
    "words", ["And always mention the sources.", "My name is Sam.", "Be brief. My name is Sam."]
)
def test_words_that_say_more_stay_when_the_reason_beside_them_is_contradicted(alice, words):
    old, new = make_turn(alice), make_turn(alice)
    said = {"value": -1, "reasons": ["too_long", "no_lists"], "comment": words, "correction": "Yes"}
    feedback.rate_turn(turn=old, author=alice, changes=said)
    down(new, "too_short")
    job = claimed_job(alice)
    sample = jobs.samples_of(job)[0]
    assert (sample.turn, sample.correction) == (old, "")
    assert sample.lessons == (f"{hint_of('no_lists')} {words}",)
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    notes = {note.text: (note.learned, note.unused, note.replaced_by) for note in notes_of(alice)}
    assert notes == {
        words: (1, 0, ""),
        "Yes": (0, 1, ""),
        hint_of("no_lists"): (1, 0, ""),
        hint_of("too_long"): (0, 1, "Too short"),
        hint_of("too_short"): (1, 0, ""),
    }
    down(make_turn(alice, version=1), "too_short")
    assert [s.turn for s in jobs.samples_of(claimed_job(alice), "replay")] == [old, new]


def test_a_reason_that_was_left_out_counts_again_when_it_is_said_again(alice):
    old, new = make_turn(alice), make_turn(alice)
    said = {"value": -1, "reasons": ["too_long"], "comment": "Name sources.", "correction": "Yes"}
    feedback.rate_turn(turn=old, author=alice, changes=said)
    down(new, "too_short")
    job = claimed_job(alice)
    assert jobs.samples_of(job)[0].lessons == ("Name sources.",)
    jobs.end_job(job, state=JobState.FAILED)
    feedback.rate_turn(turn=old, author=alice, changes=said)
    (sample,) = jobs.samples_of(claimed_job(alice))
    assert (sample.turn, sample.correction) == (old, "Yes")
    assert sample.lessons == (f"{hint_of('too_long')} Name sources.",)
    feedback.rate_turn(turn=old, author=alice, changes=said)  # and once more is nothing new
    assert old.samples.count() == 2


def test_words_that_are_contradicted_themselves_go_with_their_reason(alice):
    old = make_turn(alice)
    said = {"value": -1, "reasons": ["too_long"], "comment": "Use metres."}
    feedback.rate_turn(turn=old, author=alice, changes=said)
    down(short := make_turn(alice), "too_short")
    changes = {"value": -1, "comment": "Use feet."}
    feedback.rate_turn(turn=(feet := make_turn(alice)), author=alice, changes=changes)
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == [short, feet]
    assert receipt(old)["state"] == "superseded"


def put_aside(alice):
    """A rating that a job put aside for a newer one, and that one."""
    old, new = make_turn(alice), make_turn(alice)
    down(old, "too_long")
    down(new, "too_short")
    job = claimed_job(alice)
    assert [s.turn for s in jobs.samples_of(job)] == [new]
    return old, new, job


def test_what_was_put_aside_counts_again_when_the_newer_wish_is_taken_back(alice):
    old, new, job = put_aside(alice)
    jobs.end_job(job, state=JobState.FAILED, reason="because")
    assert receipt(old)["state"] == "superseded"
    feedback.rate_turn(turn=new, author=alice, changes={"value": None})
    assert receipt(old)["state"] == "counted"
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == [old]


def test_what_was_put_aside_counts_again_when_the_newer_wish_teaches_nothing(alice):
    old, new, job = put_aside(alice)
    finishing.drop_samples(job, {new.samples.get().pk: "hint_no_effect"})
    assert receipt(old)["state"] == "counted"


def test_what_was_put_aside_stays_so_once_the_newer_wish_is_learned(alice):
    old, _, job = put_aside(alice)
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    up(make_turn(alice))
    assert receipt(old)["state"] == "superseded"


def test_a_like_of_what_followed_an_older_wish_puts_no_newer_one_aside(alice):
    followed = make_turn(alice, prompted_hints=[hint_of("too_long")])
    down(make_turn(alice), "too_long")
    down(newest := make_turn(alice), "too_short")
    up(followed)
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == [newest]
    assert receipt(newest)["state"] == "in_training"


def test_a_like_of_what_followed_a_wish_that_was_put_aside_is_a_thumb(alice):
    _, _, job = put_aside(alice)
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    up(followed := make_turn(alice, version=1, prompted_hints=[hint_of("too_long")]))
    (sample,) = jobs.samples_of(claimed_job(alice))
    assert sample.turn == followed
    assert sample.lessons == ()


def test_nothing_is_replayed_that_a_rating_kept_aside_contradicts(alice):
    down(old := make_turn(alice), "too_long")
    job = claimed_job(alice)
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    down(against := make_turn(alice, version=1), "too_short")
    TrainingSample.objects.filter(turn=against).update(held_back=True)
    down(make_turn(alice, version=1), "no_lists")
    assert jobs.samples_of(claimed_job(alice), "replay") == []
    assert receipt(old)["state"] == "learned"


def test_who_says_again_what_was_put_aside_means_it(alice):
    old, new, job = put_aside(alice)
    jobs.end_job(job, state=JobState.FAILED, reason="because")
    down(old, "too_long")
    assert receipt(old)["state"] == "counted"
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == [old]
    assert receipt(new)["state"] == "superseded"


def test_what_is_too_old_puts_nothing_aside(alice):
    versions_until(alice, 5)
    fresh, stale = make_turn(alice, version=5), make_turn(alice, version=1)
    down(fresh, "too_long")
    down(stale, "too_short")
    job = claimed_job(alice)
    assert [s.turn for s in jobs.samples_of(job)] == [fresh]
    assert receipt(stale)["drop_reason"] == "stale"


def test_a_hint_that_the_jobs_method_could_not_use_waits_for_another(alice):
    hinted = make_turn(alice, params=SamplingParams(temperature=0.0), logprobs=None)
    down(hinted, "too_long")
    up(plain := make_turn(alice))
    job = claimed_job(alice)
    finishing.drop_samples(job, {hinted.samples.get().pk: "greedy"})
    assert [receipt(turn)["state"] for turn in (hinted, plain)] == ["counted", "in_training"]
    assert [row.sample.turn for row in job.job_samples.all()] == [plain]


def test_a_hint_that_is_not_heard_waits_for_no_other_method(alice):
    down(make_turn(alice, params=SamplingParams(temperature=0.0), logprobs=None))
    job = claimed_job(alice)
    (greedy,) = jobs.samples_of(job)
    finishing.drop_samples(job, {greedy.pk: "greedy"}, unheard={greedy.pk})
    assert receipt(greedy.turn)["text"].endswith("plain distribution, and no hint teaches it.")


def test_a_newer_wish_that_is_kept_aside_for_the_gate_wins_too(alice):
    old, new = make_turn(alice), make_turn(alice)
    down(old, "too_long")
    down(new, "too_short")
    TrainingSample.objects.filter(turn=new).update(held_back=True)
    assert jobs.samples_of(claimed_job(alice)) == []
    assert receipt(old)["state"] == "superseded"


def test_a_wish_of_a_chat_that_was_kept_out_does_not_undo_what_was_learned_since(alice):
    old, new = make_turn(alice), make_turn(alice)
    down(old, "too_long")
    old.session.locked = True
    old.session.save()
    down(new, "too_short")
    live = make_adapter(alice, 1, "live")
    jobs.end_job(claimed_job(alice), state=JobState.DEPLOYED, learned=live)
    ChatSession.objects.update(locked=False)
    job = claimed_job(alice)
    assert jobs.samples_of(job) == []
    assert receipt(old)["state"] == "superseded"
    assert [s.turn for s in jobs.samples_of(job, "replay")] == [new]


def test_a_later_attempt_is_not_reminded_of_what_was_taken_back(alice):
    kept, gone, locked = (make_turn(alice) for _ in range(3))
    for turn in (kept, gone, locked):
        down(turn, "too_long")
    live = make_adapter(alice, 1, "live")
    jobs.end_job(claimed_job(alice), state=JobState.DEPLOYED, learned=live)
    down(make_turn(alice, version=1), "too_long")
    job = claimed_job(alice)
    assert len(jobs.samples_of(job, "replay")) == 3
    jobs.put_back(job)
    TrainingSample.objects.filter(turn=gone).update(state=SampleState.WITHDRAWN)
    ChatSession.objects.filter(pk=locked.session_id).update(locked=True)
    job = jobs.claim_job(job.public_id)
    assert [s.turn for s in jobs.samples_of(job, "replay")] == [kept]


def test_what_is_taken_back_before_the_job_trains_is_no_part_of_it(alice):
    gone, kept = make_turn(alice), make_turn(alice)
    for turn in (gone, kept):
        down(turn, "too_long")
    job = claimed_job(alice)
    feedback.rate_turn(turn=gone, author=alice, changes={"value": None})
    assert receipt(gone)["text"] == "taken back, but in training (job 1)"
    finishing.leave_out_withdrawn(job)
    assert [s.turn for s in jobs.samples_of(job)] == [kept]
    assert [row.sample.turn for row in job.job_samples.all()] == [kept]
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    assert [receipt(turn)["text"] for turn in (gone, kept)] == ["taken back", "learned in v1"]


def test_what_is_taken_back_too_late_says_what_has_learned_it(alice):
    turn = make_turn(alice)
    down(turn, "too_long")
    job = claimed_job(alice)
    finishing.leave_out_withdrawn(job)  # it trains
    feedback.rate_turn(turn=turn, author=alice, changes={"value": None})
    live = make_adapter(alice, 1, "live")
    jobs.end_job(job, state=JobState.DEPLOYED, learned=live)
    assert receipt(turn)["state"] == "withdrawn"
    assert receipt(turn)["text"] == "taken back, but learned in v1"


def test_a_wish_in_words_puts_an_older_reason_aside(alice):
    short, long = make_turn(alice), make_turn(alice)
    down(short, "too_long")
    feedback.rate_turn(
        turn=long, author=alice, changes={"value": -1, "comment": "Longer!", "final": True}
    )
    assert [s.turn for s in jobs.samples_of(claimed_job(alice))] == [long]
    assert receipt(short)["state"] == "superseded"


def test_a_job_is_reminded_of_hints_however_much_was_liked_since(alice, monkeypatch):
    """What a version learned under hints is answered anew; likes alone would push it out."""
    monkeypatch.setattr("clawweb.selectors.hints.THUMBS_REPLAYED", CANDIDATES)
    asked = [make_turn(alice) for _ in range(2)]
    hint = FeedbackReason.objects.get(slug="too_long").hint
    followed = make_turn(alice, prompted_hints=[hint])  # liked, and told what it followed
    likes = [make_turn(alice) for _ in range(9)]
    for turn in asked:
        down(turn, "too_long")
    for turn in (followed, *likes):
        up(turn)
    job = claimed_job(alice)
    jobs.end_job(job, state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live"))
    down(make_turn(alice, version=1), "too_long")
    replayed = jobs.samples_of(claimed_job(alice), "replay")
    assert [s.turn for s in replayed] == [*asked, followed, *likes[-CANDIDATES:]]


def learned_thumbs(alice, count):
    """Turns with a thumb and nothing more, of both kinds, that a live version has learned."""
    turns = [make_turn(alice) for _ in range(count)]
    for number, turn in enumerate(turns):
        up(turn) if number % 2 else down_alone(turn)
    jobs.end_job(
        claimed_job(alice), state=JobState.DEPLOYED, learned=make_adapter(alice, 1, "live")
    )
    return turns


def replayed(alice, **job):
    return [sample.turn for sample in jobs.samples_of(claimed_job(alice, **job), "replay")]


def test_a_job_of_thumbs_alone_is_reminded_of_the_newest_thumbs(alice, monkeypatch):
    monkeypatch.setattr("clawweb.selectors.hints.THUMBS_REPLAYED", 3)
    turns = learned_thumbs(alice, 5)
    down_alone(make_turn(alice, version=1))
    assert replayed(alice) == turns[-3:]


def test_a_job_that_has_a_hint_is_reminded_of_the_newest_thumbs(alice, monkeypatch):
    """It ends with KTO on them."""
    monkeypatch.setattr("clawweb.selectors.hints.THUMBS_REPLAYED", 4)
    turns = learned_thumbs(alice, 5)
    down(make_turn(alice, version=1), "too_long")
    assert replayed(alice) == turns[-4:]


def test_a_job_by_opd_that_has_a_hint_is_reminded_of_what_was_liked(alice):
    turns = learned_thumbs(alice, 5)
    down(make_turn(alice, version=1), "too_long")
    assert replayed(alice, method="opd") == [turns[1], turns[3]]  # the teacher may be shown them


def test_a_job_by_kto_is_reminded_of_thumbs_whatever_was_said(alice):
    turns = learned_thumbs(alice, 5)
    down(make_turn(alice, version=1), "too_long")
    assert replayed(alice, method="kto") == turns


def test_the_gate_asks_for_nothing_that_its_user_has_contradicted_since(alice):
    make_adapter(alice, 1, "live")
    old, liked, new = (make_turn(alice, version=1) for _ in range(3))
    down(old, "too_long")
    up(liked)
    down(new, "too_short")
    TrainingSample.objects.filter(turn__in=[old, liked]).update(held_back=True)
    job = claimed_job(alice)
    base = SimpleNamespace(template_hash=new.template_hash)
    kept = [sample.id for sample in _kept_aside(job, base)]
    assert kept == [liked.samples.get().pk]
