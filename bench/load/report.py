"""The results of a run as Markdown tables. What was not measured is a dash."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

Facts = dict[str, Any]
QUANTILES = (0.5, 0.95, 0.99)


def summary(asked: Sequence[Facts]) -> Facts:
    """Counts by outcome; quantiles of seconds to the first token and to the last."""
    found: Facts = {"asked": len(asked), "outcomes": dict(Counter(a["outcome"] for a in asked))}
    for what in ("first", "whole"):
        good = [a[what] for a in asked if a["outcome"] == "ok" and a[what] is not None]
        found[what] = quantiles(good)
    return found


def quantiles(values: Sequence[float]) -> list[float] | None:
    """The nearest ranks; None when there are no values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return [round(ordered[round(q * last)], 3) for q in QUANTILES] if ordered else None


def tables(run: Facts) -> str:
    parts = [_chat(run["busy"]), _pairs(run["pairs"]), _memory(run["memory"]), _costs(run["costs"])]
    loads = run["load"]
    parts.append(f"Load average {loads[0]:.1f} before, {loads[1]:.1f} after.")
    return "\n\n".join(part for part in parts if part)


def _chat(busy: Facts) -> str:
    lines = [
        f"{busy['users']} users at once for {busy['seconds']:.0f} s:",
        "",
        "| asked by | questions | first token, s: p50, p95, p99 | whole reply, s | outcomes |",
        "|---|---|---|---|---|",
    ]
    for way in ("socket", "api", "all"):
        one = busy[way]
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(one["outcomes"].items()))
        lines.append(
            f"| {way} | {one['asked']} | {_three(one['first'])} | {_three(one['whole'])} "
            f"| {outcomes} |"
        )
    others = ", ".join(f"{name} × {count}" for name, count in sorted(busy["others"].items()))
    return "\n".join([*lines, "", f"Ratings and jobs by answer: {others or 'none'}."])


def _three(values: Sequence[float] | None) -> str:
    return ", ".join(f"{value:.2f}" for value in values) if values else "–"


def _pairs(pairs: Sequence[Facts]) -> str:
    if not pairs:
        return ""
    lines = [
        "The same chat beside a training job and without, in turns:",
        "",
        "| pair | first token, s, idle: p50, p95 | training | whole reply, s, idle | training "
        "| ratio of medians: first, whole | replies, idle and training |",
        "|---|---|---|---|---|---|---|",
    ]
    ratios: dict[str, list[float]] = {"first": [], "whole": []}
    for number, pair in enumerate(pairs, start=1):
        idle, training = pair["idle"], pair["training"]
        shown = []
        for what, kept in ratios.items():
            if idle[what] and training[what]:
                kept.append(training[what][0] / idle[what][0])
                shown.append(f"{kept[-1]:.2f}")
            else:
                shown.append("–")
        counts = f"{idle['outcomes'].get('ok', 0)}, {training['outcomes'].get('ok', 0)}"
        lines.append(
            f"| {number} ({pair['job']}) | {_two(idle['first'])} | {_two(training['first'])} "
            f"| {_two(idle['whole'])} | {_two(training['whole'])} | {', '.join(shown)} | {counts} |"
        )
    spreads = [f"{what} {spread(values)}" for what, values in ratios.items() if values]
    return "\n".join([*lines, "", f"Training against idle: {'; '.join(spreads)}."])


def spread(values: Sequence[float]) -> str:
    """Least, **median**, most."""
    return f"{min(values):.2f} – **{statistics.median(values):.2f}** – {max(values):.2f}"


def _two(values: Sequence[float] | None) -> str:
    return ", ".join(f"{value:.2f}" for value in values[:2]) if values else "–"


def _memory(samples: Sequence[Facts]) -> str:
    lines = [
        "| part | PSS, MiB: at first, most, at last | RSS, most | CPU, s |",
        "|---|---|---|---|",
    ]
    for part in [name for name in samples[-1] if name != "at"]:
        pss = [sample[part]["pss"] for sample in samples]
        rss = max(sample[part]["rss"] for sample in samples)
        cpu = samples[-1][part]["cpu"] - samples[0][part]["cpu"]
        lines.append(
            f"| {part} | {pss[0]:.0f}, {max(pss):.0f}, {pss[-1]:.0f} | {rss:.0f} | {cpu:.0f} |"
        )
    return "\n".join(lines)


def _costs(costs: Facts) -> str:
    return "\n".join(
        [
            "| what it costs | |",
            "|---|---|",
            *(f"| {what} | {value} |" for what, value in costs.items()),
        ]
    )
