"""A judge behind any OpenAI-compatible endpoint: one request, one vote."""

from __future__ import annotations

import ipaddress
import json
import math
import ssl
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from rollouts.errors import BadReply, JudgeRefused, JudgeUnavailable
from rollouts.judge import Judged, Vote
from rollouts.judge_prompt import judge_messages, parse_vote

MOST_BYTES = 1 << 20  # of an answer; more is not a vote
MOST_REASON = 300  # characters of a refusal that are kept
TRY_AGAIN = (408, 409, 425, 429)  # and every 5xx


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's own. Names other than localhost are not looked up."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ModelJudge:
    """Asks `model` at `url`, which ends in /v1. How it samples and how long it may write is left to
    the server: some take no temperature, some no limit; the caller's patience ends a vote."""

    def __init__(self, *, url: str, model: str, key: str = "") -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"a judge's address starts with http:// or https://, not {url!r}")
        if not model:
            raise ValueError("a judge's model has to be named")
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        self._key = key

    async def judge(self, asked: Judged) -> Vote:
        body = {"model": self._model, "messages": judge_messages(asked)}
        return parse_vote(_content(await self._post(body)))

    async def _post(self, body: dict[str, Any]) -> bytes:
        """The body of a 200. No redirect is followed: it could lead the texts elsewhere."""
        headers = {"Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            async with (
                httpx.AsyncClient(
                    headers=headers,
                    timeout=None,
                    verify=_certificates() if self._url.startswith("https:") else False,
                    trust_env=not is_loopback(self._url),  # a proxy, for an address elsewhere
                ) as client,
                client.stream("POST", self._url, json=body) as response,
            ):
                answer = await _read(response)
                if response.status_code != 200:
                    raise self._refusal(response, answer)
                return answer
        except httpx.HTTPError as exc:
            raise JudgeUnavailable(f"the judge does not answer: {_name(exc)}") from exc

    def _refusal(self, response: httpx.Response, answer: bytes) -> Exception:
        """The error that an answer other than 200 stands for, with the server's own reason."""
        reason = _reason(answer)
        if self._key:
            reason = reason.replace(self._key, "…")  # people read it
        status = response.status_code
        said = f"the judge answers {status}" + (f": {reason}" if reason else "")
        if status in TRY_AGAIN or status >= 500:
            return JudgeUnavailable(said, wait=_retry_after(response))
        return JudgeRefused(said)


@cache
def _certificates() -> ssl.SSLContext:
    """Made once: it takes a third of a second, and the votes of a round would wait for it."""
    return httpx.create_ssl_context()


async def _read(response: httpx.Response) -> bytes:
    """The body as it is sent, so that nothing small unfolds into something large."""
    parts, size = [], 0
    async for part in response.aiter_raw():
        size += len(part)
        if size > MOST_BYTES:
            raise BadReply(f"the judge's answer is larger than {MOST_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _content(answer: bytes) -> str:
    """The text of a chat completion; BadReply when it is anything else."""
    try:
        content = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise BadReply("the judge's answer is no chat completion") from exc
    if not isinstance(content, str):
        raise BadReply("the judge's answer holds no text")
    return content


def _reason(answer: bytes) -> str:
    try:
        error = json.loads(answer)["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError, RecursionError):
        text = answer.decode("utf-8", "replace")
    return " ".join(str(text).split())[:MOST_REASON]


def _retry_after(response: httpx.Response) -> float:
    """Seconds of Retry-After; 0 when it says none that can be read."""
    try:
        seconds = float(response.headers.get("Retry-After", ""))
    except ValueError:
        return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _name(exc: Exception) -> str:
    return str(exc) or type(exc).__name__
