"""Reads gettext's catalogs. Pure: text in, entries out."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from clawweb.config import ROOT

LOCALE = ROOT / "clawweb" / "locale"
DOMAINS = ("django", "djangojs")
_FIELD = re.compile(r'(msgctxt|msgid_plural|msgid|msgstr(?:\[\d\])?) (".*")')


@dataclass
class Entry:
    flags: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> tuple[str, str, str]:
        """What it translates: context, text, plural."""
        context, one, many = (self.texts.get(k, "") for k in ("msgctxt", "msgid", "msgid_plural"))
        return context, one, many

    @property
    def asked(self) -> list[str]:
        return [self.texts[name] for name in ("msgid", "msgid_plural") if name in self.texts]

    @property
    def answered(self) -> list[str]:
        return [text for name, text in self.texts.items() if name.startswith("msgstr")]


def catalog(path: Path) -> list[Entry]:
    """All entries but the header; obsolete ones are none."""
    entries = []
    for block in path.read_text().split("\n\n"):
        entry, name = Entry(), ""
        for line in block.splitlines():
            if line.startswith("#,"):
                entry.flags |= {flag.strip() for flag in line[2:].split(",")}
            elif found := _FIELD.fullmatch(line):
                name = found[1]
                entry.texts[name] = json.loads(found[2])
            elif line.startswith('"'):
                entry.texts[name] += json.loads(line)
        if entry.texts.get("msgid"):
            entries.append(entry)
    return entries
