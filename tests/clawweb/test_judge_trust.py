"""When the judge fails, disagrees, or its worker dies; and what people see of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from clawweb import tasks
from clawweb.engine import judge_name
from clawweb.models import Judgement, SampleState, TrainingSample, Turn, User
from clawweb.selectors.agent import funnel
from clawweb.selectors.judging import agreement, judge_is_silent, judge_status
from clawweb.services import feedback, jobs, judgements, sessions
from clawweb.services.notes import take_back_note
from rollouts.judge import Verdict
from tests.factories import down, make_turn, up
from tests.judge_server import Asked, saying
from tests.judging import BAD, GOOD, follow, judged, now_due, rejudged

pytestmark = pytest.mark.django_db


# Agreement


def make_judgement(turn: Turn, *, state: str = "judged", score: int | None = 1) -> None:
    Judgement.objects.create(
        turn=turn,
        next_turn=turn,
        state=state,
        score=score,
        judge=judge_name(),
        judged_at=timezone.now(),
    )


def judged_and_rated(user: User, agreed: int, of: int) -> None:
    """Rows of replies that a judge found good, and that their user rated."""
    session = sessions.open_session(user=user)
    for n in range(of):
        turn = make_turn(user, session=session)
        (up if n < agreed else down)(turn)
        make_judgement(turn)


@pytest.mark.parametrize(
    ("agreed", "of", "counts"),
    [(0, 9, True), (5, 10, False), (6, 10, True), (10, 10, True)],
)
def test_a_judge_that_disagrees_often_stops_counting(alice, judge, agreed, of, counts):
    judged_and_rated(alice, agreed, of)
    turn = make_turn(alice)
    follow(turn)
    row = judged(turn)
    assert (row.state, row.score) == ("judged", -1)  # it goes on, so that it can recover
    assert turn.samples.exists() is counts
    assert bool(row.error) is not counts
    status = judge_status(alice)
    assert (status["counts"], status["percent"]) == (counts, round(100 * agreed / of))


def test_agreement_is_over_the_newest_fifty(alice, judge):
    judged_and_rated(alice, 0, 12)
    judged_and_rated(alice, 50, 50)
    assert (agreement(alice).agreed, agreement(alice).of) == (50, 50)


def test_another_judge_begins_with_no_disagreement(alice, judge):
    judged_and_rated(alice, 0, 12)
    Judgement.objects.update(judge="the one before")
    assert agreement(alice).of == 0
    assert judge_status(alice)["counts"]


def test_only_replies_with_a_verdict_and_a_vote_agree_or_not(alice, judge):
    for score, state in [(0, "judged"), (None, "no_signal"), (None, "failed")]:
        turn = make_turn(alice)
        up(turn)
        make_judgement(turn, state=state, score=score)
    turn = make_turn(alice)
    make_judgement(turn)
    assert agreement(alice).share is None
    up(turn)
    feedback.rate_turn(turn=turn, author=alice, changes={"value": -1})
    assert agreement(alice).share == 0.0  # the newest vote counts


# When the judge fails


def test_an_outage_holds_the_reply_and_shows_until_it_ends(alice, judge):
    judge.say = lambda asked: asked.refuse(503, "overloaded")
    turn = make_turn(alice)
    follow(turn)
    row = judged(turn)
    assert (row.state, row.score, row.attempts) == ("waiting", None, 1)
    assert "503: overloaded" in row.error
    assert judge_is_silent()
    assert judge_status(alice)["waiting"] == 1
    assert not TrainingSample.objects.exists()
    judge.say = saying(BAD)
    assert judged(turn).state == "waiting"  # its time has not come
    assert rejudged(turn).state == "judged"
    assert not judge_is_silent()
    assert TrainingSample.objects.get().state == SampleState.READY


@pytest.mark.parametrize("how", [Asked.die, Asked.stall])
def test_a_judge_that_dies_or_stalls_is_asked_again(alice, judge, setting, how):
    setting(judge_seconds=0.5)
    judge.say = how
    turn = make_turn(alice)
    follow(turn)
    assert judged(turn).state == "waiting"


def test_the_pauses_grow_and_a_day_is_enough(alice, judge):
    judge.say = lambda asked: asked.refuse(500)
    turn = make_turn(alice)
    follow(turn)
    pauses = []
    for _ in range(6):
        before = timezone.now()
        row = rejudged(turn)
        pauses.append(round((row.try_at - before).total_seconds() / 10))
    assert pauses == [1, 6, 30, 180, 180, 180]
    Judgement.objects.update(created_at=timezone.now() - timedelta(hours=25))
    row = rejudged(turn)
    assert (row.state, row.score) == ("failed", None)
    assert "500" in row.error
    assert judgements.due() == []


def test_the_judge_is_left_alone_as_long_as_it_asks(alice, judge):
    judge.say = lambda asked: asked.refuse(429, Retry_After="900")
    turn = make_turn(alice)
    follow(turn)
    assert judged(turn).try_at > timezone.now() + timedelta(seconds=890)


def test_a_refusal_is_the_end_with_its_reason(alice, judge):
    judge.say = lambda asked: asked.refuse(401, "Incorrect API key")
    turn = make_turn(alice)
    follow(turn)
    row = judged(turn)
    assert (row.state, row.score) == ("failed", None)
    assert "401: Incorrect API key" in judge_status(None)["refusal"]
    judge.say = saying(GOOD)
    other = make_turn(alice)
    follow(other)
    judged(other)
    assert judge_status(None)["refusal"] == ""


def test_a_judge_that_cannot_be_loaded_says_so(alice, setting):
    setting(judge="not-installed")
    turn = make_turn(alice)
    follow(turn)
    assert judged(turn).state == "failed"
    assert "no judge is called 'not-installed'" in judge_status(None)["refusal"]


def test_a_lying_judge_makes_no_signal(alice, judge):
    judge.say = lambda asked: asked.send(b'{"choices": [{"message": {"content": NaN}}]}')
    turn = make_turn(alice)
    follow(turn)
    assert (judged(turn).state, judged(turn).score) == ("no_signal", None)


# Two workers, and workers that die


def test_one_worker_at_a_time_asks_and_another_takes_over_when_it_is_gone(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    pk = Judgement.objects.get().pk
    lost = judgements.claim(pk)
    assert lost is not None
    assert judgements.claim(pk) is None
    assert judgements.due() == []
    now_due()
    assert judgements.due() == [pk]
    assert judged(turn).state == "judged"
    assert judgements.record(lost, Verdict(score=1), []) is None  # it comes back too late
    assert Judgement.objects.get().score == -1
    assert TrainingSample.objects.count() == 1


def test_who_comes_back_while_its_successor_asks_writes_nothing(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    pk = Judgement.objects.get().pk
    lost = judgements.claim(pk)
    now_due()
    successor = judgements.claim(pk)
    judgements.record(lost, Verdict(score=1), [])
    judgements.record(lost, Verdict(again=True, error="late"), [])
    assert not TrainingSample.objects.exists()
    row = Judgement.objects.get()
    assert (row.state, row.error, row.lease_token) == ("waiting", "", successor.lease_token)
    assert judgements.record(successor, Verdict(score=-1), []) == alice


def test_a_turn_that_was_erased_meanwhile_is_gone(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    row = judgements.claim(Judgement.objects.get().pk)
    turn.session.delete()
    assert judgements.record(row, Verdict(score=1), []) is None


def test_the_sweep_finds_what_the_queue_lost(alice, judge, monkeypatch):
    sent: list[Any] = []
    monkeypatch.setattr(tasks, "_send", lambda task, ids, *_: sent.append((task.name, ids)))
    follow(make_turn(alice))
    tasks._sweep_judgements()
    assert sent == [("clawweb.tasks.judge", (str(Judgement.objects.get().pk),))]


def test_the_task_judges_and_a_full_batch_follows(alice, judge, monkeypatch, setting):
    setting(batch=1)
    turn = make_turn(alice)
    follow(turn)
    tasks.judge(str(Judgement.objects.get().pk))
    assert jobs.forgotten_jobs() != []


# What people see


def page(client: Any, user: User, path: str) -> str:
    client.force_login(user)
    answer = client.get(path)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_the_settings_say_how_often_the_judge_agrees(client, alice, judge):
    assert "it is not known how often the judge agrees" in page(client, alice, "/settings/")
    judged_and_rated(alice, 3, 12)
    text = page(client, alice, "/settings/")
    assert "agrees with your own ratings in 25% of 12 replies" in text
    assert "less than 60%, so for now it does not count for you" in text


def test_the_first_screen_says_that_a_judge_reads(client, alice, bob, judge):
    assert "A judge also reads what you say next" in page(client, alice, "/chat/")
    User.objects.filter(pk=bob.pk).update(consent="keep")
    assert "A judge" not in page(client, User.objects.get(pk=bob.pk), "/chat/")


def test_without_a_judge_the_settings_say_so(client, alice):
    text = page(client, alice, "/settings/")
    assert "nobody reads that" in text
    assert 'name="judge_elsewhere"' not in text


def test_a_judge_elsewhere_is_asked_about_and_the_answer_is_kept(client, alice, setting):
    setting(judge_url="https://judge.example.com/v1", judge_model="j")
    assert 'name="judge_elsewhere"' in page(client, alice, "/settings/")
    client.post("/settings/consent/", {"consent": "train", "judge_elsewhere": "on"})
    alice.refresh_from_db()
    assert alice.judge_elsewhere
    setting(judge_url="http://127.0.0.1:1/v1")
    client.post("/settings/consent/", {"consent": "train"})  # the tick is not on the page now
    alice.refresh_from_db()
    assert alice.judge_elsewhere
    setting(judge_url="https://judge.example.com/v1")
    client.post("/settings/consent/", {"consent": "train"})
    alice.refresh_from_db()
    assert not alice.judge_elsewhere


def test_my_agent_says_what_was_read_and_what_was_said(client, alice, judge):
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    text = page(client, alice, "/agent/")
    assert "Answer in at most two sentences." in text
    assert "read once from what you said next" in text
    down(make_turn(alice))
    text = page(client, alice, "/agent/")
    assert "said once" in text
    assert [count for _, count in funnel(alice)] == [1, 1, 0, 0]  # of ratings alone


def test_what_was_read_wrongly_is_taken_back(alice, judge):
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    assert take_back_note(user=alice, text="Answer in at most two sentences.") == 1
    assert TrainingSample.objects.get().state == SampleState.WITHDRAWN


def test_an_outage_is_shown_to_admins_and_to_whose_replies_wait(
    client, alice, bob, admin, judge, engine
):
    judge.say = lambda asked: asked.refuse(503)
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    assert "does not answer; 1 reply waits for it" in page(client, admin, "/jobs/")
    assert "does not answer; 1 reply waits for it" in page(client, admin, "/parts/system/")
    assert "does not answer; 1 of your replies waits" in page(client, alice, "/settings/")
    assert "message error" not in page(client, alice, "/jobs/")
    assert "1 of your replies" not in page(client, bob, "/settings/")


def test_a_refusal_is_shown_to_admins_with_its_reason(client, alice, admin, judge):
    judge.say = lambda asked: asked.refuse(401, "<b>Incorrect</b> key")
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    assert "&lt;b&gt;Incorrect&lt;/b&gt; key" in page(client, admin, "/jobs/")
    assert "Incorrect" not in page(client, alice, "/settings/")


def test_the_inspector_shows_votes_and_hints_as_text(client, alice, bob, judge):
    judge.say = saying(f"<script>alert(1)</script>\n{BAD}")
    turn = make_turn(alice)
    after = follow(turn)
    judged(turn)
    path = f"/sessions/{turn.session.public_id}/"
    text = page(client, alice, path)
    assert "Answer in at most two sentences." in text
    assert "3 votes" in text
    assert "&lt;script&gt;alert(1)" in text
    assert f'href="#{after.public_id}"' in text
    client.force_login(bob)
    assert client.get(path).status_code == 404


def test_metrics_count_judgements_and_leave_out_what_was_not_measured(client, alice, judge, engine):
    turn = make_turn(alice)
    follow(turn)
    judged(turn)
    text = client.get("/metrics").content.decode()
    assert 'clawweb_judgements{state="judged"} 1.0' in text
    assert "clawweb_judge_up 1.0" in text
    assert "clawweb_judge_agreement " not in text
    down(turn)
    assert "clawweb_judge_agreement 1.0" in client.get("/metrics").content.decode()
