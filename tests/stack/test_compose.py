"""compose.yaml, read: by the specification's schema, and against the parts and settings there are.

`compose_spec.json` is the schema as docker-compose 1.29.2 carries it (Apache-2.0). Nothing is
started here.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.core.management import call_command
from django.test import Client

from clawweb.config import ROOT, Config
from clawweb.stack import parts

TEXT = (ROOT / "compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "clawweb"}
PARTS = {name: service for name, service in OURS.items() if service["command"][0] == "part"}


def settings_of(service: dict[str, Any]) -> dict[str, str]:
    """Its CLAWWEB_*, with what stands for a value when nothing is set."""
    values = {
        name: re.sub(r"\$\{\w+(?::?[-?]([^}]*))?\}", r"\1", str(value))
        for name, value in service.get("environment", {}).items()
    }
    return {name: value for name, value in values.items() if name.startswith("CLAWWEB_")}


def config_of(service: dict[str, Any]) -> Config:
    """An empty value counts as not set, as in the environment."""
    told = settings_of(service).items()
    given = {name.removeprefix("CLAWWEB_").lower(): value for name, value in told if value}
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", **given)  # type: ignore[arg-type]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Volume to path."""
    return dict(entry.split(":")[:2] for entry in service.get("volumes", []))


def test_it_is_what_the_specification_says() -> None:
    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text())
    jsonschema.Draft201909Validator(schema).validate(COMPOSE)


def test_the_schema_finds_what_is_wrong() -> None:
    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text())
    wrong = {**COMPOSE, "services": {"web": {**SERVICES["web"], "comand": ["part", "web"]}}}
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.Draft201909Validator(schema).validate(wrong)


def test_each_part_has_a_container_and_runs_as_it_would_here() -> None:
    assert {service["command"][1] for service in PARTS.values()} == set(parts.MAKERS) - {"valkey"}
    assert all(service["command"] == ["part", name] for name, service in PARTS.items())
    assert OURS["prepare"]["command"] == ["prepare", "--all"]


def test_part_becomes_the_parts_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from clawweb.config import config

    became: list[Any] = []
    monkeypatch.setattr(os, "execvpe", lambda *args: became.append(args))
    monkeypatch.setattr(os, "nice", lambda by: became.append(by))
    monkeypatch.chdir(ROOT)
    call_command("part", "worker-gpu")
    nice, (program, command, environment) = became
    part = parts.worker_gpu(config())
    assert (nice, program, command) == (part.nice, part.command[0], part.command)
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("name", OURS)
def test_each_setting_exists_and_has_a_value_that_is_taken(name: str) -> None:
    known = {f"CLAWWEB_{field.upper()}" for field in Config.model_fields}
    assert set(settings_of(OURS[name])) <= known
    config_of(OURS[name])


def test_the_port_that_is_asked_is_the_one_that_web_listens_on() -> None:
    """Whatever `.env` says: the health checks of all parts name it, and what is opened."""
    told = settings_of(SERVICES["web"])["CLAWWEB_PORT"]
    assert SERVICES["web"]["ports"] == [f"127.0.0.1:{told}:{told}"]
    checks = [str(s["healthcheck"]["test"]) for name, s in OURS.items() if "healthcheck" in s]
    asked = {
        port for check in checks for port in re.findall(r"//(?:web|127\.0\.0\.1):(\d+)", check)
    }
    assert asked - {"8100"} == {told}  # 8100 is the model server's own


def test_rows_and_the_model_server_see_a_version_under_the_same_path() -> None:
    served = mounts(SERVICES["vllm"])
    assert set(served) == {"models", "adapters"}
    for name, service in OURS.items():
        there = mounts(service)
        assert {volume: there[volume] for volume in served} == served, name
        config = config_of(service)
        assert str(config.var / "adapters") == there["adapters"]
        assert str(config.model_folder.parent) == there["models"]
    assert all(entry.endswith(":ro") for entry in SERVICES["vllm"]["volumes"])


def test_the_model_server_listens_to_its_own_network_and_knows_no_secret_but_its_key() -> None:
    server = SERVICES["vllm"]
    assert server["networks"] == ["inside"]
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert "ports" not in server
    assert not server["env_file"]
    assert not {"CLAWWEB_DATABASE_URL", "CLAWWEB_SECRET_KEY"} & set(server["environment"])
    command = parts.vllm(config_of(server)).command
    assert command[command.index("--host") + 1] == "0.0.0.0"


def test_the_model_server_is_told_what_its_command_depends_on() -> None:
    """In another container than `.env`, so each by name."""
    read: set[str] = set()

    class Watched(Config):
        def __getattribute__(self, name: str) -> Any:
            if name in Config.model_fields:
                read.add(f"CLAWWEB_{name.upper()}")
            return super().__getattribute__(name)

    config = Watched(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_")
    read.clear()
    parts.vllm(config)
    read |= {"CLAWWEB_VLLM_GPU_SHARE"}  # with a GPU
    assert {"CLAWWEB_LORA_RANK", "CLAWWEB_CONTEXT_TOKENS"} <= read
    fixed = {"CLAWWEB_VLLM_PORT", "CLAWWEB_TRAIN_THREADS"}  # the trainer has cores of its own
    assert read - fixed <= set(settings_of(SERVICES["vllm"]))


def test_all_know_one_number_format_of_the_model_server() -> None:
    """A worker without a GPU compares its log-probs: it cannot tell the format by looking."""
    formats = {name: settings_of(service)["CLAWWEB_VLLM_DTYPE"] for name, service in OURS.items()}
    assert set(formats.values()) == {"bfloat16"}


def test_no_container_of_ours_is_root_or_may_become_it() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    user = [line.split()[1] for line in lines if line.startswith("USER")]
    assert user == ["clawweb"]
    for service in OURS.values():
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not {"user", "privileged", "cap_add"} & set(service)


def test_no_containers_log_can_fill_the_disk() -> None:
    for service in SERVICES.values():
        assert {"max-size", "max-file"} <= set(service["logging"]["options"])


def test_no_secret_is_written_down() -> None:
    assert ".env" in (ROOT / ".dockerignore").read_text().split()
    assert ".env" in (ROOT / ".gitignore").read_text().split()
    secret = re.findall(r"(?:PASSWORD|_KEY): (.*)", TEXT)
    assert secret
    assert all(value.startswith('"${') for value in secret)


@pytest.mark.django_db
def test_every_container_that_stays_says_how_it_is(client: Client, engine: Any) -> None:
    known = set(client.get("/readyz").json()["parts"]) | {"worker-judge"}  # where one is set
    for name, service in SERVICES.items():
        if name == "prepare":
            continue
        test = " ".join(service["healthcheck"]["test"])
        if asked := re.search(r"readyz\?part=([\w-]+)", test):
            assert asked[1] == name
            assert name in known
    assert "/livez" in " ".join(SERVICES["web"]["healthcheck"]["test"])


@pytest.mark.django_db
def test_a_container_asks_for_its_own_part(client: Client, engine: Any) -> None:
    from clawweb.services.health import beat

    assert client.get("/readyz?part=generator").status_code == 503
    beat("generator@here", "generator")
    assert client.get("/readyz?part=generator").json() == {
        "ready": True,
        "parts": {"generator": "ok"},
    }
    assert client.get("/readyz?part=nothing").status_code == 503
