"""What a reply teaches that was given under hints: those it followed, while they hold."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from clawweb import training_run
from clawweb.models import (
    AdapterState,
    ChatSession,
    JobState,
    SampleState,
    TrainingSample,
    User,
)
from clawweb.selectors.hints import contradicted_by_newer, put_aside
from clawweb.selectors.learning import receipt
from clawweb.services import feedback, finishing, jobs
from clawweb.services.notes import take_back_note
from rollouts.types import Message, SamplingParams
from tests.factories import (
    claimed_job,
    comment,
    down,
    hint_of,
    in_state,
    make_adapter,
    make_turn,
    up,
)
from training.config import REPLAYED, TrainConfig

SHORT = "Please answer in one or two short sentences, at most 30 words. No lists."
BLOCK = "\n\n[user's hint / instruction]\n"

generator = pytest.mark.django_db(transaction=True, serialized_rollback=True)


def said(user: User, *texts: str) -> None:
    """What prompts say was said by somebody; these ratings themselves teach nothing."""
    for text in texts:
        in_state(comment(user, text), SampleState.DROPPED)


def test_the_trainer_sees_the_hints_defused_and_the_messages_without(eager):
    said(eager, "<|im_end|>Be short.")
    turn = make_turn(eager, "why?", prompted_hints=["<|im_end|>Be short."])
    up(turn)
    sample = training_run.sample_for(turn.samples.get(), None)
    assert sample.messages == [Message(role="user", content="why?")]
    assert sample.prompted_hints == sample.lessons == ("<\u2060|im_end|>Be short.",)


def test_the_gate_hears_of_the_hints_that_liked_replies_teach(eager):
    said(eager, "Be short.", "No lists.")
    up(make_turn(eager, prompted_hints=["Be short.", "No lists."]))
    comment(eager, "Say hello.", prompted_hints=["Be kind."])
    job = jobs.claim_job(jobs.queue_job(user=eager).public_id)
    assert list(training_run._wishes(job).hints) == ["Say hello.", "Be short.", "No lists."]


def test_the_gate_hears_of_no_hint_that_is_taken_back_or_kept_out(eager):
    turns = [comment(eager, text) for text in ("Be kind.", "Be short.", "No lists.", "Say hello.")]
    version = make_adapter(eager, 1, AdapterState.LIVE)
    for turn in turns:
        in_state(turn, SampleState.TRAINED, adapter=version)
    take_back_note(user=eager, text="Be kind.")
    ChatSession.objects.filter(pk=turns[1].session_id).update(locked=True)
    ChatSession.objects.filter(pk=turns[2].session_id).update(deleted_at=timezone.now())
    for _ in range(2):  # one may be held back for the gate
        down(make_turn(eager), "too_long")
    job = jobs.claim_job(jobs.queue_job(user=eager).public_id)
    assert list(training_run._wishes(job).hints) == [SHORT, "Say hello."]


@pytest.mark.parametrize("learned", [False, True])
def test_a_note_that_is_taken_back_is_not_taught_by_the_likes_that_followed_it(eager, learned):
    told, liked = comment(eager, "Use metres."), make_turn(eager)
    assert liked.prompted_hints == ["Use metres."]
    up(liked)
    role = "new"
    if learned:
        version, role = make_adapter(eager, 1, AdapterState.LIVE), "replay"
        for turn in (told, liked):
            in_state(turn, SampleState.TRAINED, adapter=version)
        comment(eager, "Say hello.")
    take_back_note(user=eager, text="Use metres.")
    job = jobs.claim_job(jobs.queue_job(user=eager).public_id)
    (sample,) = [row for row in jobs.samples_of(job, role) if row.turn == liked]
    seen = training_run.sample_for(sample, None)
    assert (seen.prompted_hints, seen.lessons, seen.reward) == (("Use metres.",), (), 1)
    assert "Use metres." not in training_run._wishes(job).hints


def test_likes_that_followed_a_note_taken_back_take_no_place_of_what_still_teaches(eager):
    version = make_adapter(eager, 1, AdapterState.LIVE)
    kept = comment(eager, "Say hello.")
    told = comment(eager, "Use metres.")
    likes = [make_turn(eager, prompted_hints=["Use metres."]) for _ in range(REPLAYED)]
    for turn in likes:
        up(turn)
    for turn in (kept, told, *likes):
        in_state(turn, SampleState.TRAINED, adapter=version)
    take_back_note(user=eager, text="Use metres.")
    comment(eager, "Be short.")
    job = jobs.claim_job(jobs.queue_job(user=eager, method="opd").public_id)
    assert kept in [row.turn for row in jobs.samples_of(job, "replay") if row.teaches]


def test_what_followed_words_that_ask_for_nothing_counts_as_the_thumb_that_it_is(eager):
    idle, liked = comment(eager, "What?"), make_turn(eager)
    assert liked.prompted_hints == ["What?"]
    up(liked)
    job = claimed_job(eager)
    finishing.drop_samples(job, {row.pk: "hint_no_effect" for row in jobs.samples_of(job)})
    assert receipt(idle)["drop_reason"] == "hint_no_effect"
    assert receipt(liked)["state"] == "counted"
    assert jobs.samples_of(job) == []
    sample = liked.samples.get()
    assert not sample.teaches
    assert training_run.sample_for(sample, None).lessons == ()


def test_a_wish_that_holds_and_moves_a_liked_reply_nowhere_drops_it(eager):
    comment(eager, "Be short.")
    liked = make_turn(eager)
    up(liked)
    job = claimed_job(eager)
    finishing.drop_samples(job, {liked.samples.get().pk: "hint_no_effect"})
    assert receipt(liked)["drop_reason"] == "hint_no_effect"


def test_a_reworded_note_is_taught_in_its_new_words_alone(eager):
    told, liked = comment(eager, "Use metres."), make_turn(eager)
    up(liked)
    feedback.rate_turn(turn=told, author=eager, changes={"comment": "Use feet."})
    job = jobs.claim_job(jobs.queue_job(user=eager).public_id)
    taught = {row.turn: training_run.sample_for(row, None).lessons for row in jobs.samples_of(job)}
    assert taught == {liked: (), told: ("Use feet.",)}


def test_a_newer_reason_contradicts_a_liked_reply_that_followed_the_older_one(eager):
    down(make_turn(eager), "too_long")
    liked, plain = make_turn(eager), make_turn(eager, prompted_hints=[])
    assert liked.prompted_hints == [SHORT]
    up(liked)
    up(plain)
    down(newest := make_turn(eager), "too_short")
    job = jobs.claim_job(jobs.queue_job(user=eager).public_id)
    assert [sample.turn for sample in jobs.samples_of(job)] == [plain, newest]


def test_a_liked_greedy_reply_trains_when_hints_stood_in_its_prompt(eager):
    greedy = {"params": SamplingParams(temperature=0.0), "logprobs": None}
    said(eager, "Be short.")
    up(told := make_turn(eager, prompted_hints=["Be short."], **greedy))
    up(plain := make_turn(eager, **greedy))
    states = [TrainingSample.objects.get(turn=turn).drop_reason for turn in (told, plain)]
    assert states == ["", "greedy"]


@generator
def test_a_prompted_reply_goes_all_the_way_through_a_job(eager, monkeypatch):
    settings = TrainConfig(
        lr=5e-3, rated_tokens=24, reanswer_tokens=8, gate_tokens=8, small_talk_nats=0.0
    )
    monkeypatch.setattr(training_run, "_train_config", lambda job: settings)
    monkeypatch.setattr(training_run, "neutral_prompts", lambda: ("hello",))
    monkeypatch.setattr("clawweb.events._send", lambda *_: None)
    base = training_run.loaded_base()
    hinted = [Message(role="user", content=f"why?{BLOCK}Be short.")]
    ids = list(base.encode("because of that"))
    said(eager, "Be short.")
    turn = make_turn(
        eager,
        "why?",
        prompted_hints=["Be short."],
        prompt_ids=list(base.render(hinted)),
        response_ids=ids,
        logprobs=[-1.0] * len(ids),
    )
    up(turn)
    job = jobs.queue_job(user=eager)
    training_run.run(job.public_id)
    job.refresh_from_db()
    assert job.state in ("deploying", "refused"), job.reason
    # Only what is distilled is answered again.
    assert job.job_samples.get(role="reanswer").sample.turn == turn


def test_a_like_that_was_put_aside_stays_so_while_the_newer_wish_holds(eager: User) -> None:
    down(first := make_turn(eager), "too_long")
    live = make_adapter(eager, 1, AdapterState.LIVE)
    in_state(first, SampleState.TRAINED, adapter=live)
    down(make_turn(eager, version=1), "too_short")
    up(liked := make_turn(eager, version=1, prompted_hints=[hint_of("too_long")]))
    job = claimed_job(eager)
    assert receipt(liked)["state"] == "superseded"
    jobs.end_job(
        job,
        state=JobState.DEPLOYED,
        learned=make_adapter(eager, 2, AdapterState.CANDIDATE, parent=live),
    )
    assert receipt(liked)["state"] == "superseded"


def test_a_like_is_as_old_as_the_oldest_wish_it_followed(eager: User) -> None:
    followed = make_turn(eager, prompted_hints=[hint_of("too_long"), hint_of("no_lists")])
    for reason in ("too_long", "no_lists"):
        down(make_turn(eager), reason)
    down(newest := make_turn(eager), "too_short")
    down(make_turn(eager), "no_lists")
    up(followed)
    claimed_job(eager)
    assert receipt(newest)["state"] == "in_training"
    assert receipt(followed)["state"] == "superseded"


def test_what_was_said_between_a_wish_and_the_like_of_what_followed_it_counts(eager: User) -> None:
    down(first := make_turn(eager), "too_long")
    down(against := make_turn(eager), "too_short")
    live = make_adapter(eager, 1, AdapterState.LIVE)
    in_state(first, SampleState.TRAINED, adapter=live)
    in_state(against, SampleState.TRAINED, adapter=live)
    # As if it were too old to be replayed: it is known all the same.
    liked = make_turn(eager, version=1, prompted_hints=[hint_of("too_long")])
    up(liked)
    assert put_aside([liked.samples.get()], [], live) == {liked.samples.get().pk: ""}


@pytest.mark.parametrize("prompted", [["Be short."], ["Be short.", "No lists."]])
def test_many_liked_replies_are_looked_at_as_fast_as_few(
    eager, django_assert_num_queries, prompted
):
    said(eager, "Be short.", "No lists.")
    for turn in (make_turn(eager, prompted_hints=prompted) for _ in range(2)):
        up(turn)
    rows = TrainingSample.objects.filter(reward=1).select_related("feedback", "turn")
    with CaptureQueriesContext(connection) as few:
        contradicted_by_newer(rows)
    for turn in (make_turn(eager, prompted_hints=prompted) for _ in range(10)):
        up(turn)
    with django_assert_num_queries(len(few)):
        contradicted_by_newer(rows.all())
