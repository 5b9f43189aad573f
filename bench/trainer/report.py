"""The results as a Markdown table. Numbers in, text out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

HEAD = (
    "| loss, batch | contestant | s per update | response tokens/s | all tokens/s "
    "| ours is faster by | in CPU time | peak MiB (above the model) |\n"
    "|---|---|---|---|---|---|---|---|"
)


def table(cases: Sequence[dict[str, Any]]) -> str:
    """One row per contestant. Ratios are those of each round: least, median, most."""
    lines = [HEAD]
    for case in cases:
        ours = case["contestants"]["ours"]
        job = case.get("job", 1)
        where = f"{case['loss']}, {case['shape']}" + (f", {job} to a job" if job > 1 else "")
        for name, found in case["contestants"].items():
            seconds = found["median_seconds"] / job
            wall = ratios(found["seconds"], ours["seconds"]) if found is not ours else ""
            cpu = ratios(found["cpu_seconds"], ours["cpu_seconds"]) if found is not ours else ""
            lines.append(
                f"| {where} | {name} | {seconds:.1f} | {case['response_tokens'] / seconds:.1f} "
                f"| {case['total_tokens'] / seconds:.1f} | {wall} | {cpu} "
                f"| {found['peak_mib']} ({found['above_loaded_mib']}) |"
            )
            where = ""
    loads = [n for c in cases for f in c["contestants"].values() for n in f["load"]]
    lines.append(f"\nLoad average {min(loads)} to {max(loads)}.")
    return "\n".join(lines)


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> str:
    found = [their / our for their, our in zip(theirs, ours, strict=True)]
    return f"{min(found):.2f} – **{statistics.median(found):.2f}** – {max(found):.2f}"
