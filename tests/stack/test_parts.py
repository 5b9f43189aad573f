"""The parts' commands."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from celery import Celery
from safetensors.numpy import save_file

from clawweb import celery, generator
from clawweb.config import ROOT, Config
from clawweb.stack import parts
from clawweb.stack.readiness import web_url
from clawweb.stack.supervisor import Supervisor


def settings(tmp_path: Path, **chosen: object) -> Config:
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", var=tmp_path, **chosen)


def names(config: Config) -> list[str]:
    return [part.name for part in parts.all_parts(config)]


def test_every_part_is_started_by_default(tmp_path: Path) -> None:
    expected = ["valkey", "vllm", "web", "generator", "worker-light", "worker-gpu", "beat"]
    assert names(settings(tmp_path)) == expected


def test_a_start_on_a_busy_machine_is_waited_for(tmp_path: Path) -> None:
    """All parts start at once; with other work beside, the trainer took more than a minute."""
    started = parts.all_parts(settings(tmp_path))
    assert {part.name for part in started if part.seconds_to_ready < 180} == set()


def test_a_server_that_is_elsewhere_is_not_started(tmp_path: Path) -> None:
    config = settings(tmp_path, redis_url="redis://queue/0", vllm_url="http://gpu:8000")
    assert names(config) == ["web", "generator", "worker-light", "worker-gpu", "beat"]


def test_vllm_listens_on_loopback_whatever_the_host_and_keeps_its_key_out_of_ps(
    tmp_path: Path,
) -> None:
    part = parts.vllm(settings(tmp_path, host="0.0.0.0", vllm_key="the-key"))
    assert part.command[part.command.index("--host") + 1] == "127.0.0.1"
    assert "the-key" not in " ".join(part.command)
    assert part.environment["VLLM_API_KEY"] == "the-key"


def test_vllms_rank_and_context_are_those_in_use(tmp_path: Path) -> None:
    command = parts.vllm(settings(tmp_path, lora_rank=16, context_tokens=512)).command
    assert command[command.index("--max-lora-rank") + 1] == "16"
    assert command[command.index("--max-model-len") + 1] == "512"


def test_vllm_adapts_the_layers_that_the_trainer_does(tmp_path: Path) -> None:
    """Also where they have names of their own, as Phi-3's; norms and the output layer stay out."""
    matrix, vector = np.zeros((2, 2), np.float32), np.zeros(2, np.float32)
    tensors = {
        "model.embed_tokens.weight": matrix,
        "lm_head.weight": matrix,
        "model.layers.0.input_layernorm.weight": vector,
        "model.layers.0.self_attn.qkv_proj.weight": matrix,
        "model.layers.0.mlp.gate_up_proj.weight": matrix,
    }
    save_file(tensors, tmp_path / "model.safetensors")
    command = parts.vllm(settings(tmp_path, base_model=str(tmp_path))).command
    given = command[command.index("--lora-target-modules") + 1 :]
    assert given == ["gate_up_proj", "qkv_proj"]


def test_forwarded_headers_are_believed_only_from_a_trusted_proxy(tmp_path: Path) -> None:
    assert "--no-proxy-headers" in parts.web(settings(tmp_path)).command
    assert "--proxy-headers" in parts.web(settings(tmp_path, trusted_proxy=True)).command


def test_a_message_of_a_socket_has_at_most_a_mebibyte(tmp_path: Path) -> None:
    command = parts.web(settings(tmp_path)).command
    assert command[command.index("--ws-max-size") + 1] == str(2**20)


def test_trainer_and_server_share_no_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "cores", lambda: [0, 1, 2, 3])
    config = settings(tmp_path, train_threads=2)
    assert parts.training_cores(config) == [2, 3]
    assert parts.serving_cores(config) == "0,1"


def test_on_one_core_nothing_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "cores", lambda: [0])
    assert parts.training_cores(settings(tmp_path)) == []
    assert parts.serving_cores(settings(tmp_path)) == "auto"


def test_a_worker_for_judging_runs_only_where_there_is_a_judge(tmp_path: Path) -> None:
    assert "worker-judge" not in names(settings(tmp_path))
    for judge in ({"judge_url": "http://127.0.0.1:1/v1"}, {"judge": "short"}):
        config = settings(tmp_path, **judge)
        assert "worker-judge" in names(config)
        command = parts.worker_judge(config).command
        assert command[command.index("--queues") + 1] == "judge"


def test_two_installations_on_one_redis_have_workers_of_different_names(tmp_path: Path) -> None:
    one, two = settings(tmp_path / "one"), settings(tmp_path / "two")
    assert parts.node_name(one, "worker-gpu") != parts.node_name(two, "worker-gpu")


def test_training_gives_way_to_replies_on_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "cores", lambda: [0, 1])
    monkeypatch.setattr(Config, "has_gpu", False)
    trainer, server = (part(settings(tmp_path)) for part in (parts.worker_gpu, parts.vllm))
    assert trainer.nice == 10
    assert server.nice == 0
    assert trainer.cores == [1]
    assert server.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    # Threads that spin while they wait take the core that a nice value would leave to others.
    assert trainer.environment["OMP_WAIT_POLICY"] == "passive"
    assert trainer.environment["GOMP_SPINCOUNT"] == "0"
    assert "1" in trainer.command[trainer.command.index("--concurrency") :]


@pytest.mark.parametrize("name", ["worker-light", "worker-gpu", "worker-judge"])
def test_long_work_sees_that_its_worker_is_asked_to_end(tmp_path: Path, name: str) -> None:
    command = parts.MAKERS[name](settings(tmp_path)).command
    # The flag is set in the worker's own process; its children would be killed with their work.
    assert command[command.index("--pool") + 1] == "threads"


def test_on_a_gpu_the_server_leaves_memory_to_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Config, "has_gpu", True)
    config = settings(tmp_path, vllm_gpu_share=0.4)
    command = parts.vllm(config).command
    assert command[command.index("--gpu-memory-utilization") + 1] == "0.4"
    assert parts.worker_gpu(config).nice == 10


def test_the_server_takes_as_many_replies_at_once_as_a_generator_asks_for(tmp_path: Path) -> None:
    command = parts.vllm(settings(tmp_path)).command
    assert command[command.index("--max-num-seqs") + 1] == str(generator.CONCURRENT)


@pytest.mark.parametrize("gpu", [True, False])
def test_where_vllm_would_mix_adapters_into_base_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    monkeypatch.setattr(Config, "has_gpu", gpu)
    command = parts.vllm(settings(tmp_path)).command
    assert ("--worker-extension-cls" in command) is not gpu
    if not gpu:
        named = command[command.index("--worker-extension-cls") + 1]
        module, name = named.rsplit(".", 1)
        found = find_spec(module)
        assert found
        assert f"class {name}:" in Path(str(found.origin)).read_text(encoding="utf-8")


def test_a_clock_that_was_ahead_for_a_while_keeps_no_sweep_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, sent = Celery("clock", broker="memory://", set_as_current=False), []
    app.conf.update(
        beat_schedule={
            "sweep": {"task": "sweep", "schedule": 15.0},
            "settle": {"task": "settle", "schedule": 5.0},
        }
    )
    clock = celery.Clock(app, Producer=lambda *_, **__: None)
    monkeypatch.setattr(clock, "apply_entry", lambda entry, producer: sent.append(entry.name))

    def due(now: datetime) -> list[str]:
        monkeypatch.setattr(app, "now", lambda: now)
        sent.clear()
        for _ in range(4):
            clock.tick()
        return sorted(sent)

    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert due(now + timedelta(days=365)) == ["settle", "sweep"]  # at a start, all of them
    assert due(now + timedelta(days=365, seconds=6)) == ["settle"]
    assert due(now) == ["settle", "sweep"]  # the machine has asked a time server
    assert due(now + timedelta(seconds=1)) == []
    assert due(now + timedelta(seconds=16)) == ["settle", "sweep"]


def test_beat_keeps_its_times_by_that_clock_and_in_no_file(tmp_path: Path) -> None:
    app = celery.app
    assert app.conf.beat_scheduler == "clawweb.celery:Clock"
    assert "--schedule" not in parts.beat(settings(tmp_path)).command


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("fd00::5", "[fd00::5]"),
        ("chat.example", "chat.example"),
    ],
)
def test_each_server_is_asked_where_it_listens(tmp_path: Path, host: str, address: str) -> None:
    assert web_url(settings(tmp_path, host=host)) == f"http://{address}:8000"
    assert settings(tmp_path, vllm_host=host).vllm == f"http://{address}:8100"


def test_who_comes_by_an_ipv6_address_that_is_bound_is_answered(tmp_path: Path) -> None:
    code = "from django.conf import settings as s; from django.http.request import validate_host; "
    code += "print(validate_host('[fd00::5]', s.ALLOWED_HOSTS))"
    django = {"DJANGO_SETTINGS_MODULE": "clawweb.settings", "CLAWWEB_HOST": "fd00::5"}
    env = {**os.environ, "CLAWWEB_VAR": str(tmp_path), **django}
    told = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=env, text=True)
    assert told == "True\n"


def test_what_is_named_from_where_a_start_is_called_is_found_in_the_checkout_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts run there; the model server and the trainer must have the same files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine.jinja").touch()
    config = settings(Path("data"), base_model="mine", chat_template="mine.jinja")
    spec = Supervisor(config, []).spec(parts.vllm(config))
    monkeypatch.chdir(ROOT)
    there = Config(
        _env_prefix="NOT_FROM_THIS_ENVIRONMENT_",
        var=spec["environment"]["CLAWWEB_VAR"],
        base_model=spec["environment"]["CLAWWEB_BASE_MODEL"],
        chat_template=spec["environment"]["CLAWWEB_CHAT_TEMPLATE"],
    )
    assert (there.var, there.model_folder) == (tmp_path / "data", tmp_path / "mine")
    assert there.template_file == tmp_path / "mine.jinja"
    assert spec["command"][spec["command"].index("--model") + 1] == str(tmp_path / "mine")


def test_a_data_folder_that_is_named_from_here_has_the_model_servers_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = parts.vllm(settings(Path("data"))).command
    assert command[command.index("--model") + 1].startswith(f"{tmp_path}/data/")
