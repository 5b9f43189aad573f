"""Rules of the house that a tool can check: borders, a web without torch, sizes, tasks."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clawweb.config import ROOT

LONGEST_FILE = 400
LONGEST_FUNCTION = 60
LONGEST_SCRIPT = 200
LONGEST_TASK = 15
SOURCES = (".py", ".js", ".css", ".html")
NOT_OURS = ("clawweb/migrations/", "static/vendor/")

LOADS_THE_WEB = """
import importlib, pkgutil, sys

import clawweb.asgi
import clawweb.api, clawweb.views
from django.urls import get_resolver

def resolve(patterns):
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            resolve(pattern.url_patterns)
        else:
            assert callable(pattern.callback), pattern

resolver = get_resolver()
resolve(resolver.url_patterns)
for status in (403, 404, 500):
    assert callable(resolver.resolve_error_handler(status))
for package in (clawweb.api, clawweb.views):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for name in ("clawweb.tasks", "clawweb.consumers", "clawweb.admin"):
    importlib.import_module(name)
print(*sorted({"torch", "transformers", "peft", "vllm"} & set(sys.modules)))
"""


def tracked(*suffixes: str) -> list[Path]:
    """Our files of these kinds, as git knows them."""
    listing = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    ours = [name for name in listing if not name.startswith(NOT_OURS)]
    return [ROOT / name for name in ours if name.endswith(suffixes) and (ROOT / name).exists()]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_task(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a decorator makes it one of Celery's."""
    names = []
    for decorator in node.decorator_list:
        named = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.append(named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", ""))
    return bool({"shared_task", "task"} & set(names))


def tasks() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    files = [path for path in tracked(".py") if "clawweb" in path.relative_to(ROOT).parts]
    return [(path.name, node) for path in files for node in functions(path) if is_task(node)]


@pytest.mark.timeout(180)
def test_the_import_contracts_are_kept() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(180)
def test_the_web_process_loads_no_torch() -> None:
    """R10. A process of its own: this one may have loaded it for other tests."""
    done = subprocess.run(
        [sys.executable, "-c", LOADS_THE_WEB],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "clawweb.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_no_source_file_is_too_long() -> None:
    """R11."""
    lengths = {
        path: len(path.read_text(encoding="utf-8").splitlines()) for path in tracked(*SOURCES)
    }
    too_long = {
        str(path.relative_to(ROOT)): length
        for path, length in lengths.items()
        if length > (LONGEST_SCRIPT if path.suffix == ".js" else LONGEST_FILE)
    }
    assert lengths
    assert too_long == {}


def test_no_function_is_too_long() -> None:
    """R11."""
    too_long = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": lines_of(node)
        for path in tracked(".py")
        for node in functions(path)
        if lines_of(node) > LONGEST_FUNCTION
    }
    assert too_long == {}


def test_tasks_take_ids_only() -> None:
    """R14. A row that travels through the queue is old when it arrives."""
    found = tasks()
    assert {node.name for _, node in found} >= {"run_training_job", "deploy", "sweep", "settle"}
    for file, node in found:
        given = node.args
        assert [given.vararg, given.kwarg] == [None, None], f"{file}: {node.name} takes anything"
        for arg in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
            kind = ast.unparse(arg.annotation) if arg.annotation else "nothing said"
            assert kind == "str", f"{file}: {node.name}({arg.arg}: {kind})"


def test_tasks_are_short() -> None:
    """R14. What a task does belongs to a service; the task says what follows."""
    for file, node in tasks():
        body = (node.end_lineno or 0) - node.body[0].lineno + 1
        assert body <= LONGEST_TASK, f"{file}: {node.name} has {body} lines"
