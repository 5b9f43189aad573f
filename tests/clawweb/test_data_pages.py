"""Exports and imports from outside: the API and the page."""

from __future__ import annotations

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import AsyncClient, Client

from clawweb import transfer_run
from clawweb.models import Comparison, Judgement, Transfer, User
from clawweb.selectors.everything import everything
from clawweb.services import accounts, housekeeping, transfers
from tests.factories import down, make_turn
from tests.recorded import brought_in_by_worker, exported_by_worker

pytestmark = pytest.mark.usefixtures("valkey_server", "engine", "transfer_files")


# The API


def as_key(user: User, *scopes: str) -> dict[str, str]:
    _, plain = accounts.make_key(user=user, name="k", scopes=scopes or ("export",))
    return {"Authorization": f"Bearer {plain}"}


def test_a_program_exports_and_fetches(client: Client, alice: User) -> None:
    make_turn(alice, "Why?")
    headers = as_key(alice)
    made = client.post(
        "/api/exports", {"shape": "conversations"}, "application/json", headers=headers
    )
    assert made.status_code == 202
    assert (made.json()["state"], made.json()["file"]) == ("queued", None)
    address = f"/api/exports/{made.json()['id']}"
    early = client.get(f"{address}/file", headers=headers)
    assert (early.status_code, early.json()["title"]) == (409, "not_ready")

    transfer_run.run(made.json()["id"])
    told = client.get(address, headers=headers).json()
    assert (told["state"], told["done"], told["total"]) == ("done", 2, 2)
    assert told["file"] == f"{address}/file"


@pytest.mark.django_db(transaction=True, serialized_rollback=True)
async def test_the_file_is_sent_piece_by_piece(
    async_client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asgiref.sync import sync_to_async

    from clawweb.api import data

    def prepared() -> tuple[Transfer, dict[str, str]]:
        user = User.objects.create_user("carol")
        make_turn(user, "Why?")
        return exported_by_worker(user), as_key(user)

    monkeypatch.setattr(data, "BLOCK", 100)
    row, headers = await sync_to_async(prepared)()
    answer = await async_client.get(f"/api/exports/{row.public_id}/file", headers=headers)
    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/jsonl"
    assert answer["Content-Disposition"].startswith('attachment; filename="clawweb-conversations-')
    blocks = [block async for block in answer.streaming_content]
    assert b"".join(blocks) == transfers.file_of(row).read_bytes()
    assert len(blocks) > 5
    assert int(answer["Content-Length"]) == sum(map(len, blocks))


def test_others_transfers_are_not_there(client: Client, alice: User, bob: User) -> None:
    row = exported_by_worker(alice)
    taken = brought_in_by_worker(alice, b"{}")
    for address in (
        f"/api/exports/{row.public_id}",
        f"/api/exports/{row.public_id}/file",
        f"/api/imports/{taken.public_id}",
        f"/api/imports/{row.public_id}",
    ):
        assert client.get(address, headers=as_key(bob)).status_code == 404


def test_a_key_needs_the_scope(client: Client, alice: User) -> None:
    headers = as_key(alice, "chat", "feedback", "train", "read")
    for method, address in (
        ("post", "/api/exports"),
        ("get", "/api/exports/x"),
        ("get", "/api/exports/x/file"),
        ("post", "/api/imports"),
        ("get", "/api/imports/x"),
    ):
        assert getattr(client, method)(address, headers=headers).status_code == 403
        assert getattr(client, method)(address).status_code == 401


def test_an_erased_file_is_gone(client: Client, alice: User) -> None:
    row = exported_by_worker(alice)
    transfers.file_of(row).unlink()
    gone = client.get(f"/api/exports/{row.public_id}/file", headers=as_key(alice))
    assert (gone.status_code, gone.json()["title"]) == (410, "erased")


def test_an_unknown_shape_is_told(client: Client, alice: User) -> None:
    for shape in ("openclaw", "xml", 7):
        wrong = client.post(
            "/api/exports", {"shape": shape}, "application/json", headers=as_key(alice)
        )
        assert (wrong.status_code, wrong.json()["title"]) == (422, "invalid")


@pytest.mark.parametrize("kind", ["application/jsonl", "application/x-www-form-urlencoded", "form"])
def test_a_program_brings_a_file_in(client: Client, alice: User, bob: User, kind: str) -> None:
    """As a body (curl calls that a form) or as a field of a form."""
    make_turn(alice, "Why?")
    raw = transfers.file_of(exported_by_worker(alice)).read_bytes()
    if kind == "form":
        form = {"file": SimpleUploadedFile("mine.jsonl", raw)}
        made = client.post("/api/imports", form, headers=as_key(bob))
    else:
        made = client.post("/api/imports", raw, kind, headers=as_key(bob))
    assert made.status_code == 202
    transfer_run.run(made.json()["id"])
    told = client.get(f"/api/imports/{made.json()['id']}", headers=as_key(bob)).json()
    assert (told["state"], told["note"]) == ("done", "New sessions: 1, turns: 1, ratings: 0.")
    assert told["left_out"] == []


def test_a_large_body_is_no_memory_and_a_too_large_one_is_413(
    client: Client, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = as_key(alice)
    monkeypatch.setattr(transfers, "MAX_UPLOAD", 6_000_000)
    more_than_django_keeps = b"x" * 5_000_000
    made = client.post("/api/imports", more_than_django_keeps, "text/plain", headers=headers)
    assert made.status_code == 202
    transfer_run.run(made.json()["id"])
    refused = client.post("/api/imports", b"x" * 6_000_001, "text/plain", headers=headers)
    assert (refused.status_code, refused.json()["title"]) == (413, "too_large")


def test_an_empty_import_is_told(client: Client, alice: User) -> None:
    headers = as_key(alice)
    empty = client.post("/api/imports", b"", "text/plain", headers=headers)
    no_field = client.post("/api/imports", {"other": "field"}, headers=headers)
    assert [answer.status_code for answer in (empty, no_field)] == [409, 409]
    assert "`file`" in no_field.json()["detail"]


def test_the_calls_are_in_the_documentation(client: Client) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert set(paths["/api/imports"]["post"]["requestBody"]["content"]) == {
        "application/jsonl",
        "multipart/form-data",
    }
    assert "/api/exports/{transfer_id}/file" in paths


# The page


@pytest.fixture
def as_alice(client: Client, alice: User) -> Client:
    client.force_login(alice)
    return client


def test_the_page_shows_how_far_ones_own_are(as_alice: Client, alice: User, bob: User) -> None:
    exported_by_worker(bob)
    transfers.queue_export(user=alice, shape="kto")
    row = transfers.claim(Transfer.objects.get(user=alice).public_id)
    assert row
    transfers.advance(row, done=3, total=12)
    for address in ("/data/", "/parts/transfers/"):
        html = as_alice.get(address).content.decode()
        assert "3 of 12" in html
        assert html.count("data-transfer=") == 1
        assert "Download" not in html
    transfers.end(row, note="9 lines", file=transfers.folder() / "x", succeeded=True)
    html = as_alice.get("/data/").content.decode()
    assert f'href="/api/exports/{row.public_id}/file"' in html


def test_a_file_comes_in_by_the_page(as_alice: Client, alice: User) -> None:
    form = {"file": SimpleUploadedFile("mine.jsonl", b"<script>nonsense</script>\n")}
    assert as_alice.post("/data/import/", form)["Location"] == "/data/"
    transfer_run.run(Transfer.objects.get(user=alice).public_id)
    html = as_alice.get("/data/").content.decode()
    assert "Lines left out: 1." in html
    assert '<span class="chip failed">failed</span>' in html  # nothing of it was of any use
    assert "line 1: it is not JSON" in html
    assert "<script>nonsense" not in html
    as_alice.cookies["django_language"] = "de"
    html = as_alice.get("/data/").content.decode()
    assert "Weggelassene Zeilen: 1." in html
    assert "Zeile 1: sie ist kein JSON" in html


def test_what_the_page_cannot_take_it_says(as_alice: Client, alice: User) -> None:
    html = as_alice.post("/data/import/", {}, follow=True).content.decode()
    assert "Choose a file first." in html
    form = {"file": SimpleUploadedFile("mine.jsonl", b"{}\n")}
    as_alice.post("/data/import/", form)
    form = {"file": SimpleUploadedFile("mine.jsonl", b"{}\n")}
    html = as_alice.post("/data/import/", form, follow=True).content.decode()
    assert "Wait until it is done" in html


def test_the_sessions_page_leads_to_the_export(as_alice: Client, alice: User) -> None:
    make_turn(alice)
    assert 'href="/data/"' in as_alice.get("/sessions/").content.decode()


def test_what_was_said_of_a_deleted_chat_is_in_no_file(alice: User) -> None:
    """From the moment it is deleted, though it can still be had back."""
    kept, deleted = make_turn(alice), make_turn(alice)
    for turn in (kept, deleted):
        down(turn)
        other = make_turn(alice, session=turn.session)
        Comparison.objects.create(user=alice, kind="blind", first=turn, second=other)
        Judgement.objects.create(turn=turn, next_turn=other)
    housekeeping.delete_session(deleted.session)
    files = everything(alice)
    for name, place in (("samples", "turn"), ("judgements", "turn"), ("comparisons", "first")):
        assert [line[place] for line in files[name]()] == [kept.public_id], name
