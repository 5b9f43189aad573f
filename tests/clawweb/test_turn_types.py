"""Which calls are side turns: a table of what clients really send, and of what people write."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from clawweb.config import ROOT
from clawweb.turn_types import RULES, classify, explain, side_rule
from rollouts.types import Message


def says(text: str, system: str = "") -> list[Message]:
    head = [Message(role="system", content=system)] if system else []
    return [*head, Message(role="user", content=text)]


def webui(task: str) -> list[Message]:
    """As Open WebUI's templates are built."""
    return says(
        f"### Task:\n{task}\n### Output:\nJSON format: {{}}\n### Chat History:\n<chat_history>\n"
        "USER: hi\nASSISTANT: hello\n</chat_history>"
    )


BEAT = "Read HEARTBEAT.md if it exists. If nothing needs attention, reply HEARTBEAT_OK."
SIDE = [
    ("heartbeat", says(BEAT)),
    ("heartbeat", says(f"[Mon 2026-03-02 08:00 UTC] {BEAT}\nCurrent time: Monday, 08:00")),
    ("heartbeat", says(f"System: [2026-03-02] Exec finished\n\n{BEAT}")),
    ("heartbeat_reply", says("Look at the mail. If all is well, reply HEARTBEAT_OK.")),
    ("heartbeat_reply", says("Check it. Respond with exactly `HEARTBEAT_OK`.\nCurrent time: 9")),
    ("heartbeat_poll", says("[OpenClaw heartbeat poll]")),
    ("cron", says("[cron:5f0c morning brief] Summarise my mail.")),
    ("cron", says("[Mon 2026-03-02 08:00 UTC] [cron:5f0c brief] Summarise my mail.")),
    ("memory_flush", says("Pre-compaction memory flush. Store durable memories now.")),
    ("compaction", says("Sum up.", system="You are a context summarization assistant. Your …")),
    ("file_name", says("Based on this conversation, generate a short 1-2 word filename slug (…).")),
    ("title", webui("Generate a concise, 3-5 word title with an emoji summarizing the chat.")),
    ("tags", webui("Generate 1-3 broad tags categorizing the main themes.")),
    ("follow_ups", webui("Suggest 3-5 relevant follow-up questions or prompts.")),
    ("search_queries", webui("Analyze the chat history to determine the necessity of queries.")),
    ("autocomplete", webui("You are an autocompletion system. Continue the text.")),
    ("open_webui_task", webui("Gib dem Gespräch einen Namen.")),
    ("emoji", says("Your task is to reflect the speaker's likely facial expression through …")),
    ("tool_choice", says("time?", system="Available Tools: []\n\nYour task is to choose and return "
                                         "the correct tool(s) from the list.")),
    ("librechat_title", says("Provide a concise, 5-word-or-less title for the conversation, …")),
    ("librechat_title", says("Analyze this conversation and provide:\n1. The detected language")),
    ("librechat_title_system", says("x", system="Please generate a concise, 5-word-or-less title")),
    ("librechat_memory", says("x", system="…\nUse the `set_memory` tool to save important "
                                          "information about the user, but ONLY when …")),
    ("running_summary", says("Progressively summarize the lines of conversation provided, …")),
    ("title_generator", says("hello", system="You are a title generator. You output ONLY …")),
]  # fmt: skip
MAIN = [
    says("Why does my agent reply HEARTBEAT_OK?"),
    says("My HEARTBEAT.md says to reply HEARTBEAT_OK. Is that good?"),
    says("Please read HEARTBEAT.md and tell me what is in it."),
    says("How do I write a [cron:daily] line?"),
    says("Generate a concise, 3-5 word title for my essay on rain."),
    says("What is a pre-compaction memory flush?"),
    says("Summarize this conversation so far."),
    # Open WebUI puts what it has looked up around the user's own question.
    says("### Task:\nRespond to the user query using the provided context.\n<context>\nx\n"
         "</context>\n<user_query>\nwhy?\n</user_query>"),
    says("hi", system="You are OpenClaw. Heartbeats: read HEARTBEAT.md, reply HEARTBEAT_OK."),
    [*says(BEAT), Message(role="assistant", content="HEARTBEAT_OK"), *says("How are you?")],
    says(""),
    [],
]  # fmt: skip


@pytest.mark.parametrize(("name", "messages"), SIDE)
def test_a_clients_own_errand_is_side(name: str, messages: list[Message]) -> None:
    assert classify(messages) == ("side", name)


@pytest.mark.parametrize("messages", MAIN)
def test_what_a_person_says_is_main(messages: list[Message]) -> None:
    assert classify(messages) == ("main", "")


def test_an_errand_stays_one_while_its_tools_answer() -> None:
    messages = [
        *says(BEAT),
        Message(role="assistant", content="", tool_calls=[{"id": "c1"}]),
        Message(role="tool", content="mail: none", tool_call_id="c1"),
    ]
    assert classify(messages) == ("side", "heartbeat")


@pytest.mark.parametrize(
    ("header", "body", "expected"),
    [
        ("main", "side", ("main", "header")),
        ("side", None, ("side", "header")),
        (None, "main", ("main", "body")),
        (None, None, ("side", "heartbeat")),
    ],
)
def test_who_calls_outranks_the_rules(header, body, expected) -> None:
    assert classify(says(BEAT), header=header, body=body) == expected


def test_every_rule_has_an_example_and_says_what_it_is_for() -> None:
    assert {name for name, _ in SIDE} == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.what in explain("side", rule.name)


def test_every_rule_is_written_down() -> None:
    page = Path(ROOT / "docs/sessions.md").read_text("utf-8")
    table = page.partition("## Main and side")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|$", table, re.MULTILINE))
    assert rows == {rule.name: rule.what for rule in RULES}


@pytest.mark.parametrize("flood", [" ", "[a] ", "[", "reply ", "\n", "<chat_history>\n", "### "])
def test_a_long_message_is_looked_at_quickly(flood: str) -> None:
    began = time.process_time()  # other processes' time is not its own
    side_rule(says(flood * 200_000))
    assert time.process_time() - began < 0.5
