"""Languages: who is answered in which, whole catalogs, no English that a translator never sees."""

from __future__ import annotations

import gettext
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import translation

from clawweb.config import ROOT
from clawweb.models import AdapterState, FeedbackReason, GateResult, StepMetric, User
from clawweb.models.chat import SHIPPED_LABELS
from clawweb.services import jobs
from tests.catalogs import DOMAINS, LOCALE, catalog
from tests.factories import claimed_job, down, make_adapter, make_turn, rated, up
from tests.prepare import in_ci
from training.config import METHODS

PLACES = re.compile(r"%\(\w+\)[-+.\d]*[sdf]|%[sd%]|\{\w*\}|</?\w+[^>]*>")
LANGUAGES = [code for code, _ in settings.LANGUAGES if code != "en"]
CATALOGS = [LOCALE / code / "LC_MESSAGES" / f"{part}.po" for code in LANGUAGES for part in DOMAINS]
each_catalog = pytest.mark.parametrize(
    "path", CATALOGS, ids=[f"{path.parts[-3]} {path.stem}" for path in CATALOGS]
)


@pytest.fixture(autouse=True)
def plain_language() -> Iterator[None]:
    with translation.override("en"):
        yield


def page(client: Client, path: str = "/signin/", **headers: str) -> str:
    return client.get(path, headers=headers).content.decode()


# Who is answered in which


def test_the_browser_says_the_language(client: Client, db: None) -> None:
    german = page(client, **{"Accept-Language": "de-AT,de;q=0.9,en;q=0.5"})
    assert '<html lang="de"' in german
    assert "Bei clawweb anmelden" in german
    french = page(client, **{"Accept-Language": "fr"})
    assert '<html lang="en"' in french
    assert "Sign in to clawweb" in french


def test_who_chooses_one_keeps_it_whatever_the_browser_says(client: Client, db: None) -> None:
    chosen = client.post("/language/", {"language": "de", "next": "/signin/"})
    assert (chosen.status_code, chosen["Location"]) == (302, "/signin/")
    assert '<html lang="de"' in page(client, **{"Accept-Language": "en"})
    client.post("/language/", {"language": "en", "next": "/signin/"})
    assert '<html lang="en"' in page(client, **{"Accept-Language": "de"})


def test_a_choice_leads_nowhere_else(client: Client, db: None) -> None:
    away = client.post("/language/", {"language": "de", "next": "https://elsewhere.example/"})
    assert away["Location"] == "/"


def test_scripts_speak_it_too(client: Client, alice: User) -> None:
    client.force_login(alice)
    words = client.get("/jsi18n/", headers={"Accept-Language": "de"}).content.decode()
    assert "Der Agent antwortet." in words


def test_nobody_is_said_to_have_started_anothers_job(
    client: Client, admin: User, alice: User, engine: None
) -> None:
    rated(alice, 1)
    job = jobs.queue_job(user=alice)
    client.force_login(admin)
    words = page(client, f"/jobs/{job.public_id}/", **{"Accept-Language": "de"})
    assert "<dt>Gestartet</dt><dd>von Hand</dd>" in words


def test_reasons_are_translated_until_an_admin_words_them(client: Client, alice: User) -> None:
    client.force_login(alice)
    FeedbackReason.objects.filter(slug="too_short").update(label="Way too short")
    chat = page(client, "/chat/", **{"Accept-Language": "de"})
    assert "Zu lang" in chat
    assert "Way too short" in chat
    assert FeedbackReason.objects.get(slug="too_long").label == "Too long"


def test_all_shipped_reasons_can_be_translated(db: None) -> None:
    assert set(FeedbackReason.objects.values_list("label", flat=True)) == set(SHIPPED_LABELS)


# Whole catalogs


@each_catalog
def test_everything_is_translated_with_its_placeholders(path: Path) -> None:
    wrong = []
    for entry in catalog(path):
        plural = len(entry.asked) == 2
        if "fuzzy" in entry.flags or not all(entry.answered):
            wrong.append(f"not translated: {entry.asked}")
        if len(entry.answered) != (2 if plural else 1):
            wrong.append(f"plural forms: {entry.asked}")
        # One of a thing may do without its number, in either language; a name must not be lost.
        known = {frozenset(PLACES.findall(text)) for text in entry.asked}
        for text in entry.answered:
            if frozenset(PLACES.findall(text)) not in known:
                wrong.append(f"placeholders: {entry.asked} → {text}")
    assert not wrong, "\n".join(wrong)


@each_catalog
def test_the_compiled_catalog_is_that_of_the_texts(path: Path) -> None:
    with path.with_suffix(".mo").open("rb") as compiled:
        known: dict[Any, str] = gettext.GNUTranslations(compiled)._catalog  # type: ignore[attr-defined]
    texts: dict[Any, str] = {}
    for entry in catalog(path):
        context, one, many = entry.name
        name = f"{context}\x04{one}" if context else one
        forms = {(name, i): text for i, text in enumerate(entry.answered)}
        texts |= forms if many else {name: entry.answered[0]}
    assert {key: text for key, text in known.items() if key} == texts, "run `make messages`"


def test_no_text_is_missing_from_the_catalogs(tmp_path: Path) -> None:
    if not shutil.which("xgettext"):
        assert not in_ci(), "xgettext is not installed"
        pytest.skip("NO GETTEXT WAS FOUND; `apt-get install gettext`")
    for part in ("clawweb", "rollouts", "training", "templates", "static", "manage.py"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    makefile = (ROOT / "Makefile").read_text()
    names = ("LANGUAGES", "MESSAGES")
    options = " ".join(re.search(rf"^{n} = (.*)$", makefile, re.MULTILINE)[1] for n in names)  # type: ignore[index]
    options = options.replace("$(LANGUAGES)", "")
    for domain in DOMAINS:
        command = [sys.executable, "manage.py", "makemessages", "--domain", domain]
        subprocess.run([*command, *options.split()], cwd=tmp_path, check=True)
    for path in CATALOGS:
        found = catalog(tmp_path / path.relative_to(ROOT))
        assert {entry.name for entry in found} == {entry.name for entry in catalog(path)}, (
            "run `make messages` and translate what is new"
        )


# No English that a translator never sees


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text that can be translated stands in ⟦brackets⟧."""
    for name in ("gettext", "ngettext", "pgettext", "npgettext"):
        real = getattr(translation.trans_real, name)  # type: ignore[attr-defined]

        def mark(*args: Any, real: Any = real) -> str:
            text = real(*args)
            return f"⟦{text}⟧" if text else text

        monkeypatch.setattr(translation._trans, name, mark)  # type: ignore[attr-defined]


class Unmarked(HTMLParser):
    """Words that people read on a page and that stand outside the brackets."""

    SPOKEN = (
        "aria-label",
        "title",
        "placeholder",
        "alt",
        "data-confirm",
        "data-done",
        "data-close",
    )
    # Names, what was said, and what programs read; what rows keep in English says so (`lang`).
    DATA = {"script", "style", "code", "pre", "time"}
    ALONE = {"input", "img", "link", "meta", "br", "hr", "wbr", "path", "use"}

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.open: list[tuple[str, bool]] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        named = dict(attrs)
        for name in self.SPOKEN:
            self._read(named.get(name) or "", own=True)
        if tag not in self.ALONE:
            is_data = tag in self.DATA or (tag != "html" and named.get("lang") == "en")
            self.open.append((tag, is_data))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not any(is_data for _, is_data in self.open):
            self._read(data)

    def _read(self, text: str, *, own: bool = False) -> None:
        depth, outside = 0 if own else self.depth, ""
        for letter in text:
            depth += (letter == "⟦") - (letter == "⟧")
            outside += letter if not depth and letter != "⟧" else " "
        if not own:
            self.depth = depth
        self.found += [words for part in outside.split("\n") if (words := part.strip())]


NAMES = re.compile(
    "|".join(METHODS) + "|PNG|SVG|"
    r"clawweb|alice|Deutsch|English|KL|API|v\d+|[\w.-]*@[\w:.-]+|(turn|sess|job)-[\w-]+"
    r"|Please [^⟦]*|user$|abcdefab-[\w-]+|question \d+|a reply|bob|\(\?\)|SmolLM\S*|[0-9a-f]{8,}"
)


def unmarked(html: str) -> set[str]:
    parser = Unmarked()
    parser.feed(html)
    texts = {NAMES.sub("", text).strip() for text in parser.found}
    return {text for text in texts if re.search(r"[A-Za-z]{2}", text)}


@pytest.fixture
def paths(client: Client, alice: User) -> list[str]:
    """Pages with something of everything on them."""
    turns = rated(alice, 9)
    up(make_turn(alice, session=turns[0].session, parent=turns[0]))
    down(make_turn(alice, asked="base"))  # not used, and why
    adapter = make_adapter(alice, 1, AdapterState.LIVE, rank=8)
    refused = make_adapter(alice, 2, AdapterState.REFUSED, parent=adapter)
    GateResult.objects.create(adapter=refused, measure="drift", value=0.2, limit=0.1, ok=False)
    job = claimed_job(alice)
    StepMetric.objects.create(job=job, step=1, attempt=1, values={"loss": 0.5})
    client.force_login(alice)
    session = turns[0].session.public_id
    paths = ["/chat/", f"/chat/{session}/", "/agent/", "/sessions/", f"/sessions/{session}/"]
    paths += ["/jobs/", f"/jobs/{job.public_id}/", "/adapters/", "/data/", "/settings/"]
    paths += [
        "/password/",
        "/nowhere/",
        "/parts/agent/",
        "/parts/system/",
        "/parts/ratings/?which=",
    ]
    return paths


@pytest.mark.usefixtures("valkey_server", "engine", "marked")
def test_every_page_can_be_translated(client: Client, paths: list[str]) -> None:
    left = {path: words for path in paths if (words := unmarked(page(client, path)))}
    assert not left, "\n".join(f"{path}: {sorted(words)}" for path, words in left.items())


@pytest.mark.usefixtures("valkey_server", "engine")
def test_numbers_for_browsers_are_the_same_in_every_language(
    client: Client, paths: list[str]
) -> None:
    number = re.compile(r'\s(?:value|max|min|x\d?|y\d?|cx|cy|r|width|height)="-?\d+,\d+"')
    for path in paths:
        assert not number.findall(page(client, path, **{"Accept-Language": "de"})), path
