"""What we are made of, run by .venv/bin/python.

`make sbom` writes var/sbom.json (CycloneDX) and docs/licenses.md; `make audit` looks for known
vulnerabilities of the pinned versions.
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


def tool(package: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """A command of a package that is fetched for this call alone."""
    whole = [VENV / "bin" / "uv", "tool", "run", "--from", package, *command]
    return subprocess.run(
        whole, env=uv_environment("cpu"), capture_output=True, text=True, check=False
    )


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    """The packages of the CPU lock with their versions, without a build's mark."""
    lock = (HERE / "cpu.lock").read_text(encoding="utf-8")
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;+]+)", lock, re.MULTILINE)
    return {plain(name): version for name, version in found}


def license_of(component: dict[str, Any]) -> str:
    names = []
    for each in component.get("licenses", []):
        given = each.get("license", {})
        names.append(given.get("id") or given.get("name") or each.get("expression") or "")
    words = {name.removeprefix("License :: ").removeprefix("OSI Approved :: ") for name in names}
    exact = {name for name in words if name and "::" not in name and " License" not in name}
    fallback = DECLARED.get(plain(component["name"]), "")
    return " / ".join(sorted(exact or words - {""})) or fallback or "not declared"


def sbom() -> int:
    SBOM.parent.mkdir(mode=0o700, exist_ok=True)
    done = tool(CYCLONEDX, "cyclonedx-py", "environment", VENV, "-o", SBOM)
    if done.returncode:
        print(done.stderr[-2000:])
        return 1
    wanted = pins()
    parts = json.loads(SBOM.read_text(encoding="utf-8"))["components"]
    rows = sorted((plain(part["name"]), part) for part in parts)
    lines = [
        f"| {name} | {wanted[name]} | {license_of(part)} |\n"
        for name, part in rows
        if name in wanted  # uv itself and Python's own are in nobody's lock
    ]
    LICENSES.write_text(HEAD + "".join(lines), encoding="utf-8")
    print(f"{len(parts)} packages in {SBOM.relative_to(ROOT)}, {len(lines)} licences in docs/")
    return 0


def audit() -> int:
    """1 when a pinned version has a known vulnerability, or could not be looked up: what was not
    audited is not clean."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{name}=={version}\n" for name, version in pins().items())
        file.flush()
        options = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json"]
        done = tool(PIP_AUDIT, "pip-audit", "-r", file.name, *options)
    try:
        rows = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(done.stderr[-2000:])
        return 1
    skipped = [row["name"] for row in rows if "skip_reason" in row]
    bad = [(row["name"], row["version"], vuln) for row in rows for vuln in row.get("vulns", [])]
    for name, version, vuln in bad:
        fixed = ", ".join(vuln["fix_versions"]) or "nowhere yet"
        print(f"{name} {version}: {vuln['id']}, fixed in {fixed}")
    print(f"{len(rows) - len(skipped)} audited, {len(bad)} findings, {len(skipped)} not audited")
    return 1 if bad or skipped else 0


if __name__ == "__main__":
    sys.exit({"sbom": sbom, "audit": audit}[sys.argv[1]]())
