"""Bring .venv to what the lock says, or do nothing when it is there already.

Standard library only: it is run by the machine's own Python, before anything is installed.
`python install.py [cpu|cuda]`; without a word the machine is asked whether it has an NVIDIA GPU.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parent / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "installed"
LOCKS = ("cpu", "cuda")


def say(text: str) -> None:
    print(f"install: {text}", flush=True)


def backend() -> str:
    """cuda where nvidia-smi finds a GPU, else cpu."""
    if not shutil.which("nvidia-smi"):
        return "cpu"
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "cuda" if listing.returncode == 0 and "GPU 0" in listing.stdout else "cpu"


def pip_settings() -> dict[str, str]:
    """What pip is told by its files and PIP_*: uv reads neither. A variable wins over a file."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listing = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    pairs = [line.split("=", 1) for line in listing.splitlines() if "=" in line]
    pairs.sort(key=lambda pair: pair[0].startswith(":env:"))
    return {key.rsplit(".", 1)[-1]: value.strip("'\"") for key, value in pairs}


def uv_environment(name: str) -> dict[str, str]:
    """This environment, with pip's registry settings in uv's names where uv has none of its own."""
    pip = pip_settings()
    environment = dict(os.environ)
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
        "cert": "SSL_CERT_FILE",
    }
    for key, variable in names.items():
        if pip.get(key):
            environment.setdefault(variable, " ".join(pip[key].split()))
    if name == "cuda":  # a CPU torch lying there would count as the better 2.13.0
        environment.pop("UV_FIND_LINKS", None)
    elif "UV_FIND_LINKS" in environment:  # pip parts them by spaces, uv by commas
        environment["UV_FIND_LINKS"] = ",".join(environment["UV_FIND_LINKS"].split())
    # pip takes the best file of all indexes; what is taken is checked by hash all the same.
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    environment.setdefault("UV_HTTP_TIMEOUT", pip.get("default-timeout") or "180")
    return environment


def torch_source(name: str) -> list[str]:
    """The plain registry has no CPU torch: a local wheel if there is one, else PyTorch's index."""
    if name == "cuda":
        return []
    folders = uv_environment(name).get("UV_FIND_LINKS", "").split(",")
    local = any(folder and any(Path(folder).glob("torch-*.whl")) for folder in folders)
    return [] if local else ["--torch-backend", "cpu"]


def wanted(name: str) -> str:
    """Changes with the lock, the installer or the Python that runs it."""
    files = ("install.py", "uv.txt", f"{name}.lock")
    content = b"".join((HERE / file).read_bytes() for file in files)
    return f"{name} {sys.version.split()[0]} {hashlib.sha256(content).hexdigest()}\n"


def is_installed(name: str) -> bool:
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted(name)


def make_venv() -> None:
    probe = [PYTHON, "-m", "pip", "--version"]
    if not PYTHON.exists() or subprocess.run(probe, capture_output=True, check=False).returncode:
        say(f"making .venv with Python {sys.version.split()[0]}")
        subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)


def install(name: str) -> None:
    started = time.monotonic()
    STAMP.unlink(missing_ok=True)
    say("fetching uv")
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", HERE / "uv.txt"]
    subprocess.run(pip, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, check=True)
    say(f"installing {name}.lock (first time: about 600 MB to fetch, one to four minutes)")
    lock, environment = HERE / f"{name}.lock", uv_environment(name)
    options = ["--python", PYTHON, *torch_source(name)]
    uv = [VENV / "bin" / "uv", "pip"]
    subprocess.run([*uv, "sync", *options, lock], env=environment, check=True)
    # Two packages write ninja/__init__.py: django-ninja and ninja, the build tool, which vLLM asks
    # for and of which only bin/ninja is needed. uv installs side by side, so either may be last.
    again = ["install", *options, "--no-deps", "--reinstall-package", "django-ninja", "-r", lock]
    subprocess.run([*uv, *again], env=environment, check=True)
    STAMP.write_text(wanted(name))
    say(f"done in {time.monotonic() - started:.0f} s")


def main() -> int:
    if sys.version_info[:2] != (3, 11):
        say(f"the locks are made for Python 3.11, this is {sys.version.split()[0]}")
        say("name one that is with `make PYTHON=/path/to/python3.11 ...`")
        return 1
    name = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else backend()
    if name not in LOCKS:
        say(f"there is no lock {name!r}: LOCK is {' or '.join(LOCKS)}, or left out")
        return 1
    if is_installed(name):
        return 0
    with Path(__file__).open() as lock:  # one at a time: a second copy waits, then finds it done
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_installed(name):
            return 0
        try:
            make_venv()
            install(name)
        except subprocess.CalledProcessError as error:
            say(f"failed: {' '.join(map(str, error.cmd[:4]))} … ended with {error.returncode}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
