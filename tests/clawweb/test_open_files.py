"""How many connections the web server may hold."""

from __future__ import annotations

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


BOUNDED = """
import resource
import clawweb.asgi
clawweb.asgi.MOST_OPEN = {most}
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
clawweb.asgi.raise_limit_of_open_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits(soft: int, hard: int, most: int = MOST_OPEN) -> list[int]:
    """The soft and the hard limit of a process that began with these, once it serves."""
    code = (ASKED if most == MOST_OPEN else BOUNDED).format(soft=soft, hard=hard, most=most)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("hard", [900, 1500])
def test_it_takes_as_many_as_the_system_lets_it(hard: int) -> None:
    assert limits(700, hard) == [hard, hard]


def test_it_takes_no_more_than_it_can_need() -> None:
    """With a smaller bound: not every system allows more than the real one."""
    assert MOST_OPEN == 65_536
    assert limits(700, 1500, most=1000) == [1000, 1500]
    assert limits(1001, 1500, most=1000) == [1001, 1500]
