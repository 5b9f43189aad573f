"""Sessions as a whole: named, pinned, locked, searched, temporary, deleted and had back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from clawweb import valkey
from clawweb.models import (
    AdapterState,
    ChatSession,
    Event,
    SampleState,
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors.chat import reply_of, sessions_of, sessions_with
from clawweb.selectors.learning import ready_samples
from clawweb.selectors.notes import notes_of
from clawweb.services import feedback, housekeeping, jobs, sessions
from clawweb.services.errors import NotRecorded
from clawweb.views.chat import LISTED, listed
from tests.factories import down, make_adapter, make_turn

pytestmark = [pytest.mark.db, pytest.mark.usefixtures("valkey_server", "engine")]
JSON = "application/json"


def address(session: ChatSession) -> str:
    return f"/api/sessions/{session.public_id}"


def age(session: ChatSession, since: timedelta) -> None:
    ChatSession.objects.filter(pk=session.pk).update(deleted_at=timezone.now() - since)


def test_a_chat_is_renamed_pinned_and_kept_out_of_training(client: Client, alice: User) -> None:
    client.force_login(alice)
    session = make_turn(alice).session
    body = {"title": "  Eggs,  and more ", "pinned": True, "locked": True}
    answer = client.patch(address(session), body, content_type=JSON).json()
    assert (answer["title"], answer["pinned"], answer["locked"]) == ("Eggs, and more", True, True)
    answer = client.patch(address(session), {"locked": False}, content_type=JSON).json()
    assert (answer["title"], answer["pinned"], answer["locked"]) == ("Eggs, and more", True, False)


def test_an_empty_name_is_refused_with_a_reason(client: Client, alice: User) -> None:
    client.force_login(alice)
    answer = client.patch(address(make_turn(alice).session), {"title": " "}, content_type=JSON)
    assert answer.status_code == 409
    assert "at least one letter" in answer.json()["detail"]


def test_nobody_edits_deletes_or_restores_anothers_chat(
    client: Client, alice: User, bob: User
) -> None:
    client.force_login(alice)
    session = make_turn(bob).session
    assert client.patch(address(session), {"pinned": True}, content_type=JSON).status_code == 404
    assert client.delete(address(session)).status_code == 404
    assert client.post(f"{address(session)}/restore", {}, content_type=JSON).status_code == 404
    session.refresh_from_db()
    assert (session.pinned, session.deleted_at) == (False, None)


def test_a_deleted_chat_is_nowhere_and_can_be_had_back(client: Client, alice: User) -> None:
    client.force_login(alice)
    turn = make_turn(alice)
    down(turn)
    assert client.delete(address(turn.session)).status_code == 204
    assert client.get(address(turn.session)).status_code == 404
    assert client.get(f"/api/turns/{turn.public_id}").status_code == 404
    assert client.get(f"/chat/{turn.session.public_id}/").status_code == 404
    assert (sessions_of(alice).count(), ready_samples(alice).count()) == (0, 0)
    assert notes_of(alice) == []
    client.post(f"{address(turn.session)}/restore", {}, content_type=JSON)
    assert client.get(address(turn.session)).status_code == 200
    assert ready_samples(alice).count() == 1


def test_a_deleted_chat_is_erased_when_the_time_to_undo_is_over(alice: User) -> None:
    kept, gone = make_turn(alice).session, make_turn(alice).session
    age(kept, timedelta(minutes=9))
    age(gone, timedelta(minutes=11))
    assert housekeeping.erase_deleted() == 1
    assert list(ChatSession.objects.values_list("pk", flat=True)) == [kept.pk]
    assert not Turn.objects.filter(session_id=gone.pk).exists()


def test_what_is_being_trained_on_is_erased_after_the_job(alice: User) -> None:
    turn = make_turn(alice)
    down(turn)
    job = jobs.queue_job(user=alice, trigger="manual")
    jobs.claim_job(job.public_id)
    age(turn.session, timedelta(hours=1))
    assert housekeeping.erase_deleted() == 0
    adapter = make_adapter(alice, 2, AdapterState.LIVE)
    TrainingSample.objects.update(state=SampleState.TRAINED, adapter=adapter)
    assert housekeeping.erase_deleted() == 1
    event = Event.objects.get(user=alice, kind="chat_erased")
    assert event.text == "ratings in it were learned in v2"


def test_a_deleted_chats_name_is_free_for_a_new_one(alice: User) -> None:
    first = sessions.open_session(user=alice, external_id="diary")
    housekeeping.delete_session(first)
    second = sessions.open_session(user=alice, external_id="diary")
    assert second.pk != first.pk
    assert sessions.open_session(user=alice, external_id="diary").pk == second.pk


def test_undone_it_is_found_again_though_its_client_went_on(client: Client, alice: User) -> None:
    """A client may send the session's own id, which is then the name of a new one."""
    client.force_login(alice)
    first = make_turn(alice, source="api").session
    first.external_id = "diary"
    first.save()
    name = first.public_id
    housekeeping.delete_session(first)
    second = sessions.open_session(user=alice, external_id=name)
    make_turn(alice, session=second)
    assert sessions.open_session(user=alice, external_id=name).pk == second.pk
    housekeeping.restore_session(first)
    assert sessions.open_session(user=alice, external_id=name).pk == first.pk
    assert sessions.open_session(user=alice, external_id="diary").pk == first.pk
    assert client.get(address(first)).json()["id"] == name
    assert client.get(f"/chat/{name}/").status_code == 200
    assert client.get(address(second)).json()["id"] == second.public_id


def test_a_chat_that_is_had_back_while_others_are_erased_stays(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_turn(alice).session, make_turn(alice).session
    for session in (first, second):
        age(session, timedelta(minutes=11))
    erase = housekeeping._erase

    def slow(session: ChatSession) -> int:
        other = second if session.pk == first.pk else first
        erased = erase(session)
        if ChatSession.objects.filter(pk=other.pk).exists():
            housekeeping.restore_session(other)
        return erased

    monkeypatch.setattr(housekeeping, "_erase", slow)
    assert housekeeping.erase_deleted() == 1
    assert ChatSession.objects.filter(user=alice, deleted_at=None).count() == 1


@pytest.mark.parametrize(
    "words", ["coffee", "COFFEE", "grüße", "ÄRZTE", "ärzte", "жду", "beans are", 'say "hi"']
)
def test_chats_are_found_by_name_question_and_reply(alice: User, bob: User, words: str) -> None:
    """By letters of all scripts in capitals or not; and a name that nobody said in the chat."""
    reply = 'The beans are roasted. Жду. say "hi"'
    turn = make_turn(alice, "How is Coffee made? Grüße", reply=reply)
    housekeeping.edit_session(turn.session, title="Ärzte")
    make_turn(alice, "Something else")
    make_turn(bob, "How is Coffee made?", reply="The beans are roasted.")
    found = list(sessions_with(alice, words))
    assert [session.pk for session in found] == [turn.session_id]


@pytest.mark.parametrize("words", ["user", "role", "content", "[{", "\\n"])
def test_what_nobody_said_finds_no_chat(alice: User, words: str) -> None:
    make_turn(alice, "two\nlines", reply="Yes.")
    assert not sessions_with(alice, words)


@pytest.mark.parametrize("words", ['"hi"', "C:\\new", "\u00dcber", "100%"])
def test_a_question_is_found_by_any_of_its_characters(alice: User, words: str) -> None:
    turn = make_turn(alice, 'say "hi" in C:\\new, \u00dcber 100% of it', reply="Yes.")
    make_turn(alice, "Something else", reply="Yes.")
    assert [row.pk for row in sessions_with(alice, words)] == [turn.session_id]


def test_the_list_groups_by_day_with_pinned_ones_above(alice: User) -> None:
    now = timezone.now()
    ages = {"new": 0, "old": 40, "yesterday": 1, "week": 5}
    for name, number in ages.items():
        session = make_turn(alice).session
        ChatSession.objects.filter(pk=session.pk).update(
            title=name, updated_at=now - timedelta(days=number), pinned=name == "old"
        )
    shown = [(day, [row.title for row in rows]) for day, rows in listed(alice)["days"]]
    assert shown == [
        ("Pinned", ["old"]),
        ("Today", ["new"]),
        ("Yesterday", ["yesterday"]),
        ("Last 7 days", ["week"]),
    ]


def test_the_list_leads_on_to_older_chats(client: Client, alice: User) -> None:
    ChatSession.objects.bulk_create(
        ChatSession(user=alice, title=f"chat {number}") for number in range(LISTED + 2)
    )
    client.force_login(alice)
    first = client.get("/parts/sessions/").text
    assert first.count("data-session=") == LISTED
    assert f'data-show="{2 * LISTED}"' in first
    assert "data-show" in client.get("/chat/").text
    for show in (2 * LISTED, 10**17):
        rest = client.get("/parts/sessions/", {"show": show, "q": "chat"}).text
        assert (rest.count("data-session="), "data-show" in rest) == (LISTED + 2, False)
    for nonsense in ("x", "²", "-3", "1"):
        assert client.get("/parts/sessions/", {"show": nonsense}).text == first


def test_a_temporary_chat_stores_no_text_and_is_not_listed(alice: User) -> None:
    session = sessions.open_session(user=alice, temporary=True)
    turn = make_turn(alice, "a secret", session=session)
    row = Turn.objects.get(pk=turn.pk)
    assert (row.recorded, row.input_messages) == (False, [])
    session.refresh_from_db()
    assert session.title == ""
    assert listed(alice)["days"] == []
    with pytest.raises(NotRecorded):
        feedback.rate_turn(turn=row, author=alice, changes={"value": 1})


def test_the_texts_of_a_temporary_chat_are_there_for_a_while(alice: User) -> None:
    session = sessions.open_session(user=alice, temporary=True)
    turn = make_turn(alice, "a secret", session=session)
    valkey.keep_text(turn.public_id, {"input": [], "reply": "psst"})
    assert reply_of(turn) == "psst"
