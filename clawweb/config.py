"""Every CLAWWEB_* setting, its default and its meaning. The only reader of the environment.

docs/operations.md has a heading for each field (a test compares them).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from difflib import get_close_matches
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from django.core.exceptions import ImproperlyConfigured
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

ROOT = Path(__file__).resolve().parent.parent
MOST_DAYS = 36_500  # a hundred years: no date can be told that lies far beyond
Days = Annotated[int, Field(le=MOST_DAYS)]
Span = Annotated[float, Field(le=86_400 * MOST_DAYS)]  # seconds
NumberFormat = Literal["", "float32", "bfloat16", "float16"]


def listed(words: str) -> list[str]:
    """What stands between the commas of a setting."""
    return [word.strip() for word in words.split(",") if word.strip()]


def reached(host: str) -> str:
    """Where a server that binds this address is found from its own machine, as URLs have it: of all
    addresses at loopback (of `::` a server of ours takes IPv6 alone), IPv6 in brackets."""
    found = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{found}]" if ":" in found else found


class Config(BaseSettings):
    """Fields are read from CLAWWEB_<NAME>; an empty value counts as not set."""

    model_config = SettingsConfigDict(env_prefix="CLAWWEB_", env_ignore_empty=True, frozen=True)

    # Where things live
    var: Path = ROOT / "var"  # data folder: database, models, adapters, logs, sockets
    database_url: str = ""  # postgres://… ; empty = SQLite under var
    redis_url: str = ""  # redis://… or unix://… ; empty = the embedded Valkey's socket under var
    secret_key: str = ""  # empty = var/secret_key, made on first use
    old_secret_key: str = ""  # the one before it, while what it signed and sealed is taken over

    # Web
    host: str = "127.0.0.1"  # the address that the web server listens on
    port: int = Field(8000, ge=1, le=65535)  # and the port
    web_workers: int = Field(1, ge=1)  # processes of the web server
    allowed_hosts: str = ""  # comma-separated, besides loopback and `host`
    cors_origins: str = ""  # comma-separated; pages elsewhere whose scripts may call /v1 by a key
    trusted_proxy: bool = False  # believe X-Forwarded-Proto and -For
    hsts_seconds: int = Field(86_400, ge=0)  # behind a trusted proxy: TLS is insisted on so long
    sign_up: Literal["closed", "pending", "open"] = "closed"  # may strangers make an account
    admin_second_factor: bool = False  # admins must have a second factor before they do anything
    oidc_issuer: str = ""  # where people of an organisation sign in; empty = nowhere else
    oidc_client_id: str = ""  # as the provider knows this installation
    oidc_client_secret: str = ""  # and what proves it
    oidc_name: str = ""  # on the button; empty = the provider's host
    oidc_domains: str = ""  # comma-separated; only verified addresses in them get in; empty = all
    debug: bool = False  # Django's: never where others can reach it
    log_format: Literal["line", "json"] = "line"  # one line to read, or one object, per entry
    metrics_token: str = ""  # needed for /metrics from anywhere but loopback

    # Model and serving
    base_model: str = ""  # a local folder or hub id; empty = SmolLM2-135M-Instruct under var/models
    vllm_url: str = ""  # empty = `make run` starts one; several with commas between
    vllm_port: int = Field(8100, ge=1, le=65535)  # of our own model server
    vllm_host: str = "127.0.0.1"  # where ours listens: loopback, but in a container of its own
    vllm_key: str = ""  # empty = var/vllm_key, made on first use
    vllm_cpu_bind: str = ""  # VLLM_CPU_OMP_THREADS_BIND of ours; empty = all but the trainer's
    vllm_dtype: NumberFormat = ""  # empty = float32 on a CPU, bfloat16 on a GPU
    vllm_cache_gib: int = Field(1, ge=1)  # KV cache of our server on a CPU, whole GiB
    vllm_gpu_share: float = Field(0.5, gt=0, lt=1)  # of a GPU's memory; the trainer needs the rest
    context_tokens: int = Field(2048, ge=256)  # prompt plus reply
    max_reply_tokens: int = Field(512, ge=1)  # when the caller names no limit
    max_loras: int = Field(8, ge=1)  # different adapters in one batch
    lora_rank: int = Field(8, ge=1)  # rank of every adapter; vLLM takes 1, 8, 16, 32, 64, …
    tool_parser: str = "hermes"  # vLLM's --tool-call-parser for the base model
    reasoning_parser: str = ""  # vLLM's --reasoning-parser; empty = the model is told not to reason
    chat_template: str = ""  # a Jinja file instead of the base model's own template

    # Gateway
    session_timeout: Span = Field(3600.0, gt=0)  # seconds without a turn that close a session
    requests_per_minute: int = Field(600, ge=0)  # per key; 0 = no limit, here and below
    tokens_per_minute: int = Field(0, ge=0)  # per key, prompt plus reply
    concurrent: int = Field(32, ge=0)  # requests of a key at once
    queue_turns: int = Field(128, ge=0)  # replies that may wait, one user's a quarter; 0 = no limit
    queue_seconds: Span = Field(600.0, gt=0)  # after which a reply that nobody began fails

    # Quotas of one user; the admin's tables have a user's own. 0 = none
    tokens_per_day: int = Field(0, ge=0)  # prompts plus replies, from midnight UTC
    training_minutes_per_week: int = Field(0, ge=0)  # of jobs, from Monday UTC
    versions_kept: int = Field(5, ge=1)  # the newest; live, previous and pinned ones stay anyway
    disk_mib: int = Field(0, ge=0)  # of a user's versions; no job starts beyond it

    # The disk of the data folder
    disk_free_mib: int = Field(512, ge=0)  # less than this free: nothing big starts; 0 = no guard

    # Retention, in days; 0 = for ever
    keep_chats_days: Days = Field(0, ge=0)  # since anything was last said; not pinned ones
    keep_metrics_days: Days = Field(0, ge=0)  # what training steps measured
    keep_events_days: Days = Field(0, ge=0)  # what happened to jobs and versions
    keep_audit_days: Days = Field(0, ge=0)  # the audit log

    # Judge
    judge_url: str = ""  # an OpenAI-compatible endpoint's base URL, with /v1; empty = no judge
    judge_model: str = ""  # its model
    judge_key: str = ""  # its key
    judge: str = ""  # an entry point of your own; empty = the model at judge_url
    judge_votes: int = Field(3, ge=1)  # asked in parallel
    judge_seconds: Span = Field(60.0, gt=0)  # patience with one vote
    judge_agreement: float = Field(0.6, ge=0, le=1)  # with the user's ratings, below it: off

    # Learning
    batch: int = Field(8, ge=1)  # counted samples that start a job by themselves
    settle_seconds: Span = Field(20.0, ge=0)  # how long a bare thumb down waits for its reason
    train_tokens: int = Field(1024, ge=64)  # longest prompt plus reply that trains
    train_exchanges: int = Field(1, ge=0)  # of a chat, that train before the newest message
    train_seconds: Span = Field(120.0, gt=0)  # time limit of a job's training
    train_threads: int = Field(1, ge=1)  # torch threads of the trainer on a CPU
    lease_seconds: Span = Field(60.0, gt=0)  # a job's lease; renewed six times in that time
    sweep_seconds: Span = Field(15.0, gt=0)  # how often rows are searched for forgotten work

    @property
    def model_folder(self) -> Path:
        """Folder of the base model's weights, tokenizer and template."""
        if not self.base_model:
            return self.var.absolute() / "models" / "SmolLM2-135M-Instruct"
        if Path(self.base_model).is_dir():
            return Path(self.base_model).absolute()
        return self.var.absolute() / "models" / self.base_model.replace("/", "--")

    @property
    def template_file(self) -> Path | None:
        """The chat template that server and trainer use; None = the model folder's own."""
        return Path(self.chat_template).resolve() if self.chat_template else None

    @property
    def thinks(self) -> bool:
        """Whether the base model may think before it answers, where its template has a switch."""
        return bool(self.reasoning_parser)

    @property
    def has_gpu(self) -> bool:
        """Whether the installed vLLM is the CUDA one; the installer looked for the GPU."""
        return find_spec("flashinfer") is not None and shutil.which("nvidia-smi") is not None

    @property
    def serving_dtype(self) -> str:
        return self.vllm_dtype or ("bfloat16" if self.has_gpu else "float32")

    @property
    def probe_tolerance(self) -> float:
        """Largest mean |difference| (nats per token) of trainer and server on a probe."""
        return 1e-3 if self.serving_dtype == "float32" else 0.06

    @property
    def max_kept_loras(self) -> int:
        """Adapters that the model server keeps ready; `max_loras` of them in one batch."""
        return max(32, 2 * self.max_loras)

    @property
    def host_in_urls(self) -> str:
        """As addresses and the header Host have it: IPv6 stands in brackets there."""
        return f"[{self.host}]" if ":" in self.host else self.host

    @property
    def has_judge(self) -> bool:
        return bool(self.judge or self.judge_url)

    @property
    def redis(self) -> str:
        return self.redis_url or f"unix://{self.var.resolve() / 'run' / 'valkey.sock'}"

    @property
    def vllms(self) -> tuple[str, ...]:
        """The model servers; at least one."""
        given = [url.rstrip("/") for url in listed(self.vllm_url)]
        return tuple(given) or (f"http://{reached(self.vllm_host)}:{self.vllm_port}",)

    @property
    def vllm(self) -> str:
        return self.vllms[0]

    def secret(self, name: str, given: str) -> str:
        """`given`, or the secret kept in var/`name`, made with 0600 on first use."""
        if given:
            return given
        path = self.var / name
        if not path.exists():
            self.var.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.var, prefix=f".{name}-") as file:
                file.write(secrets.token_urlsafe(48))  # the file is 0600 from birth
                file.flush()
                # A link either makes the whole file or loses to another process that did.
                with contextlib.suppress(FileExistsError):
                    os.link(file.name, path)
        return path.read_text().strip()


@lru_cache(maxsize=1)
def config() -> Config:
    """The settings of this process, read once. A value that is none is named with its variable."""
    try:
        return Config()  # type: ignore[call-arg]  # all fields have defaults
    except ValidationError as error:
        said = (
            f"CLAWWEB_{str(wrong['loc'][0]).upper()}: {wrong['msg']}, not {wrong['input']!r}"
            for wrong in error.errors()
        )
        raise ImproperlyConfigured("\n".join(said)) from None


def strangers() -> list[str]:
    """Variables that look like settings and are none, each with the setting that it may mean."""
    known = [f"CLAWWEB_{name.upper()}" for name in Config.model_fields]
    named = [name for name in os.environ if name.upper().startswith("CLAWWEB_")]
    found = sorted(name for name in named if name.upper() not in [*known, "CLAWWEB_PART"])
    meant = (get_close_matches(name.upper(), known, n=1, cutoff=0.8) for name in found)
    return [
        f"{name} ({near[0]}?)" if near else name for name, near in zip(found, meant, strict=True)
    ]
