"""Limits per key: what is let in, what is refused and until when, and who counts it."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client

from clawweb import limits, valkey
from clawweb.api.admission import within_limits
from clawweb.config import ROOT
from clawweb.models import ApiKey, Turn, User
from clawweb.orm import in_db
from clawweb.services import accounts
from tests.generating import eventually, generating
from tests.judging import Setting

pytestmark = [pytest.mark.queue, pytest.mark.usefixtures("valkey_server")]
wire = pytest.mark.django_db(transaction=True, serialized_rollback=True)
TIME = "redis.call('TIME')"


def key_with(pk: int = 1, **own: int | None) -> ApiKey:
    """Not saved: limits ask no table."""
    unlimited = {"requests_per_minute": 0, "tokens_per_minute": 0, "concurrent": 0}
    return ApiKey(pk=pk, **{**unlimited, **own})


def refusal(key: ApiKey) -> limits.Refused:
    with pytest.raises(limits.Refused) as caught:
        limits.enter(key)
    return caught.value


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Seconds pass on the clock of Valkey's scripts, which stands still else: nobody waits for it,
    and a machine that is slow changes nothing."""
    names = {"enter": limits._ENTER, "book": limits._BOOK, "renew": limits._RENEW}
    now = int(time.time())

    def passed(seconds: int) -> None:
        nonlocal now
        now += seconds
        for name, text in names.items():
            assert TIME in text
            clock = f"local function clock() return {{{now}, 0}} end\n"
            script = limits._STORE.client.register_script(clock + text.replace(TIME, "clock()"))
            monkeypatch.setattr(limits._STORE, name, script)

    passed(0)
    return passed


def test_a_keys_own_limits_come_before_the_installations() -> None:
    own = limits.limits_of(ApiKey(pk=1, requests_per_minute=0, concurrent=3))
    assert own == limits.Limits(requests=0, tokens=0, concurrent=3)
    assert limits.limits_of(ApiKey(pk=1)).requests == 600


def test_requests_beyond_the_limit_are_refused_and_count_nowhere() -> None:
    key = key_with(requests_per_minute=2, concurrent=9)
    left = [limits.enter(key).headers["x-ratelimit-remaining-requests"] for _ in range(2)]
    assert left == ["1", "0"]
    for _ in range(3):
        assert refusal(key).headers["x-ratelimit-remaining-requests"] == "0"
    with valkey.connect() as client:
        assert sum(map(int, client.hvals("limit:{1}:requests"))) == 2
        assert client.zcard("limit:{1}:places") == 2


def test_keys_do_not_share_limits() -> None:
    limits.enter(key_with(1, requests_per_minute=1))
    limits.enter(key_with(2, requests_per_minute=1))
    refusal(key_with(1, requests_per_minute=1))


def test_who_waits_as_told_is_let_in_and_no_sooner(passes: Callable[[int], None]) -> None:
    key = key_with(requests_per_minute=2)
    limits.enter(key)
    passes(30)
    limits.enter(key)
    assert refusal(key).headers["Retry-After"] == "30"
    passes(29)
    assert refusal(key).headers["Retry-After"] == "1"
    passes(1)
    limits.enter(key)
    refusal(key)  # of the two places only the older one is free by now


def test_the_reset_header_says_when_all_is_free() -> None:
    headers = limits.enter(key_with(requests_per_minute=60)).headers
    assert headers["x-ratelimit-limit-requests"] == "60"
    reset = headers["x-ratelimit-reset-requests"]
    assert reset == "1m0s" or 58 < float(reset.removesuffix("s")) < 60
    assert "x-ratelimit-limit-tokens" not in headers  # there is no such limit


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [(0, "0s"), (350, "350ms"), (12500, "12.5s"), (60000, "1m0s"), (61250, "1m1.25s")],
)
def test_durations_are_written_as_openai_writes_them(milliseconds: int, written: str) -> None:
    assert limits._duration(milliseconds) == written


def test_tokens_are_booked_when_the_reply_ends_and_then_refuse() -> None:
    key = key_with(tokens_per_minute=100)
    assert limits.enter(key).headers["x-ratelimit-remaining-tokens"] == "100"
    limits.book(key, 70)
    assert limits.enter(key).headers["x-ratelimit-remaining-tokens"] == "30"
    limits.book(key, 70)
    refused = refusal(key)
    assert "140 of 100 tokens" in str(refused)
    assert 50 <= int(refused.headers["Retry-After"]) <= 60


def test_retry_after_waits_for_the_slower_of_two_limits(passes: Callable[[int], None]) -> None:
    key = key_with(requests_per_minute=1, tokens_per_minute=10)
    limits.enter(key)
    passes(4)
    limits.book(key, 10)
    passes(1)
    assert refusal(key).headers["Retry-After"] == "59"


def test_requests_at_once_are_freed_when_they_are_left() -> None:
    key = key_with(concurrent=2)
    first, _ = limits.enter(key), limits.enter(key)
    refused = refusal(key)
    assert refused.headers["Retry-After"] == "1"
    limits.leave(first)
    limits.leave(first)  # twice gives one place back, not two
    limits.enter(key)
    refusal(key)


def test_a_place_that_was_given_back_is_not_renewed() -> None:
    key = key_with(concurrent=1)
    place = limits.enter(key)
    limits.leave(place)
    limits._KEPT[place.name] = place  # as another thread had seen it just before
    limits.renew_places()
    limits.enter(key)


def test_places_of_a_killed_process_are_freed_and_those_of_a_living_one_kept(
    passes: Callable[[int], None],
) -> None:
    key = key_with(concurrent=1)
    limits.enter(key)
    for _ in range(3):
        passes(limits.LEASE_SECONDS - 1)
        limits.renew_places()
    refusal(key)
    limits._KEPT.clear()  # as a killed process renews nothing
    passes(limits.LEASE_SECONDS - 1)
    refusal(key)
    passes(1)
    limits.enter(key)


def test_a_killed_web_process_frees_its_places_within_a_minute() -> None:
    assert limits.LEASE_SECONDS + limits.RENEW_SECONDS <= 60
    assert limits.RENEW_SECONDS * 2 < limits.LEASE_SECONDS


ASK_MUCH = """
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "clawweb.settings"
django.setup()
from clawweb import limits
from clawweb.models import ApiKey
key = ApiKey(pk=7, requests_per_minute=50, tokens_per_minute=0, concurrent=20)
entered = 0
for _ in range(60):
    try:
        limits.enter(key)
        entered += 1
    except limits.Refused:
        pass
print(entered)
"""


def test_several_processes_share_one_count() -> None:
    command = [sys.executable, "-c", ASK_MUCH]
    processes = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    counts = [int(process.communicate(timeout=300)[0]) for process in processes]
    assert sum(counts) == 20  # their places are leased still: nobody left


def test_threads_that_ask_at_once_get_exactly_the_limit() -> None:
    key = key_with(requests_per_minute=25)
    gate = threading.Barrier(10)

    def ask(_: int) -> int:
        gate.wait()
        entered = 0
        for _ in range(10):
            try:
                limits.enter(key)
                entered += 1
            except limits.Refused:
                pass
        return entered

    with ThreadPoolExecutor(10) as pool:
        assert sum(pool.map(ask, range(10))) == 25


def test_without_valkey_nothing_is_limited_and_that_is_said_once(
    setting: Setting, monkeypatch: Any, caplog: Any
) -> None:
    setting(redis_url="unix:///nowhere/valkey.sock")
    monkeypatch.setattr(limits, "_STORE", limits._Store())
    monkeypatch.setattr(limits, "DOWN_SECONDS", 0)
    key = key_with(requests_per_minute=1, tokens_per_minute=1, concurrent=1)
    for _ in range(3):
        place = limits.enter(key)
        limits.book(key, 5)
        limits.leave(place)
    assert place.headers == {}
    assert [record.message[:14] for record in caplog.records] == ["Valkey is down"]


# On the wire

URL = "/v1/chat/completions"


async def ask(plain: str, **body: Any) -> Any:
    body.setdefault("messages", [{"role": "user", "content": "hello there"}])
    return await AsyncClient().post(
        URL,
        json.dumps(body),
        content_type="application/json",
        headers={"Authorization": f"Bearer {plain}"},
    )


async def limited(user: User, **own: int) -> str:
    key, plain = await in_db(accounts.make_key, user=user, name="t")
    await in_db(ApiKey.objects.filter(pk=key.pk).update, **own)
    return plain


def places() -> int:
    with valkey.connect() as client:
        return sum(client.zcard(name) for name in client.keys("limit:*:places"))


@wire
async def test_the_429_is_openais_and_says_when_to_come_back(alice, engine):
    plain = await limited(alice, requests_per_minute=1)
    async with generating():
        first = await ask(plain)
        second = await ask(plain)
    assert (first.status_code, first["x-ratelimit-remaining-requests"]) == (200, "0")
    assert second.status_code == 429
    error = second.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert 1 <= int(second["Retry-After"]) <= 60
    assert await in_db(Turn.objects.count) == 1


@wire
async def test_a_refused_and_a_bad_request_say_what_is_left_too(alice, engine):
    plain = await limited(alice, requests_per_minute=9, tokens_per_minute=99)
    answer = await ask(plain, messages=[])
    assert answer.status_code == 400
    assert answer["x-ratelimit-remaining-requests"] == "8"
    assert answer["x-ratelimit-remaining-tokens"] == "99"


@wire
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answered_request_gives_its_place_back(alice, engine, stream):
    plain = await limited(alice, concurrent=1)
    async with generating():
        for _ in range(2):
            answer = await ask(plain, stream=stream)
            assert answer.status_code == 200
            if stream:
                assert places() == 1
                async for _part in answer.streaming_content:
                    pass
                answer.close()  # as the server does
            await eventually(lambda: places() == 0)


@wire
async def test_a_stream_that_nobody_is_there_to_read_gives_its_place_back():
    async def stream() -> Any:
        return StreamingHttpResponse(iter(()))

    response = await within_limits(key_with(concurrent=1), stream, generates=True)
    assert places() == 1
    del response  # as the server does when the caller hung up before the first byte
    gc.collect()
    assert places() == 0


@wire
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_books_its_prompt_and_its_tokens(alice, engine, stream):
    plain = await limited(alice, tokens_per_minute=10_000)
    async with generating():
        answer = await ask(plain, stream=stream)
        if stream:
            async for _part in answer.streaming_content:
                pass
    turn = await in_db(Turn.objects.get)

    def booked() -> int:
        with valkey.connect() as client:
            names = client.keys("limit:*:tokens")
            return sum(int(count) for name in names for count in client.hvals(name))

    await eventually(lambda: booked() == len(turn.prompt_ids) + len(turn.response_ids) > 0)


@wire
async def test_a_caller_that_hangs_up_pays_for_what_was_written(alice, engine):
    engine._seconds_per_word = 0.05
    plain = await limited(alice, tokens_per_minute=10_000, concurrent=1)
    async with generating():
        asking = asyncio.create_task(
            ask(plain, messages=[{"role": "user", "content": "word " * 400}])
        )
        await eventually(Turn.objects.filter(state="streaming").exclude(reply="").exists)
        asking.cancel()
        await eventually(lambda: places() == 0)
        await eventually(lambda: valkey.connect().keys("limit:*:tokens") != [])


@wire
async def test_models_count_as_requests_only(alice, engine):
    plain = await limited(alice, requests_per_minute=5, concurrent=1)
    answer = await AsyncClient().get("/v1/models", headers={"Authorization": f"Bearer {plain}"})
    assert answer["x-ratelimit-remaining-requests"] == "4"
    assert places() == 0


@wire
async def test_wrong_keys_are_counted_by_address_and_hold_up_nobody_else(
    alice, engine, monkeypatch
):
    monkeypatch.setattr(limits, "WRONG_KEYS", 3)
    codes = [(await ask("claw-wrong")).status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    async with generating():
        assert (await ask(await limited(alice))).status_code == 200


# On pages


@pytest.fixture
def hers(alice: User) -> ApiKey:
    return accounts.make_key(user=alice, name="laptop")[0]


def test_the_settings_page_shows_what_a_key_may_ask_for(client: Client, hers: ApiKey) -> None:
    ApiKey.objects.filter(pk=hers.pk).update(tokens_per_minute=5000, concurrent=0)
    client.force_login(hers.user)
    page = client.get("/settings/").content.decode()
    assert "600 requests a minute" in page
    assert "5000 tokens a minute" in page
    assert "requests at once" not in page
    ApiKey.objects.update(requests_per_minute=1, tokens_per_minute=1, concurrent=1)
    for language, words in (("en", "1 request at once"), ("de", "1 Anfrage pro Minute")):
        page = client.get("/settings/", headers={"Accept-Language": language}).content.decode()
        assert words in page


def test_an_admin_sets_a_keys_limits_and_nothing_else_of_it(
    client: Client, admin: User, hers: ApiKey
) -> None:
    client.force_login(admin)
    path = f"/admin/clawweb/apikey/{hers.pk}/change/"
    assert "requests_per_minute" in client.get(path).content.decode()
    form = {"requests_per_minute": "7", "tokens_per_minute": "", "concurrent": "0", "name": "mine"}
    assert client.post(path, form).status_code == 302
    hers.refresh_from_db()
    assert limits.limits_of(hers) == limits.Limits(requests=7, tokens=0, concurrent=0)
    assert hers.name == "laptop"
