"""Rendering: what a model writes can neither run nor call home."""

from __future__ import annotations

import time

import pytest

from clawweb.markdown import MOST, render


def test_ordinary_markdown_is_kept() -> None:
    html = render("Some **bold**, `code` and\n\n1. one\n2. two\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    for piece in ("<strong>bold</strong>", "<code>code</code>", "<li>one</li>", "<td>1</td>"):
        assert piece in html


def test_headings_start_below_the_turns_own() -> None:
    assert render("# Big") == "<h4>Big</h4>\n"
    assert render("###### Small") == "<h6>Small</h6>\n"


def test_links_open_elsewhere_and_tell_nothing() -> None:
    html = render("[a](https://example.org)")
    assert 'target="_blank"' in html
    assert 'rel="noopener nofollow noreferrer"' in html


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![x](https://example.org/x.png)",
        "[a](javascript:alert(1))",
        "[a](JaVaScRiPt&colon;alert(1))",
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "<a href='javascript:alert(1)'>a</a>",
        "<svg/onload=alert(1)>",
        "<style>body{display:none}</style>",
        "<iframe src=https://example.org></iframe>",
        '[a](https://example.org "><script>alert(1)</script>")',
        "```<img src=x onerror=alert(1)>\nx\n```",
        "|a|\n|-:|\n|<b onclick=alert(1)>|",
    ],
)
def test_nothing_in_a_reply_runs_or_loads(text: str) -> None:
    html = render(text).lower()
    for tag in ("<script", "<img", "<svg", "<style", "<iframe", "<b"):
        assert tag not in html.replace("<br", "").replace("<blockquote", "")
    for attribute in ('href="javascript', 'href="data', " style=", ' onclick="', ' onerror="'):
        assert attribute not in html


@pytest.mark.parametrize("text", ["[" * 20_000, ">" * 20_000, "*a" * 20_000, "- " * 5_000])
def test_a_hostile_reply_takes_no_long_time(text: str) -> None:
    started = time.process_time()
    render(text)
    assert time.process_time() - started < 5


def test_what_is_longer_than_any_reply_is_shown_as_it_is() -> None:
    """Parsing takes a thousand times its length, in the memory that everybody's pages share."""
    text = "*a*\n<b>" + "a\n" * (2 * MOST)
    began = time.process_time()
    html = render(text)
    assert html.startswith("<p>*a*<br>\n&lt;b&gt;a<br>\na")
    assert time.process_time() - began < 1.0
