"""Main or side: which calls a client makes for itself, told by what they say. Knows no rows.

A main turn is part of a conversation; a side turn is a client's own errand (a title, a heartbeat)
and is never judged, counted or trained. Who calls may say which it is; where nothing is said, the
first rule that fits makes it side. A rule looks only at phrases that a client's own prompt begins
or ends with, so that a person who writes about them is still heard.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from rollouts.types import Message

MAIN, SIDE = "main", "side"
# Who said so, beside the names of the rules
HEADER, BODY, OWNER = "header", "body", "owner"
COMPARISON = "comparison"  # another answer, beside the conversation until it is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A call is side when the last message of `role` fits all of the patterns."""

    name: str
    what: str  # to be read: "… asks for …"
    patterns: tuple[str, ...]
    role: str = "user"

    def fits(self, messages: Sequence[Message]) -> bool:
        text = next((m["content"] for m in reversed(messages) if m["role"] == self.role), "")
        ends = _ends(text.strip())
        return all(re.search(pattern, ends, _FLAGS) for pattern in self.patterns)


def _ends(text: str) -> str:
    """The beginning and the end: a pasted book costs no more to look at than a page."""
    return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]}\n{text[-_TAIL:]}"


_HEAD, _TAIL = 4000, 1000  # characters
_FLAGS = re.IGNORECASE | re.MULTILINE
# Clients put a time or a channel in brackets before what they say: [Mon 2026-03-02 08:00 UTC] …
_STAMPS = r"\A(?:\[[^\]\n]*\]\s*)*"
_WEBUI = r"\A### Task:\s*"

RULES = (
    Rule(
        name="heartbeat",
        what=gettext_noop("OpenClaw wakes its agent to read HEARTBEAT.md"),
        # Events may stand before it; the prompt itself begins a line.
        patterns=(r"^(?:\[[^\]\n]*\] *)*Read HEARTBEAT\.md\b", r"\bHEARTBEAT_OK\b"),
    ),
    Rule(
        name="heartbeat_reply",
        what=gettext_noop("a prompt ends by asking for HEARTBEAT_OK when there is nothing to do"),
        patterns=(
            r"\b(?:reply|respond)\s+(?:with\s+)?(?:exactly\s+|only\s+)?[`\"*]*HEARTBEAT_OK[`\"*.]*"
            r"(?:\s*^Current time:[^\n]*)?\s*\Z",
        ),
    ),
    Rule(
        name="heartbeat_poll",
        what=gettext_noop("OpenClaw polls its agent"),
        patterns=(r"^\[(?:OpenClaw )?heartbeat poll\]",),
    ),
    Rule(
        name="cron",
        what=gettext_noop("OpenClaw runs a job by its clock"),
        patterns=(r"\A(?:\[(?!cron:)[^\]\n]*\]\s*)*\[cron:[^\]\n]+\]",),
    ),
    Rule(
        name="memory_flush",
        what=gettext_noop("OpenClaw has memories written down before it shortens a conversation"),
        patterns=(_STAMPS + r"(?:Pre-compaction memory flush|Store durable memories now)\b",),
    ),
    Rule(
        name="compaction",
        what=gettext_noop("an agent has its conversation summarised to go on with the summary"),
        role="system",
        patterns=(r"\AYou are an? (?:\w+ )?(?:context|conversation) summarization assistant\b",),
    ),
    Rule(
        name="file_name",
        what=gettext_noop("OpenClaw asks for a file name for a conversation's notes"),
        patterns=(r"^Based on this conversation, generate a short 1-2 word filename slug\b",),
    ),
    Rule(
        name="title",
        what=gettext_noop("Open WebUI asks for a title"),
        patterns=(_WEBUI + r"Generate a concise, 3-5 word title\b",),
    ),
    Rule(
        name="tags",
        what=gettext_noop("Open WebUI asks for tags"),
        patterns=(_WEBUI + r"Generate 1-3 broad tags\b",),
    ),
    Rule(
        name="follow_ups",
        what=gettext_noop("Open WebUI asks for questions that could follow"),
        patterns=(_WEBUI + r"Suggest 3-5 relevant follow-up\b",),
    ),
    Rule(
        name="search_queries",
        what=gettext_noop("Open WebUI asks what to search for"),
        patterns=(_WEBUI + r"Analyze the chat history to determine the necessity\b",),
    ),
    Rule(
        name="autocomplete",
        what=gettext_noop("Open WebUI completes what is being typed"),
        patterns=(_WEBUI + r"You are an autocompletion system\b",),
    ),
    Rule(
        name="open_webui_task",
        what=gettext_noop(
            "Open WebUI asks about a chat that it quotes: image prompts, templates of your own"
        ),
        patterns=(_WEBUI, r"^<chat_history>\s*$", r"^</chat_history>"),
    ),
    Rule(
        name="emoji",
        what=gettext_noop("Open WebUI asks for an emoji"),
        patterns=(r"\AYour task is to reflect the speaker's likely facial expression\b",),
    ),
    Rule(
        name="tool_choice",
        what=gettext_noop("Open WebUI asks which tools to call"),
        role="system",
        patterns=(r"\AAvailable Tools: ", r"choose and return the correct tool"),
    ),
    Rule(
        name="librechat_title",
        what=gettext_noop("LibreChat asks for a title"),
        patterns=(
            r"\A(?:Provide a concise, 5-word-or-less title for the conversation"
            r"|Please generate a concise, 5-word-or-less title for the conversation"
            r"|Please generate a concise title \(max 40 characters\)"
            r"|Analyze this conversation and provide:\s*1\. The detected language)",
        ),
    ),
    Rule(
        name="librechat_title_system",
        what=gettext_noop("LibreChat asks for a title in its system message"),
        role="system",
        patterns=(
            r"\A(?:Please )?(?:generate|provide|write) a concise, 5-word-or-less title\b",
        ),
    ),
    Rule(
        name="librechat_memory",
        what=gettext_noop("LibreChat has memories of its user written down"),
        role="system",
        patterns=(r"^Use the `set_memory` tool to save important information about the user\b",),
    ),
    Rule(
        name="running_summary",
        what=gettext_noop("a client's memory has lines added to its summary"),
        patterns=(
            r"\AProgressively summarize the (?:lines of )?conversation\b",
        ),
    ),
    Rule(
        name="title_generator",
        what=gettext_noop("a client calls the model a title generator"),
        role="system",
        patterns=(r"\AYou are a title generator\b",),
    ),
)  # fmt: skip
_BY_NAME = {rule.name: rule for rule in RULES}


def side_rule(messages: Sequence[Message]) -> str:
    """The name of the first rule that makes a call with these messages a side turn; or ""."""
    return next((rule.name for rule in RULES if rule.fits(messages)), "")


def classify(
    messages: Sequence[Message], *, header: str | None = None, body: str | None = None
) -> tuple[str, str]:
    """The type of a call's turn, and who says so: the header, else the body, else a rule, else
    nobody ("")."""
    if header:
        return header, HEADER
    if body:
        return body, BODY
    rule = side_rule(messages)
    return (SIDE, rule) if rule else (MAIN, "")


def explain(turn_type: str, said_by: str) -> str:
    """Why a turn is main or side, as a sentence."""
    if said_by in _BY_NAME:
        what = _(_BY_NAME[said_by].what)
        return _("The rule %(name)s fits: %(what)s.") % {"name": said_by, "what": what}
    return {
        HEADER: _("The client says so in the header X-Turn-Type."),
        BODY: _("The client says so in its request."),
        OWNER: _("You said so."),
        COMPARISON: _("You compared it with the answer in the conversation."),
    }.get(said_by, _("No rule fits.") if turn_type == MAIN else "")
