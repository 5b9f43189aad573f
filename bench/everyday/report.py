"""The everyday bench's results as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def table(results: dict[str, Any]) -> str:
    """Every seed and the medians; satisfied / nll after each number of rated turns."""
    seeds = results["seeds"]
    turns = sorted({int(n) for seed in seeds.values() for n in seed["evals"]})
    lines = [f"{'seed':<8}" + "".join(f"{f'{n} turns':>16}" for n in turns) + "   jobs"]
    for name, seed in sorted(seeds.items(), key=lambda pair: int(pair[0])):
        cells = [seed["evals"].get(str(n)) for n in turns]
        states = ", ".join(job["state"] for job in seed["jobs"])
        lines.append(
            f"{name:<8}" + "".join(f"{cell_of(cell):>16}" for cell in cells) + f"   {states}"
        )
    middle = [
        {
            key: median([s["evals"][str(n)][key] for s in seeds.values() if str(n) in s["evals"]])
            for key in ("satisfied", "nll")
        }
        for n in turns
    ]
    lines.append(f"{'median':<8}" + "".join(f"{cell_of(cell):>16}" for cell in middle))
    lines.append(f"hinted base: {cell_of(results['hinted_base'])}  (satisfied / nll)")
    times = [job["seconds"] for s in seeds.values() for job in s["jobs"] if "seconds" in job]
    for name in times[0] if times else ():
        values = [each[name] for each in times if each[name] is not None]
        lines.append(f"{name:<20} median {median(values):>7} s   most {max(values):>7} s")
    lines += [f"{part:<20} {mib:>8.0f} MiB PSS at most" for part, mib in results["memory"].items()]
    return "\n".join(lines)


def cell_of(values: dict[str, Any] | None) -> str:
    if values is None:
        return "–"
    nll = "–" if values["nll"] is None else f"{values['nll']:.2f}"
    return f"{values['satisfied']:.2f} / {nll}"


def median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None
