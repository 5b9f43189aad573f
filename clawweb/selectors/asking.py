"""How the chat asks: a user's own instructions, length and temperature. Reads only.

API clients say all of it in their requests, so none of this touches theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from clawweb import valkey
from clawweb.config import config
from clawweb.models import ReplyLength, Turn, User
from rollouts.types import Message, SamplingParams

TOKENS = {ReplyLength.SHORT: 96, ReplyLength.MEDIUM: 256, ReplyLength.LONG: 768}


def chat_params(user: User) -> SamplingParams:
    """How the user's next reply in the chat is sampled; what they left open is the
    installation's."""
    values: dict[str, float] = {}
    if user.temperature is not None:
        values["temperature"] = user.temperature
    return SamplingParams(max_tokens=tokens_of(user.reply_length), **values)  # type: ignore[arg-type]  # a float


def tokens_of(reply_length: str) -> int:
    """The longest reply of that length, in tokens; half of the context is left to be read."""
    if not reply_length:
        return config().max_reply_tokens
    return min(TOKENS[ReplyLength(reply_length)], config().context_tokens // 2)


def instructions_of(turn: Turn) -> str:
    """The standing instructions that the turn was asked under, wherever they are kept."""
    if turn.recorded:
        return turn.instructions
    return str(valkey.kept_text(turn.public_id).get("instructions", ""))


def under(instructions: str, messages: Sequence[Message]) -> list[Message]:
    """The messages with the instructions above them. They end a system message that stands there
    already: many chat templates take one alone."""
    if not instructions:
        return list(messages)
    if messages and messages[0]["role"] == "system":
        theirs = messages[0]["content"]
        first = {**messages[0], "content": f"{theirs}\n\n{instructions}"}
        return [first, *messages[1:]]  # type: ignore[list-item]  # a message with other words
    return [Message(role="system", content=instructions), *messages]
