"""What the documents say is there: settings, formulas, files, links, commands, states."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from django.core.management import get_commands

from clawweb.config import ROOT, Config
from clawweb.models import AdapterState, JobState, JudgementState, SampleState, TurnState
from training.config import TrainConfig

MAPPED = ("clawweb/", "rollouts/", "training/")
MOST_WORDS = 6
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"^```\w*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def listed(*folders: str) -> list[str]:
    """What git tracks, under these folders."""
    command = ["git", "ls-files", "--", *folders]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.splitlines() if (ROOT / name).exists()]


def documents() -> list[Path]:
    return [ROOT / name for name in listed() if name.endswith(".md")]


def text_of(name: str) -> str:
    path = ROOT / name
    assert path.exists(), f"{name} is missing"
    return path.read_text(encoding="utf-8")


def headings(text: str) -> set[str]:
    return set(re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.MULTILINE))


def anchor(heading: str) -> str:
    """As GitHub names it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def code_in(text: str) -> list[str]:
    """Lines of fenced blocks, and what stands between backticks."""
    parts = [fenced or inline for fenced, inline in CODE.findall(text)]
    return [line.strip() for part in parts for line in part.splitlines()]


def public_functions(name: str) -> list[str]:
    tree = ast.parse(text_of(name))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [function for function in names if not function.startswith("_")]


def defined_in(path: Path) -> set[str]:
    """Names of a module's functions, classes, methods (`Class.method`) and constants."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            members = [part for part in node.body if hasattr(part, "name")]
            found |= {f"{node.name}.{member.name}" for member in members}
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def not_in(text: str, names: list[str]) -> list[str]:
    return [name for name in names if not re.search(rf"\b{name}\b", text)]


# R12: what can be set, and what is computed, is written down


def test_every_setting_has_a_heading() -> None:
    wanted = {f"CLAWWEB_{name.upper()}" for name in Config.model_fields}
    assert wanted - headings(text_of("docs/operations.md")) == set()


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_setting_that_is_named_exists(document: Path) -> None:
    named = set(re.findall(r"CLAWWEB_([A-Z][A-Z0-9_]*[A-Z0-9])", document.read_text("utf-8")))
    assert {name.lower() for name in named} <= set(Config.model_fields)


def test_every_setting_begins_with_its_default() -> None:
    sections = re.findall(r"^### CLAWWEB_(\w+)\n(.*)$", text_of("docs/operations.md"), re.MULTILINE)
    said = {
        name.lower(): re.match(r"Default: (`[^`]*`|\d+(?:\.\d+)?|\w+)[. ]", line)
        for name, line in sections
    }
    assert [name for name, found in said.items() if found is None] == []
    defaults = {name: _written(field.default) for name, field in Config.model_fields.items()}
    assert {name: found[1] for name, found in said.items() if found} == defaults


def _written(default: object) -> str:
    """As docs/operations.md writes it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, int | float):
        return f"{default:g}" if default < 10_000 else str(default)
    if isinstance(default, Path):
        return f"`{default.relative_to(ROOT)}`"
    return f"`{default}`" if default else "empty"


def test_every_hyperparameter_is_named_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", text_of("docs/algorithms.md"), re.MULTILINE)
    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    assert {name: ast.literal_eval(said) for name, said in rows if name in defaults} == defaults


@pytest.mark.parametrize(
    "module", ["training/advantages.py", "training/losses.py", "training/logprobs.py"]
)
def test_every_formula_is_named(module: str) -> None:
    names = public_functions(module)
    assert names
    assert not_in(text_of("docs/algorithms.md"), names) == []


# The map in the README


def readme_map() -> dict[str, str]:
    """Path to description, from the block of the README that lists the tree."""
    blocks = [fenced for fenced, _ in CODE.findall(text_of("README.md"))]
    block = next((block for block in blocks if block.startswith("rollouts/")), "")
    found: dict[str, str] = {}
    top = ""
    for line in block.splitlines():
        path, _, words = line.strip().partition("  ")
        if not line.startswith(" "):
            top = path
        elif path:
            found[top + path] = words.strip()
    return found


def test_the_readme_maps_every_file() -> None:
    """A folder's own line stands for migrations and catalogs; an empty `__init__.py` needs none."""
    files = {
        name
        for name in listed(*MAPPED)
        if not name.startswith(("clawweb/migrations/", "clawweb/locale/"))
        and not name.endswith("__init__.py")
    }
    mapped = {name for name in readme_map() if not name.endswith("/")}
    assert mapped - files == set(), "on the map and not in the tree"
    assert files - mapped == set(), "in the tree and not on the map"
    assert list(readme_map()) == sorted(readme_map(), key=_folder_and_name), "the map in order"


def _folder_and_name(path: str) -> tuple[int, str]:
    """The map's three folders in their order, each by the alphabet."""
    return ("rollouts", "training", "clawweb").index(path.split("/")[0]), path


def test_the_map_is_terse() -> None:
    wordy = {name: words for name, words in readme_map().items() if len(words.split()) > MOST_WORDS}
    silent = [name for name, words in readme_map().items() if not words]
    assert (wordy, silent) == ({}, [])


@pytest.mark.parametrize(("name", "longest"), [("README.md", 250), ("ARCHITECTURE.md", 235)])
def test_the_first_documents_stay_short(name: str, longest: int) -> None:
    assert len(text_of(name).splitlines()) <= longest


# What documents point at


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue  # the web's own
        name, _, place = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        assert path.exists(), f"{document.name} links to {target}"
        if place:
            anchors = {anchor(heading) for heading in headings(path.read_text(encoding="utf-8"))}
            assert place in anchors, f"{document.name} links to {target}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_and_names_of_code_exist(document: Path) -> None:
    """`folder/file.py` is there, and so is a name that follows it: `folder/file.py` `name`."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    folders = "clawweb|rollouts|training|tests|docs|bench|requirements|static|templates"
    for path in re.findall(rf"`((?:{folders})/[\w./-]*)`", text):
        assert (ROOT / path).exists(), f"{document.name} names {path}"
    for path, names in re.findall(r"`([\w/]+\.py)`((?:,? `[A-Za-z_][\w.]*`)+)", text):
        missing = set(re.findall(r"`([\w.]+)`", names)) - defined_in(ROOT / path)
        assert missing == set(), f"{document.name} names {missing} of {path}"


OLD = ("docs/decisions/0", "CHANGELOG.md")  # not rewritten: they name what there was


@pytest.mark.parametrize(
    "document",
    [path for path in documents() if not str(path.relative_to(ROOT)).startswith(OLD)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_dotted_names_of_code_exist(document: Path) -> None:
    """`training.kto.kto_backward`, and `kto.kto_backward` for short, is in training/kto.py."""
    for dotted in set(re.findall(r"`([a-z_]+(?:\.\w+)+)`", document.read_text("utf-8"))):
        first, *rest = dotted.split(".")
        is_whole = first in ("training", "rollouts", "clawweb") and len(rest) > 1
        folders = [first] if is_whole else []
        if not folders and (ROOT / "training" / f"{first}.py").exists():
            folders, rest = ["training"], [first, *rest]
        if folders and rest[-1] != "py":
            assert _is_there(folders[0], rest), f"{document.name} names {dotted}"


def _is_there(package: str, names: list[str]) -> bool:
    """Whether the names lead to a module, or to something that one defines or imports."""
    path = ROOT / package
    while names and (path / names[0]).is_dir():
        path, names = path / names[0], names[1:]
    if not names:
        return True
    module = path / f"{names[0]}.py"
    if module.exists():
        return len(names) == 1 or ".".join(names[1:]) in defined_in(module)
    return names[0] in (path / "__init__.py").read_text(encoding="utf-8")


@cache
def all_tests() -> set[str]:
    texts = [text_of(name) for name in listed("tests") if name.endswith(".py")]
    return {name for text in texts for name in re.findall(r"def (test_\w+)", text)}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_are_named_exist(document: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", document.read_text(encoding="utf-8")))
    assert named - all_tests() == set()


def test_each_promise_of_security_names_a_test() -> None:
    _, _, below = text_of("docs/security.md").partition("\n| promise | test |\n")
    table, _, _ = below.partition("\n\n")
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[1:]]
    assert len(rows) >= 25
    assert [promise for promise, *tests in rows if not re.search("`test_", "".join(tests))] == []


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", text_of("Makefile"), re.MULTILINE))


def target_of(command: str) -> str | None:
    """The target in a `make` command line; None for `make` alone."""
    words = iter(command.split()[1:])
    for word in words:
        if word == "-C":
            next(words, None)
        elif re.fullmatch(r"[a-z][a-z-]*", word):
            return word
        elif "=" not in word:
            return None
    return None


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_exist(document: Path) -> None:
    for line in code_in(document.read_text(encoding="utf-8")):
        if re.match(r"make\b", line):
            target = target_of(line)
            assert target is None or target in make_targets(), f"{document.name}: {line}"
        for command in re.findall(r"manage\.py ([a-z_]+)", line):
            assert command in get_commands(), f"{document.name}: {line}"


# Diagrams of states


@pytest.mark.parametrize(
    ("heading", "states"),
    [
        ("Turn", TurnState),
        ("Sample", SampleState),
        ("Judgement", JudgementState),
        ("Job", JobState),
        ("Adapter version", AdapterState),
    ],
)
def test_state_diagrams_show_every_state(heading: str, states: type[TurnState]) -> None:
    section = re.split(rf"^### {heading}$", text_of("ARCHITECTURE.md"), flags=re.MULTILINE)
    assert len(section) == 2, f"ARCHITECTURE.md has no section {heading}"
    diagram = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", section[1], re.DOTALL)
    assert diagram, f"{heading} has no diagram"
    edges = re.findall(r"^ *(\S+) --> ([^\s:]+)", diagram[1], re.MULTILINE)
    drawn = {state for edge in edges for state in edge} - {"[*]"}
    assert drawn == set(states.values)
