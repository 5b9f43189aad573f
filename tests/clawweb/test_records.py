"""A user's data out and in again: shapes, round trips, hostile files."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from clawweb.models import (
    ChatSession,
    Consent,
    DropReason,
    Feedback,
    SampleState,
    Turn,
    User,
)
from clawweb.selectors.chat import messages_for, reply_message
from clawweb.selectors.placing import history_hash
from clawweb.selectors.records import conversation_lines, lines_of
from clawweb.services import feedback, housekeeping, imports
from clawweb.services.errors import NotRecorded
from clawweb.services.imports import Import
from tests.factories import make_turn, up
from tests.recorded import Line, brought_in, conversation, exported

pytestmark = pytest.mark.usefixtures("valkey_server", "engine")


def plain(lines: list[Line]) -> list[Line]:
    """The lines with their ids told by their order, so that copies under other ids compare."""
    names: dict[str, str] = {}
    for line in lines:
        names.setdefault(line["id"], f"{line['type']}-{len(names)}")

    def renamed(line: Line) -> Line:
        links = ("id", "session", "parent", "context_start")
        return {
            key: names[value] if key in links and value is not None else value
            for key, value in line.items()
            if key != "updated_at" or line["type"] == "session"
        }

    return [renamed(line) for line in lines]


# Conversations


def test_a_conversation_comes_back_as_it_was(alice: User) -> None:
    conversation(alice)
    before = exported(alice)
    ChatSession.objects.all().delete()
    report = brought_in(alice, before).report
    assert (report.sessions, report.turns, report.left_out) == (1, 4, 0)
    assert exported(alice) == before


def test_how_a_chat_is_kept_comes_back_and_a_deleted_one_is_in_no_file(alice: User) -> None:
    conversation(alice)
    kept, deleted = ChatSession.objects.get(), make_turn(alice).session
    ChatSession.objects.filter(pk=kept.pk).update(pinned=True, temporary=True)
    housekeeping.delete_session(deleted)
    lines = exported(alice)
    assert {line["id"] for line in lines if line["type"] == "session"} == {kept.public_id}
    ChatSession.objects.all().delete()
    brought_in(alice, lines)
    kept = ChatSession.objects.get()
    assert (kept.pinned, kept.temporary) == (True, True)


def test_the_file_says_who_follows_whom_and_what_was_said(alice: User) -> None:
    first, again, after, side = conversation(alice)
    lines = {line["id"]: line for line in exported(alice)}
    assert lines[first.session.public_id]["type"] == "session"
    assert lines[again.public_id]["parent"] is None
    assert lines[after.public_id]["parent"] == again.public_id
    assert lines[after.public_id]["tool_calls"][0]["function"]["name"] == "look"
    assert lines[after.public_id]["adapter"] == "abcdefab-u1-v2-01234567"
    assert lines[side.public_id]["turn_type"] == "side"
    said = lines[first.public_id]["feedback"]
    assert [row["value"] for row in said] == [-1, -1]
    assert said[-1]["reasons"][0]["slug"] == "too_long"
    assert said[-1]["correction"] == "Drops of water."
    assert not {"prompt_ids", "response_ids", "logprobs"} & set(lines[first.public_id])


def test_a_file_holds_ones_own_only(alice: User, bob: User) -> None:
    make_turn(alice, "Alice asks")
    make_turn(bob, "Bob asks")
    for shape in ("conversations", "kto", "dpo", "sft"):
        assert "Bob" not in json.dumps(exported(alice, shape))


def test_the_same_file_twice_doubles_nothing(alice: User, bob: User) -> None:
    conversation(alice)
    lines = exported(alice)
    assert brought_in(alice, lines).report.known == 4
    for _ in range(2):  # whoever has other ids for it
        brought_in(bob, lines)
    assert Turn.objects.count() == 8
    assert Feedback.objects.filter(author=bob).count() == 3


def test_another_persons_ids_are_not_taken_over(alice: User, bob: User) -> None:
    conversation(alice)
    brought_in(bob, exported(alice))
    ids = [set(Turn.objects.filter(session__user=user).values_list("public_id", flat=True))
           for user in (alice, bob)]  # fmt: skip
    assert not ids[0] & ids[1]
    assert plain(exported(bob)) == plain(exported(alice))


def test_what_was_deleted_a_moment_ago_comes_in_anew(alice: User) -> None:
    """Not into the chat that is about to be erased; and that one may still be had back."""
    conversation(alice)
    lines = exported(alice)
    ChatSession.objects.update(external_id="mine")
    lines[0]["external_id"] = "mine"
    for count in (2, 3):
        deleted = ChatSession.objects.get(deleted_at=None)
        housekeeping.delete_session(deleted)
        for report in (brought_in(alice, lines).report, brought_in(alice, lines).report):
            assert (report.turns + report.known, report.left_out) == (4, 0)
        assert plain(exported(alice)) == plain(lines)
        assert ChatSession.objects.count() == count
    housekeeping.restore_session(deleted)
    assert len(exported(alice)) == 2 * len(lines)


def test_what_a_later_file_adds_is_added(alice: User, bob: User) -> None:
    turn = make_turn(alice, "One")
    brought_in(bob, exported(alice))
    make_turn(alice, "Two", session=turn.session, parent=turn)
    report = brought_in(bob, exported(alice)).report
    assert (report.sessions, report.turns, report.known) == (0, 1, 1)


def test_a_conversation_that_its_client_rewrote_comes_back_so(alice: User, bob: User) -> None:
    first = make_turn(alice, "A long story", source="api")
    anew = make_turn(alice, "It was short", source="api", session=first.session, parent=first)
    Turn.objects.filter(pk=anew.pk).update(context_start=anew)
    up(anew)
    brought_in(bob, exported(alice))
    copy = Turn.objects.filter(session__user=bob).last()
    assert copy is not None
    assert copy.context_start_id == copy.pk
    for user in (alice, bob):
        prompt = exported(user, "kto")[0]["prompt"]
        assert [message["content"] for message in prompt] == ["It was short"]


def test_a_stub_stays_a_stub(alice: User, bob: User) -> None:
    alice.consent = Consent.NOTHING
    alice.save()
    make_turn(alice, "secret", reply="")
    lines = exported(alice)
    assert "secret" not in json.dumps(lines)
    brought_in(bob, lines)
    assert Turn.objects.get(session__user=bob).recorded is False


def test_ratings_that_came_in_do_not_train(alice: User, bob: User) -> None:
    """Their replies have no token ids: not the vote, not the hint, not the correction."""
    conversation(alice)
    brought_in(bob, exported(alice))
    samples = bob.samples.all()
    assert {(row.state, row.drop_reason) for row in samples} == {
        (SampleState.DROPPED, DropReason.NO_LOGPROBS)
    }
    turn = Turn.objects.filter(session__user=bob, reply="Rain").get()
    Turn.objects.filter(pk=turn.pk).update(turn_type="main")
    turn.refresh_from_db()
    feedback.rate_turn(turn=turn, author=bob, changes={"correction": "The rain"})
    assert turn.samples.get().drop_reason == DropReason.NO_LOGPROBS


def test_who_keeps_nothing_brings_nothing_in(alice: User) -> None:
    alice.consent = Consent.NOTHING
    alice.save()
    with pytest.raises(NotRecorded):
        Import(alice)


def test_a_program_goes_on_with_a_session_that_came_in(alice: User, bob: User) -> None:
    from clawweb.services.sessions import place

    turn = make_turn(alice, "One", reply="1")
    ChatSession.objects.filter(pk=turn.session_id).update(external_id="count")
    brought_in(bob, exported(alice))
    messages: Any = [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "Two"},
    ]
    found = place(user=bob, api_key=None, name="count", messages=messages)
    assert found.session.user == bob
    assert found.parent is not None
    assert found.parent.reply == "1"
    assert [message["content"] for message in found.messages] == ["Two"]


def test_a_long_conversation_is_not_read_again_for_each_line(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Line] = [{"type": "session", "version": 1, "id": "mine"}]
    for number in range(20):
        parent = f"t{number - 1}" if number else None
        turn = {"type": "turn", "version": 1, "id": f"t{number}", "session": "mine"}
        lines.append({**turn, "parent": parent, "input": [], "reply": f"{number}"})
    brought_in(alice, lines[:10])
    read: list[Turn] = []
    monkeypatch.setattr(
        imports,
        "messages_for",
        lambda turn, whole: read.append(turn) or messages_for(turn, whole=whole),
    )
    brought_in(alice, lines)
    assert len(read) == 1
    last = Turn.objects.order_by("id").last()
    assert last is not None
    assert last.history_hash == history_hash([*messages_for(last, whole=True), reply_message(last)])


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
SAID = st.fixed_dictionaries(
    {},
    optional={
        "value": st.sampled_from([1, -1, None]),
        "comment": WORDS,
        "correction": WORDS,
        "final": st.booleans(),
        "reasons": st.lists(st.fixed_dictionaries({"slug": st.just("long"), "hint": WORDS})),
    },
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "follows": st.integers(0, 5),
            "input": st.lists(
                st.fixed_dictionaries(
                    {"role": st.sampled_from(["system", "user", "tool"]), "content": WORDS}
                ),
                max_size=2,
            ),
            "reply": WORDS.map(lambda words: words + "."),
            "turn_type": st.sampled_from(["main", "side"]),
            "feedback": st.lists(SAID, max_size=2),
            "created_at": st.datetimes().map(lambda at: at.isoformat() + "Z"),
        }
    ),
    max_size=5,
)


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(turns=TURNS, title=WORDS)
def test_any_conversation_goes_round(alice: User, bob: User, turns: list[Line], title: str) -> None:
    ChatSession.objects.all().delete()
    lines: list[Line] = [{"type": "session", "version": 1, "id": "mine", "title": title}]
    for number, turn in enumerate(turns):
        follows = turn.pop("follows")
        parent = f"t{follows % number}" if number and follows else None
        lines.append(
            {"type": "turn", "version": 1, "id": f"t{number}", "session": "mine", "parent": parent}
            | turn
        )
    report = brought_in(alice, lines).report
    assert report.reasons == []
    once = exported(alice)
    assert [line["reply"] for line in once[1:]] == [turn["reply"] for turn in turns]
    brought_in(bob, once)
    assert plain(exported(bob)) == plain(once)


# Samples for TRL


def test_ratings_are_labels(alice: User) -> None:
    conversation(alice)
    rows = exported(alice, "kto")
    assert [(row["completion"], row["label"]) for row in rows] == [
        ([{"role": "assistant", "content": "Water."}], False),
        ([{"role": "assistant", "content": "Water that falls."}], True),
    ]
    assert rows[0]["prompt"] == [{"role": "user", "content": "What is rain?"}]


def test_a_correction_and_a_liked_sibling_are_chosen(alice: User) -> None:
    conversation(alice)
    rows = exported(alice, "dpo")
    assert [row["chosen"][0]["content"] for row in rows] == ["Drops of water.", "Water that falls."]
    assert {row["rejected"][0]["content"] for row in rows} == {"Water."}


def test_liked_replies_and_corrections_are_shown(alice: User) -> None:
    conversation(alice)
    ends = [row["messages"][-1]["content"] for row in exported(alice, "sft")]
    assert ends == ["Drops of water.", "Water that falls."]


def test_a_prompt_is_the_whole_branch_and_nothing_beside_it(alice: User) -> None:
    first, again, _, _ = conversation(alice)
    last = make_turn(alice, "Why?", session=first.session, parent=again, reply="So.")
    up(last)
    row = exported(alice, "kto")[-1]
    said = [(message["role"], message["content"]) for message in row["prompt"]]
    assert said == [
        ("user", "What is rain?"),
        ("assistant", "Water that falls."),
        ("user", "Why?"),
    ]


def test_columns_are_the_same_in_every_line(alice: User) -> None:
    """Readers of tables take them from the first lines: what has tools comes first."""
    up(make_turn(alice))
    first, _, after, _ = conversation(alice)
    last = make_turn(alice, "Thanks", session=first.session, parent=after, reply="Sure.")
    up(last)
    rows = exported(alice, "sft")
    assert {tuple(row) for row in rows} == {("messages", "tools")}
    assert rows[2]["messages"][3]["tool_calls"][0]["id"] == "call-1"
    assert [len(json.loads(row["tools"])) for row in rows] == [0, 0, 0, 0]


def test_what_was_taken_back_or_not_kept_gives_no_sample(alice: User) -> None:
    taken_back = make_turn(alice)
    up(taken_back)
    feedback.rate_turn(turn=taken_back, author=alice, changes={"value": None})
    stub = make_turn(alice, recorded=False)
    after = make_turn(alice, session=stub.session, parent=stub)
    up(after)
    assert exported(alice, "kto") == []


def test_what_an_imported_file_says_can_be_exported_for_trl(alice: User, bob: User) -> None:
    conversation(alice)
    brought_in(bob, exported(alice))
    for shape in ("kto", "dpo", "sft"):
        assert exported(bob, shape) == exported(alice, shape)


def test_no_step_of_an_export_is_forgotten(alice: User) -> None:
    conversation(alice)
    steps, lines = lines_of(alice, "conversations")
    assert steps == len(list(lines)) == 5
    steps, lines = lines_of(alice, "kto")
    assert steps == len(list(lines)) == 2


def test_what_is_being_written_is_left_for_the_next_export(alice: User) -> None:
    turn = make_turn(alice)
    Turn.objects.filter(pk=turn.pk).update(state="streaming")
    assert [line["type"] for line in conversation_lines(alice)] == ["session"]
