"""What people said, told apart by the base: wishes about an answer, and small talk.

    PYTHONPATH=. python bench/personas/small_talk.py --base var/models/SmolLM2-135M-Instruct

By `training.small_talk.wish_nats`: at some limits the share of wishes that are lost, and of small
talk that is found; then those nearest to the wrong side. small_talk.json has what was looked at
when its examples and the limit were chosen, and what was not.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.personas.people import PEOPLE
from training.base import Base, load_base
from training.small_talk import said_ids, wish_nats

LIMITS = (-4.0, -3.0, -2.0, -1.5, -1.0, 0.0)
SHOWN = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True)
    base = load_base(parser.parse_args().base, threads=1)
    said = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
    people = {wish.hint for person in PEOPLE.values() for wish in person.wishes}
    said["the simulated people"] = {"wishes": sorted(people), "small talk": []}
    for name, kinds in said.items():
        nats = {
            kind: sorted((highest(base, text), text) for text in texts)
            for kind, texts in kinds.items()
        }
        print(f"{name}: {', '.join(f'{len(found)} {kind}' for kind, found in nats.items())}")
        for limit in LIMITS:
            below = [sum(value < limit for value, _ in found) for found in nats.values()]
            print(f"  below {limit}: {below[0]} wishes, {below[1]} small talk")
        print("  lowest wishes:", shown(nats["wishes"][:SHOWN]))
        print("  highest small talk:", shown(nats["small talk"][::-1][:SHOWN]), flush=True)


def highest(base: Base, text: str) -> float:
    """Of its sentences: one wish is enough."""
    return max(wish_nats(base, base.model, said) for said in said_ids(base, text))


def shown(found: list[tuple[float, str]]) -> str:
    return ", ".join(f"{value:.1f} {text}" for value, text in found)


if __name__ == "__main__":
    main()
