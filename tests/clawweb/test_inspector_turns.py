"""A turn in the inspector: its tokens in texts and colours, its prompt, other answers to it."""

from __future__ import annotations

import json
import math
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from clawweb.engine import current_template_hash
from clawweb.models import (
    TrainingSample,
    Turn,
    User,
)
from clawweb.selectors import tokens
from clawweb.services import comparisons
from rollouts.tokens import Decoder
from tests.factories import down, make_adapter, make_turn

pytestmark = pytest.mark.usefixtures("db", "valkey_server", "engine")


@pytest.fixture
def as_alice(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


# Tokens


def written(user: User, reply: str, effects: list[float] | None = None, **values: Any) -> Turn:
    """A rated turn whose ids are the tiny model's own (a token is a byte)."""
    from training.tiny import START  # what stands before every turn in its template

    ids = encoded(reply)
    values = {"logprobs": [math.log(0.5)] * len(ids), **values}
    prompt = encoded(f"{START}user\nwhat?")
    turn = make_turn(user, "what?", reply=reply, prompt_ids=prompt, response_ids=ids, **values)
    down(turn)
    TrainingSample.objects.filter(turn=turn).update(state="trained", token_effects=effects)
    return turn


def encoded(text: str) -> list[int]:
    from tokenizers import Tokenizer

    from clawweb.config import config

    path = str(config().model_folder / "tokenizer.json")
    ids: list[int] = Tokenizer.from_file(path).encode(text).ids
    return ids


def test_a_replys_tokens_carry_the_hints_effect(alice: User) -> None:
    turn = written(alice, "ab é", [2.0, -0.7, 0.05, 0.25, 0.5])
    seen = tokens.heat(turn, tokens.EFFECT)
    assert seen is not None
    assert [(t.text, t.value, t.level) for t in seen.tokens] == [
        ("a", 2.0, "more3"), ("b", -0.7, "less2"), (" ", 0.05, ""), ("é", 0.75, "more2"),
    ]  # fmt: skip
    assert seen.tokens[0].words == "7.4 times as likely with your note (+2.00)"
    assert seen.tokens[1].words == "2.0 times less likely with your note (-0.70)"


def test_tokens_that_did_not_train_have_no_number(alice: User) -> None:
    seen = tokens.heat(written(alice, "abc", [1.0, 1.0]), tokens.EFFECT)
    assert seen is not None
    assert [t.value for t in seen.tokens] == [1.0, 1.0, None]
    assert (seen.measured, seen.tokens[2].level, seen.tokens[2].words) == (2, "", "not measured")


def test_a_reply_is_coloured_only_by_what_was_measured(alice: User) -> None:
    assert tokens.heats_of(written(alice, "ab", [0.1, 0.1])) == ["effect", "likelihood"]
    assert tokens.heats_of(written(alice, "ab")) == ["likelihood"]
    bare = written(alice, "ab", logprobs=None)
    assert tokens.heats_of(bare) == []
    assert tokens.heat(bare, tokens.LIKELIHOOD) is None


def test_likelihoods_are_said_as_shares(alice: User) -> None:
    chances = [0.95, 0.5, 0.04, 0.001]
    turn = written(alice, "abcd", logprobs=[math.log(chance) for chance in chances])
    seen = tokens.heat(turn, tokens.LIKELIHOOD)
    assert seen is not None
    assert [t.level for t in seen.tokens] == ["", "rare1", "rare4", "rare5"]
    assert [t.words.split(" likely")[0] for t in seen.tokens] == ["95%", "50%", "4%", "0.1%"]


def test_the_prompt_shows_the_models_own_signs(alice: User) -> None:
    runs, by_number = tokens.prompt_tokens(written(alice, "ab")) or ([], True)
    assert not by_number
    assert [(run.text, run.is_control) for run in runs] == [
        ("<|im_start|>", True), ("user\nwhat?", False),
    ]  # fmt: skip


def test_a_reply_of_another_tokenizer_is_shown_by_numbers(
    as_alice: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = written(alice, "ab", [1.0, 1.0], template_hash="another")
    seen = tokens.heat(turn, tokens.EFFECT)
    assert seen is not None
    assert seen.by_number
    assert [t.text for t in seen.tokens] == [f"{number} " for number in turn.response_ids]
    assert "shown by their numbers" in as_alice.get(page_of(turn)).content.decode()
    monkeypatch.setattr(tokens, "decoder", lambda: None)  # a file of another kind
    Turn.objects.filter(pk=turn.pk).update(template_hash=current_template_hash())
    turn.refresh_from_db()
    assert (tokens.heat(turn, tokens.EFFECT) or seen).by_number


def test_a_tokenizer_that_cannot_be_read_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from clawweb import engine

    def broken(self: Decoder, folder: Any) -> None:
        raise Exception("data did not match any variant")  # as the library says it

    monkeypatch.setattr(Decoder, "__init__", broken)
    engine.decoder.cache_clear()
    assert engine.decoder() is None
    engine.decoder.cache_clear()


# Pages


def page_of(turn: Turn) -> str:
    return f"/sessions/{turn.session.public_id}/"


def test_a_reply_is_shown_in_colours_first_and_as_text_when_asked(
    as_alice: Client, alice: User
) -> None:
    turn = written(alice, "a<b", [2.0, 0.0, -2.0])
    html = as_alice.get(page_of(turn)).content.decode()
    assert '<span class="more3" title="7.4 times as likely with your note (+2.00)">a</span>' in html
    assert ">&lt;</span>" in html
    assert "Loading" in html  # the prompt is fetched when it is asked for
    part = f"/parts/turns/{turn.public_id}/"
    plain = as_alice.get(f"{part}?reply=text").content.decode()
    assert 'class="more3"' not in plain
    assert '<div class="words theirs" dir="auto">a&lt;b</div>' in plain
    assert 'class="rare1"' in as_alice.get(f"{part}?reply=likelihood").content.decode()
    prompt = as_alice.get(f"{part}?prompt=1").content.decode()
    assert '<b class="control">&lt;|im_start|&gt;</b>user' in prompt


def test_while_a_reply_is_compared_blind_the_inspector_tells_no_version(
    as_alice: Client, alice: User, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawweb.services.serving.serve", lambda _: None)
    version = make_adapter(alice, 7, "live")
    turn = written(alice, "ab", version=7, adapter=version, adapter_name=version.name)
    comparisons.open_comparison(turn=turn, other="base")
    pages = [page_of(turn), f"/parts/turns/{turn.public_id}/?prompt=1"]
    for html in (as_alice.get(path).content.decode() for path in pages):
        assert "version hidden until you choose" in html
        assert "v7" not in html.replace("agent@v7", "")
        assert version.name not in html
        assert "im_start" not in html


def test_a_turn_is_answered_again_beside_its_reply_and_never_by_another_user(
    as_alice: Client, alice: User, bob: User, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clawweb.services.serving.serve", lambda _: None)
    make_adapter(alice, 2, "standby")
    turn, theirs = written(alice, "ab"), written(bob, "secret")
    html = as_alice.get(page_of(turn)).content.decode()
    assert f'data-replay="/api/turns/{turn.public_id}/compare"' in html
    assert re.findall(r'<option value="([^"]+)">v?', html)[-1] == "agent@v2"
    body = {"with": "agent@v2", "kind": "recheck"}
    answer = post_json(as_alice, f"/api/turns/{turn.public_id}/compare", body)
    assert answer.status_code == 202
    second = Turn.objects.get(public_id=answer.json()["second"]["id"])
    assert (second.asked, second.parent_id, second.turn_type) == ("agent@v2", None, "side")
    part = f"/parts/replays/{answer.json()['id']}/"
    assert "It is answering" in as_alice.get(part).content.decode()
    Turn.objects.filter(pk=second.pk).update(state="complete", reply="another way", version=2)
    shown = as_alice.get(part).content.decode()
    assert "another way" in shown
    assert "ab" in shown
    assert "another way" in as_alice.get(page_of(turn)).content.decode()
    assert post_json(as_alice, f"/api/turns/{theirs.public_id}/compare", body).status_code == 404
    as_bob = Client()
    as_bob.force_login(bob)
    assert as_bob.get(part).status_code == 404


def post_json(client: Client, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, json.dumps(body), content_type="application/json")


def test_a_long_silence_is_shown_between_turns(as_alice: Client, alice: User) -> None:
    first = make_turn(alice)
    second = make_turn(alice, session=first.session, parent=first)
    Turn.objects.filter(pk=second.pk).update(
        created_at=first.finished_at + timedelta(hours=2), finished_at=None
    )
    html = as_alice.get(page_of(first)).content.decode().replace("\xa0", " ")
    assert "2 hours later" in html
    assert html.count('class="rest"') == 1


@pytest.mark.parametrize("page", ["/sessions/{0}/", "/chat/{0}/", "/agent/"])
def test_a_page_asks_once_how_many_ratings_wait_whatever_it_lists(
    as_alice: Client, alice: User, django_assert_max_num_queries: Any, page: str
) -> None:
    turn = make_turn(alice)
    address = page.format(turn.session.public_id)
    down(turn)
    as_alice.get(address)  # what is looked up once in a process
    with django_assert_max_num_queries(200) as few:
        assert "counted (1 of 8)" in as_alice.get(address).content.decode()
    for _ in range(5):
        turn = make_turn(alice, session=turn.session, parent=turn)
        down(turn)
    with django_assert_max_num_queries(len(few)):
        assert as_alice.get(address).content.decode().count("counted (6 of 8)") >= 6


def test_a_turn_that_is_fetched_again_still_says_its_reasons(as_alice: Client, alice: User) -> None:
    turn = make_turn(alice)
    down(turn)
    whole = as_alice.get(f"/sessions/{turn.session.public_id}/").content.decode()
    part = as_alice.get(f"/parts/turns/{turn.public_id}/").content.decode()
    assert "<td>Too long</td>" in whole
    assert "<td>Too long</td>" in part


def test_a_very_long_message_is_folded(as_alice: Client, alice: User) -> None:
    for words, folded in (("short", False), ("long " * 1000, True)):
        turn = make_turn(alice, words)
        page = as_alice.get(page_of(turn)).content.decode()
        assert (f'id="{turn.public_id}-words"' in page) is folded


@pytest.mark.parametrize(
    ("reply", "state", "who"),
    [("", "failed", False), ("half a", "failed", True), ("", "complete", True)],
)
def test_nobody_is_said_to_have_given_a_reply_that_never_came(
    as_alice: Client, alice: User, reply: str, state: str, who: bool
) -> None:
    turn = make_turn(alice, reply=reply, state=state, error="The model server was away.")
    page = as_alice.get(f"/parts/turns/{turn.public_id}/").content.decode()
    assert ('<span class="chip">base model</span>' in page) is who
