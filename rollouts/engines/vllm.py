"""Engine over vLLM's HTTP API. One client per event loop; nothing is cached between calls.

Relied on (vLLM 0.32, measured): ids and log-probs come with every streamed chunk when
`return_token_ids` and `logprobs` are asked for; `prompt_token_ids` comes in the first chunk;
loading under a new name and a new folder never touches a request in flight. `load_inplace` is
never used: it swaps weights under running requests and re-reads the folder at each step.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from rollouts.config import EngineConfig
from rollouts.engines.base import OnDelta
from rollouts.engines.vllm_stream import Gathered, lines_of
from rollouts.errors import (
    AdapterRejected,
    BadReply,
    EngineRefused,
    EngineUnavailable,
    PromptTooLong,
    UnknownAdapter,
)
from rollouts.types import PLAIN, Message, Policy, ReplyShape, Rollout, SamplingParams

# How vLLM says that a prompt is too long; the last of one that fills its context to the last token.
TOO_LONG = (
    "context length",
    "maximum model length",
    "max_model_len",
    "max_tokens must be at least 1, got 0",
)


class VllmEngine:
    """A vLLM server started with --enable-lora and --logprobs-mode processed_logprobs."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._headers = {"Authorization": f"Bearer {config.key}"} if config.key else {}
        # Certificates are read once and only where needed: it takes longer than a first token.
        is_https = config.url.startswith("https:")
        self._tls: ssl.SSLContext | bool = ssl.create_default_context() if is_https else False

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client of this event loop. Transport errors become EngineUnavailable."""
        timeout = httpx.Timeout(self._config.silence_seconds, connect=self._config.connect_seconds)
        # Connecting is tried twice, and nothing has been sent then: a process that was held up
        # finds its time gone, though the server took the connection at once.
        transport = httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False, retries=1)
        try:
            async with httpx.AsyncClient(
                base_url=self._config.url,
                headers=self._headers,
                timeout=timeout,
                trust_env=False,
                transport=transport,
            ) as client:
                yield client
        except httpx.TransportError as exc:
            raise EngineUnavailable(f"{self._config.url}: {exc or type(exc).__name__}") from exc

    def _served_name(self, policy: Policy) -> str:
        return policy.adapter or self._config.base_name

    async def generate(
        self,
        messages: Sequence[Message],
        *,
        policy: Policy,
        params: SamplingParams,
        shape: ReplyShape = PLAIN,
        on_delta: OnDelta | None = None,
    ) -> Rollout:
        body = _chat_body(self._served_name(policy), messages, params, shape)
        if self._config.template_options:
            body["chat_template_kwargs"] = dict(self._config.template_options)
        gathered = Gathered(shows_logprobs=params.top_logprobs is not None)
        async with (
            self._client() as client,
            client.stream("POST", "/v1/chat/completions", json=body) as response,
        ):
            if response.status_code != 200:
                await response.aread()
                raise _refusal(response, policy)
            async for line in lines_of(response.aiter_text()):
                delta = gathered.take(line)
                if delta is not None and on_delta is not None:
                    await on_delta(delta)
        return gathered.rollout(policy, params)

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, policy: Policy
    ) -> list[float]:
        body = {
            "model": self._served_name(policy),
            "prompt": [*prompt_ids, *response_ids],
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": 0,
        }
        answer = await self._post("/v1/completions", body, policy)
        try:
            positions = answer["choices"][0]["prompt_logprobs"][len(prompt_ids) :]
            return [
                float(position[str(token)]["logprob"])
                for position, token in zip(positions, response_ids, strict=True)
            ]
        except (LookupError, TypeError, ValueError) as exc:
            raise BadReply("a scored token has no log-prob") from exc

    async def load(self, policy: Policy) -> None:
        if policy.adapter is None or policy.path is None:
            raise ValueError("only an adapter with a folder can be loaded")
        known = (await self.loaded()).get(policy.adapter)
        if known == policy.path:
            return
        if known is not None:
            await self.unload(policy)
            raise AdapterRejected(f"{policy.adapter} was served from another folder; unloaded")
        body = {"lora_name": policy.adapter, "lora_path": policy.path}
        async with self._client() as client:
            response = await client.post("/v1/load_lora_adapter", json=body)
        is_refused = response.status_code != 200
        # Of files that it cannot use vLLM says 500, too, and goes on. A proxy before it has
        # words of its own, and a server that is dying or starting says nothing of the files.
        if is_refused and (response.status_code > 500 or not await self.health()):
            raise EngineUnavailable(_reason(response))
        # Of two loads at once vLLM refuses the second: what counts is what it holds then.
        if (await self.loaded()).get(policy.adapter) != policy.path:
            elsewhere = f"{policy.adapter} is not served from its own folder"
            raise AdapterRejected(_reason(response) if is_refused else elsewhere)

    async def unload(self, policy: Policy) -> None:
        async with self._client() as client:
            response = await client.post(
                "/v1/unload_lora_adapter", json={"lora_name": policy.adapter}
            )
        if response.status_code not in (200, 404):
            raise EngineRefused(_reason(response))

    async def loaded(self) -> dict[str, str]:
        patience = httpx.Timeout(self._config.list_seconds, connect=self._config.connect_seconds)
        async with self._client() as client:
            response = await client.get("/v1/models", timeout=patience)
        if response.status_code >= 500:
            raise EngineUnavailable(_reason(response))
        if response.status_code != 200:
            raise EngineRefused(_reason(response))
        try:
            held = {model["id"]: model["root"] for model in response.json()["data"]}
        except (LookupError, TypeError, ValueError) as exc:  # a proxy, or another kind of server
            raise BadReply(f"{self._config.url} does not list its models as vLLM does") from exc
        held.pop(self._config.base_name, None)
        return held

    async def health(self) -> bool:
        try:
            async with self._client() as client:
                return (await client.get("/health", timeout=5)).status_code == 200
        except EngineUnavailable:
            return False

    async def _post(self, path: str, body: dict[str, Any], policy: Policy) -> dict[str, Any]:
        async with self._client() as client:
            response = await client.post(path, json=body)
        if response.status_code != 200:
            raise _refusal(response, policy)
        answer: dict[str, Any] = response.json()
        return answer


def _chat_body(
    model: str, messages: Sequence[Message], params: SamplingParams, shape: ReplyShape
) -> dict[str, Any]:
    # Without `include_reasoning`: false would keep the ids of the reasoning from us, too.
    body: dict[str, Any] = {
        "model": model,
        "messages": list(messages),
        "stream": True,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "logprobs": True,
        "top_logprobs": params.top_logprobs or 0,
        "return_token_ids": True,
    }
    if params.max_tokens is not None:
        body["max_tokens"] = params.max_tokens
    if params.top_k:
        body["top_k"] = params.top_k
    if params.seed is not None:
        body["seed"] = params.seed
    if params.stop:
        body["stop"] = list(params.stop)
    if params.presence_penalty:
        body["presence_penalty"] = params.presence_penalty
    if params.frequency_penalty:
        body["frequency_penalty"] = params.frequency_penalty
    if params.logit_bias:
        body["logit_bias"] = dict(params.logit_bias)
    if params.min_p:
        body["min_p"] = params.min_p
    if params.repetition_penalty != 1:
        body["repetition_penalty"] = params.repetition_penalty
    if shape.response_format is not None:
        body["response_format"] = dict(shape.response_format)
    if shape.tools:
        body["tools"] = list(shape.tools)
        body["tool_choice"] = shape.tool_choice or "auto"
        body["parallel_tool_calls"] = params.parallel_tool_calls
    return body


def _reason(response: httpx.Response) -> str:
    try:
        body = response.json()
        error = body.get("error", body)
        return str(error.get("message", error))
    except ValueError:
        return response.text[:500] or f"status {response.status_code}"


def _refusal(response: httpx.Response, policy: Policy) -> Exception:
    """The error that a refusing answer stands for."""
    reason = _reason(response)
    if response.status_code >= 500:
        return EngineUnavailable(reason)
    if response.status_code == 404 and policy.adapter is not None:
        return UnknownAdapter(reason)
    if any(words in reason for words in TOO_LONG):
        return PromptTooLong(reason)
    return EngineRefused(reason)
