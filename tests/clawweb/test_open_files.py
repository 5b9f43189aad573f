"""How many connections the web server may hold."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from clawweb.asgi import MOST_OPEN

ASKED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
import clawweb.asgi
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits(soft: int, hard: int) -> list[int]:
    """The soft and the hard limit of a process that began with these, once it serves."""
    code = ASKED.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("hard", [900, 1500])
def test_it_takes_as_many_as_the_system_lets_it(hard: int) -> None:
    assert limits(700, hard) == [hard, hard]


def test_it_takes_no_more_than_it_can_need() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= MOST_OPEN:
        pytest.skip("this system allows no more")
    assert limits(1024, hard) == [MOST_OPEN, hard]
    assert limits(MOST_OPEN + 1, hard) == [MOST_OPEN + 1, hard]
