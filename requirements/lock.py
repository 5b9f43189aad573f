"""Write cpu.lock and cuda.lock from the .in files: `make lock`. Run by .venv/bin/python."""

import re
import subprocess
import sys
from pathlib import Path

from install import torch_source, uv_environment

HERE = Path(__file__).parent
HEAD = """\
# Made by `make lock` from {name}.in. Every file is checked by its hash but torch's: its wheel comes
# from a local folder, PyTorch's own index or the registry, as the machine has it, and differs by
# platform and mirror; its version is pinned.
"""


def resolve(name: str, options: list[str]) -> str:
    command: list[str | Path] = [Path(sys.executable).with_name("uv"), "pip", "compile"]
    command += [f"{name}.in", *options, "--generate-hashes", "--python-version", "3.11"]
    command += ["--no-header", "--upgrade", "--quiet"]
    # The default registry alone: a mirror may have but some of a version's files and hashes.
    environment = {**uv_environment(name), "UV_INDEX": ""}
    done = subprocess.run(
        command, cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def without_torch_hashes(lock: str) -> str:
    return re.sub(r"^(torch==\S+)(?: \\\n    --hash=\S+)+", r"\1", lock, flags=re.MULTILINE)


def main() -> None:
    cpu = ["--overrides", "overrides.txt", *torch_source("cpu")]
    for name, options in (("cpu", cpu), ("cuda", [])):
        lock = without_torch_hashes(resolve(name, options))
        (HERE / f"{name}.lock").write_text(HEAD.format(name=name) + lock)
        print(f"{name}.lock: {lock.count('==')} packages")


if __name__ == "__main__":
    main()
