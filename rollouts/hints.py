"""Where a hint goes in a prompt: the one place. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rollouts.types import Demonstration, Message

HINT_MARKER = "[user's hint / instruction]"  # OpenClaw-RL's own marker line
CORRECTION_MARKER = "[what the user wanted instead]"
NOTE = "Please."  # asks for nothing: what a hint's effect is compared with


def hinted_messages(
    messages: Sequence[Message], *, hint: str | None, correction: str | None
) -> list[Message]:
    """`messages` with the hint and the correction as blocks at the end of the last user message.

    The teacher sees them, and the model itself while it has not learned them (`prompted_messages`).
    Blank texts add nothing; the given messages stay as they are.
    Texts must be defused already (rollouts.rendering). Raises ValueError without a user message.
    """
    blocks = [
        f"{marker}\n{text.strip()}"
        for marker, text in ((HINT_MARKER, hint), (CORRECTION_MARKER, correction))
        if text and text.strip()
    ]
    last = _last_asked(messages)
    return _saying(messages, last, "\n\n".join([messages[last]["content"], *blocks]))


def unasked_messages(messages: Sequence[Message]) -> list[Message]:
    """`messages` with nothing in the last user message: what is said whatever is asked. Raises
    ValueError without a user message."""
    return _saying(messages, _last_asked(messages), "")


def _last_asked(messages: Sequence[Message]) -> int:
    last = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=None)
    if last is None:
        raise ValueError("there is no user message to hang a hint on")
    return last


def _saying(messages: Sequence[Message], place: int, content: str) -> list[Message]:
    return [*messages[:place], {**messages[place], "content": content}, *messages[place + 1 :]]


def demonstrated_messages(
    messages: Sequence[Message], demonstrations: Sequence[Demonstration], *, hint: str | None
) -> list[Message]:
    """`messages` after the demonstrations, each an exchange of its own under the same hint. System
    messages stay first."""
    start = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    before: list[Message] = []
    for each in demonstrations:
        question = [Message(role="user", content=each.question)]
        before += hinted_messages(question, hint=hint, correction=None)
        before.append(Message(role="assistant", content=each.answer))
    return [*messages[:start], *before, *messages[start:]]


def joined(hints: Sequence[str]) -> str | None:
    """Several hints as one; None without any."""
    return "\n".join(hints) or None


def prompted_messages(messages: Sequence[Message], hints: Sequence[str]) -> list[Message]:
    """What the model is asked when hints are to hold at once; the same messages without any."""
    if not hints:
        return list(messages)  # which need no user message then
    return hinted_messages(messages, hint=joined(hints), correction=None)
