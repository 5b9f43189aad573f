"""Does an example of what a person likes make the base follow a hint that it does not follow alone?

    PYTHONPATH=. python bench/personas/shown.py --people asks greets praises --sets 3

Per person: replies of the hinted base to training questions until two of them satisfy; then the
share of held-out first answers that satisfy under the hint alone, after one and after two such
exchanges. Each set has training questions of its own; figures are all of them.
"""

from __future__ import annotations

import argparse
import json
import statistics

from bench.personas.lab import Lab, answer_of, asked, own_lab
from bench.personas.people import PEOPLE, Person
from bench.personas.questions import questions_for
from rollouts.hints import demonstrated_messages
from rollouts.types import BASE, Demonstration

AT_ONCE, ROUNDS, WORDS = 8, 4, 80


def liked_by(lab: Lab, person: Person, number: int) -> list[Demonstration]:
    """Two replies of the hinted base that satisfy, if so many are found; short ones."""
    questions, found = questions_for(person, number)[0], []
    for start in range(0, AT_ONCE * ROUNDS, AT_ONCE):
        some = questions[start : start + AT_ONCE]
        replies = lab.ask([asked(q, [person.hint]) for q in some], BASE, seed=1000 * number + start)
        for question, reply in zip(some, replies, strict=True):
            answer = answer_of(question, reply)
            is_short = answer.has_ended and len(answer.text.split()) <= WORDS
            if is_short and person.is_satisfied(answer):
                found.append(Demonstration(question=question, answer=reply.text.strip()))
        if len(found) >= 2:
            break
    return found[:2]


def satisfied(lab: Lab, person: Person, shown: list[Demonstration]) -> float:
    """Share of held-out first answers under the hint, after the exchanges."""
    held_out = questions_for(person, 0)[1]
    prompts = [
        demonstrated_messages(asked(question, [person.hint]), shown, hint=person.hint)
        for question in held_out
    ]
    replies = lab.ask(prompts, BASE, seed=5000)
    answers = [answer_of(*pair) for pair in zip(held_out, replies, strict=True)]
    return statistics.fmean(person.is_satisfied(answer) for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", nargs="+", default=list(PEOPLE), choices=PEOPLE)
    parser.add_argument("--sets", type=int, default=3)
    args = parser.parse_args()
    with own_lab() as lab:
        for name in args.people:
            person = PEOPLE[name]
            shares: dict[int, list[float]] = {0: [satisfied(lab, person, [])], 1: [], 2: []}
            for number in range(args.sets):
                shown = liked_by(lab, person, number)
                for count in range(1, len(shown) + 1):
                    shares[count].append(satisfied(lab, person, shown[:count]))
            found = {
                f"after {count}": [round(value, 2) for value in sorted(values)]
                for count, values in shares.items()
            }
            print(name, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
