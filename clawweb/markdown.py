"""A model's Markdown to HTML that is safe to show. Text in, HTML out; knows no row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

# No <img>: a picture from elsewhere would tell its server who reads the reply, and when.
TAGS = {
    *(
        "p",
        "br",
        "hr",
        "strong",
        "em",
        "s",
        "blockquote",
        "pre",
        "code",
        "a",
        "ul",
        "ol",
        "li",
    ),
    *("h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"a": {"href", "title"}, "ol": {"start"}}
# Characters. A longer reply, as a file may bring in, is shown as it is: parsing one of 8 MB takes a
# minute and gigabytes.
MOST = 100_000
HEADING_SHIFT = 3  # a turn has an h3 of its own; headings in its reply go below that


class _Renderer(RendererHTML):
    """Headings start below the heading that a turn has itself."""

    def heading_open(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
    ) -> str:
        return f"<{_shifted(tokens[index].tag)}>"

    def heading_close(
        self, tokens: Sequence[Token], index: int, options: OptionsDict, env: EnvType
    ) -> str:
        return f"</{_shifted(tokens[index].tag)}>\n"


def _shifted(tag: str) -> str:
    return f"h{min(int(tag[1]) + HEADING_SHIFT, 6)}"


def _parser() -> MarkdownIt:
    options: dict[str, Any] = {"html": False, "breaks": True, "linkify": False}
    parser = MarkdownIt("commonmark", options, renderer_cls=_Renderer)
    return parser.enable(["table", "strikethrough"]).disable(["image", "html_inline", "html_block"])


_PARSER = _parser()


def render(text: str) -> str:
    """The reply as sanitized HTML: no raw HTML, no images, links without a referrer."""
    if len(text) > MOST:
        lines = escape(text).replace("\n", "<br>\n")
        return f"<p>{lines}</p>"
    return _rendered(text)


@lru_cache(maxsize=512)
def _rendered(text: str) -> str:
    return nh3.clean(
        _PARSER.render(text),
        tags=TAGS,
        attributes=ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener nofollow noreferrer",
        # A wide block of code scrolls; the keyboard must reach it.
        set_tag_attribute_values={"a": {"target": "_blank"}, "pre": {"tabindex": "0"}},
    )
