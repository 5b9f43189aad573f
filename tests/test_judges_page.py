"""The judge on docs/judges.md, installed as the page says, judges."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from clawweb.config import ROOT, Config
from clawweb.stack.lifecycle import check_judge
from clawweb.stack.terminal import StackError
from rollouts.judge import Judged, ask, judge_names, load_judge, verdict
from rollouts.types import Message

PAGE = (ROOT / "docs" / "judges.md").read_text(encoding="utf-8")

Install = Callable[..., None]


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def settings(**values: str) -> Config:
    return Config(_env_prefix="NOT_FROM_THIS_ENVIRONMENT_", **cast(Any, values))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Packages with an entry point each, as pip leaves them on the path."""

    def install(name: str, target: str, source: str) -> None:
        module = target.partition(":")[0]
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[clawweb.judges]\n{name} = {target}\n")

    monkeypatch.syspath_prepend(str(tmp_path))
    return install


@pytest.fixture
def short(installed: Install) -> str:
    (pair,) = re.findall(r'^(\w+) = "(\w+:\w+)"$', block("toml"), re.MULTILINE)
    installed(*pair, block("python"))
    return str(pair[0])


@pytest.mark.parametrize(("words", "score", "hints"), [(30, 1, 0), (31, -1, 1)])
async def test_the_pages_judge_votes(short: str, words: int, score: int, hints: int) -> None:
    asked = Judged(
        messages=[Message(role="user", content="What is tea?")],
        reply=Message(role="assistant", content="word " * words),
        next_state=[Message(role="user", content="ok")],
    )
    result = verdict(await ask(load_judge(short), asked, votes=3, seconds=1))
    assert (result.score, len(result.hints)) == (score, hints)


def test_an_unknown_name_says_which_there_are(short: str) -> None:
    assert judge_names() == ["short"]
    with pytest.raises(ValueError, match=r"no judge is called 'long'.*: short"):
        load_judge("long")


BROKEN = {
    "has_no_method": ("class J:\n    pass\n", "no `async def judge`"),
    "is_not_async": ("class J:\n    def judge(self, asked): ...\n", "no `async def judge`"),
    "raises": (
        "class J:\n    def __init__(self):\n        raise OSError('disk')\n",
        "OSError: disk",
    ),
    "imports_nothing": ("import there_is_no_such_module\n", "ModuleNotFoundError"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_judge_that_cannot_be_made_says_why(installed: Install, name: str) -> None:
    source, complaint = BROKEN[name]
    installed("broken", f"judge_that_{name}:J", source)
    with pytest.raises(ValueError, match=complaint):
        load_judge("broken")


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"judge": "long"}, r"no judge is called 'long'.*short.*CLAWWEB_JUDGE"),
        ({"judge_url": "http://127.0.0.1:1/v1"}, "model has to be named.*CLAWWEB_JUDGE_MODEL"),
        ({"judge_url": "127.0.0.1:1", "judge_model": "m"}, "starts with http.*CLAWWEB_JUDGE_URL"),
    ],
)
def test_nothing_starts_with_a_judge_that_cannot_judge(
    short: str, values: dict[str, str], complaint: str
) -> None:
    with pytest.raises(StackError, match=complaint):
        check_judge(settings(**values))


def test_settings_that_can_judge_are_let_through(short: str) -> None:
    check_judge(settings(judge=short))
    check_judge(settings(judge_url="http://127.0.0.1:1/v1", judge_model="m"))
    check_judge(settings())
