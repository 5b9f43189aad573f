"""Asks each part whether it does its work, not whether it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import httpx
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from clawweb.config import Config, reached
from clawweb.stack.parts import SERVED_NAME, Part, log_folder, node_name
from clawweb.stack.supervisor import Supervisor
from clawweb.stack.terminal import StackError, clear_pending, end_if_asked, pending, say

TAIL_LINES = 30


def web_url(config: Config) -> str:
    """Where a browser on this machine finds it."""
    return f"http://{reached(config.host)}:{config.port}"


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def valkey_answers(config: Config) -> bool:
    try:
        with redis.Redis.from_url(config.redis, socket_timeout=1.0) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


@lru_cache(maxsize=4)
def asker(broker: str) -> Celery:
    """Our own app answers for this process's settings; tests ask another installation's workers."""
    app = Celery("asker", broker=broker, set_as_current=False)
    options = {"socket_timeout": 2, "socket_connect_timeout": 2, "max_retries": 1}
    app.conf.update(broker_transport_options=options, task_publish_retry=False)
    return app


def worker_answers(config: Config, part: str) -> bool:
    name = node_name(config, part)
    app = asker(config.redis.replace("unix://", "redis+socket://"))
    try:
        return any(name in reply for reply in app.control.ping(destination=[name], timeout=0.5))
    except (OperationalError, redis.RedisError, OSError):
        return False


def vllm_answers(config: Config) -> bool:
    """Healthy, and warm: the first request costs two seconds more, and no user should pay them."""
    if not answers(f"{config.vllm}/health"):
        return False
    key = config.secret("vllm_key", config.vllm_key)
    messages = [{"role": "user", "content": "Hello"}]  # a chat, so that the template is warm too
    body = {"model": SERVED_NAME, "messages": messages, "max_tokens": 2}
    try:
        reply = httpx.post(
            f"{config.vllm}/v1/chat/completions",
            json=body,
            headers={"Authorization": f"Bearer {key}"},
            timeout=60.0,
            trust_env=False,
        )
    except httpx.HTTPError:
        return False
    return reply.status_code == 200


def probe(config: Config, name: str) -> Callable[[], bool] | None:
    """None: the part answers nobody, and counts as ready once it has stayed up."""
    probes: dict[str, Callable[[], bool]] = {
        "valkey": lambda: valkey_answers(config),
        "vllm": lambda: vllm_answers(config),
        "web": lambda: answers(f"{web_url(config)}/livez"),
        "worker-light": lambda: worker_answers(config, "worker-light"),
        "worker-gpu": lambda: worker_answers(config, "worker-gpu"),
        "worker-judge": lambda: worker_answers(config, "worker-judge"),
    }
    return probes.get(name)


def wait_until_ready(supervisor: Supervisor, parts: list[Part]) -> None:
    """One line for each part as it gets ready; StackError names the first that does not."""
    started = time.monotonic()
    waiting = {part.name: part for part in parts}
    first_start = {name: supervisor.info(name)["start"] for name in waiting}
    said = started
    while True:
        end_if_asked()
        for name, part in list(waiting.items()):
            seconds = time.monotonic() - started
            check_alive(supervisor, name, first_start[name])
            if is_ready(supervisor, name):
                del waiting[name]
                clear_pending()
                say(f"  {name:<13} ready  {seconds:5.1f} s")
            elif seconds > part.seconds_to_ready:
                raise not_started(supervisor.config, name, f"is not ready after {seconds:.0f} s")
        if not waiting:
            return
        pending(f"  waiting for {', '.join(waiting)} … {time.monotonic() - started:.0f} s")
        if time.monotonic() - said > 15:
            said = time.monotonic()
            clear_pending()
            say(f"  … {', '.join(waiting)}  {said - started:5.0f} s")
        time.sleep(0.2)


def is_ready(supervisor: Supervisor, name: str) -> bool:
    ask = probe(supervisor.config, name)
    info: dict[str, Any] = supervisor.info(name)
    if ask is None:
        return info["statename"] == "RUNNING" and info["now"] - info["start"] >= 4
    return ask()


def check_alive(supervisor: Supervisor, name: str, first_start: int) -> None:
    """A part that ended once while starting would do so again; better to say it now."""
    if not supervisor.is_alive:
        raise StackError("supervisord ended by itself; see log/supervisord.log in the data folder")
    info = supervisor.info(name)
    ended = info["statename"] in ("BACKOFF", "FATAL", "EXITED", "STOPPED", "UNKNOWN")
    if ended or (first_start and info["start"] > first_start):
        raise not_started(supervisor.config, name, info["spawnerr"] or "ended while starting")


def not_started(config: Config, name: str, what: str) -> StackError:
    log = log_folder(config) / f"{name}.log"
    return StackError(f"{name} {what}. Its log, {log}, ends with:\n\n{tail(log)}")


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(nothing)"
