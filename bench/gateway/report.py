"""The results as a Markdown table. Numbers in, text out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

HEAD = (
    "| streams at once | first token, vLLM alone, ms | added, ms | request, vLLM alone, ms "
    "| added, ms | throughput kept | CPU of ours, ms per token | of it web, generator, Valkey "
    "| bytes per token, vLLM and ours |\n|---|---|---|---|---|---|---|---|---|"
)
OURS = ("web", "generator", "valkey")
Facts = dict[str, Any]


def table(cases: Sequence[Facts]) -> str:
    """One row per number of streams: medians over pairs, with the quartiles of the pairs."""
    lines = [HEAD]
    for case in cases:
        direct, gateway = case["bursts"]["direct"], case["bursts"]["gateway"]
        tokens = sum(burst["tokens"] for burst in gateway)
        cpu = {part: case["cpu_seconds"]["gateway"][part] * 1000 / tokens for part in OURS}
        lines.append(
            f"| {case['streams']} ({len(direct)} pairs) "
            f"| {median(direct, 'first_ms'):.0f} | {added(direct, gateway, 'first_ms')} "
            f"| {median(direct, 'request_ms'):.0f} | {added(direct, gateway, 'request_ms')} "
            f"| {kept(direct, gateway)} | **{sum(cpu.values()):.2f}** "
            f"| {', '.join(f'{value:.2f}' for value in cpu.values())} "
            f"| {median(direct, 'bytes_per_token'):.0f}, {median(gateway, 'bytes_per_token'):.0f} |"
        )
    loads = [b["load"] for case in cases for bursts in case["bursts"].values() for b in bursts]
    lines.append(f"\nLoad average {min(loads):.1f} to {max(loads):.1f}.")
    return "\n".join(lines)


def median(bursts: Sequence[Facts], what: str) -> float:
    return statistics.median(burst[what] for burst in bursts)


def added(direct: Sequence[Facts], gateway: Sequence[Facts], what: str) -> str:
    """The median of the differences within pairs, between its quartiles."""
    return spread([ours[what] - theirs[what] for theirs, ours in zip(direct, gateway, strict=True)])


def kept(direct: Sequence[Facts], gateway: Sequence[Facts]) -> str:
    pairs = zip(direct, gateway, strict=True)
    return spread([o["tokens_per_second"] / d["tokens_per_second"] for d, o in pairs], digits=2)


def spread(values: Sequence[float], digits: int = 1) -> str:
    if len(values) < 2:
        return f"**{values[0]:.{digits}f}**"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{low:.{digits}f} – **{middle:.{digits}f}** – {high:.{digits}f}"
