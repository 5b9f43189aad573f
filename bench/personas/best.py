"""Best of n: do the base's own scores find, among its replies under a hint, one that keeps it?

    PYTHONPATH=. python bench/personas/best.py --base var/models/SmolLM2-135M-Instruct \\
        --people praises greets asks --n 6 --questions 12

Such a reply could be learned as words, as a correction is, with nobody having written it. Of n
replies y to each question x under the hint h, the one with the highest
  hint      log pi_0(y | x, h) - log pi_0(y | x): how much more the hint makes of it (Bayes: how
            likely the hint is, given the reply)
  per word  the same, per token
  question  log pi_0(y | x) - log pi_0(y | x'), x' the next question: how much is of the question
  both      the highest by `hint` of those that have at least half of what the base's replies have
            of the question, if there are any
Per score: the share of chosen replies that keep the wish (by the person's own rule, which no score
knows), and the median of `question` as a share of the base's. Beside it one reply of the n, taken
blindly, and the share of questions with any reply that keeps the wish: what a judge that never errs
would find. Replies that copy the hint's marker or the question are left out. No server.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peft import PeftModel

from bench.personas.cell import quiet
from bench.personas.lab import MAX_TOKENS, TEMPERATURE, asked
from bench.personas.people import PEOPLE, Answer, Person
from bench.personas.questions import is_recipe, questions_for
from rollouts.hints import HINT_MARKER
from training.adapters import attach
from training.base import Base, load_base
from training.config import TrainConfig
from training.forward import replies_logprobs
from training.gate import question_gains
from training.sampling import Reply, sample_replies

Prompts = Sequence[tuple[int, ...]]
COPIED = 40  # letters of the question that a reply begins with


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One reply under the hint; scores in nats."""

    keeps: bool
    copies: bool
    hint: float
    question: float
    tokens: int


def sums(base: Base, model: PeftModel, prompts: Prompts, replies: Sequence[Reply]) -> list[float]:
    """log pi_0(y | x) of each reply, nats."""
    pairs = tuple(zip(prompts, (reply.ids for reply in replies), strict=True))
    with model.disable_adapter():
        return [float(each_T.sum()) for each_T in replies_logprobs(base, model, pairs, quiet)]


def sampled(base: Base, model: PeftModel, prompts: Prompts, seed: int) -> list[Reply]:
    with model.disable_adapter():
        return sample_replies(
            base, model, prompts, temperature=TEMPERATURE, max_new_tokens=MAX_TOKENS, seed=seed,
            check=quiet,
        )  # fmt: skip


def tries(
    base: Base, model: PeftModel, person: Person, questions: Sequence[str], seed: int
) -> list[Tried]:
    """One reply to each question under the person's hint."""
    hinted = [base.render(asked(question, [person.hint])) for question in questions]
    plain = [base.render(asked(question)) for question in questions]
    replies = sampled(base, model, hinted, seed)
    under, alone, other = (
        sums(base, model, prompts, replies) for prompts in (hinted, plain, [*plain[1:], plain[0]])
    )
    found = []
    for number, (question, reply) in enumerate(zip(questions, replies, strict=True)):
        text = base.tokenizer.decode(reply.ids, skip_special_tokens=True)
        answer = Answer(
            question=question, text=text, tokens=len(reply.ids), has_ended=reply.is_finished,
            is_recipe=is_recipe(question),
        )  # fmt: skip
        found.append(
            Tried(
                keeps=person.is_satisfied(answer),
                copies=HINT_MARKER in text or text.strip()[:COPIED] == question[:COPIED],
                hint=under[number] - alone[number],
                question=alone[number] - other[number],
                tokens=len(reply.ids),
            )
        )
    return found


def own_question(base: Base, model: PeftModel, questions: Sequence[str]) -> float:
    """Of the question in the base's own replies without a hint: the median, nats."""
    plain = [base.render(asked(question)) for question in questions]
    replies = sampled(base, model, plain, seed=99)
    with model.disable_adapter():
        ids = [reply.ids for reply in replies]
        return statistics.median(question_gains(base, model, plain, ids, quiet))


def scores_of(whole: float) -> dict[str, Callable[[Tried], float]]:
    """By name; `whole`: of the question in the base's own replies, nats."""
    return {
        "hint": lambda one: one.hint,
        "per word": lambda one: one.hint / one.tokens,
        "question": lambda one: one.question,
        "both": lambda one: one.hint if one.question >= whole / 2 else one.hint - 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--people", nargs="+", default=["greets"], choices=PEOPLE)
    parser.add_argument("--n", type=int, default=6)
    parser.add_argument("--questions", type=int, default=12)
    args = parser.parse_args()
    base = load_base(args.base)
    model = attach(base, TrainConfig(), None)
    for name in args.people:
        questions = questions_for(PEOPLE[name], 0, 0)[0][: args.questions]
        whole = own_question(base, model, questions)
        sets = [tries(base, model, PEOPLE[name], questions, seed) for seed in range(args.n)]
        each = list(zip(*sets, strict=True))  # by question
        print(f"{name}: any of {args.n} {share([any(o.keeps for o in group) for group in each])}")
        chosen = {"blindly": [group[0] for group in each]}
        for score, value in scores_of(whole).items():
            honest = ([one for one in group if not one.copies] or group for group in each)
            chosen[score] = [max(group, key=value) for group in honest]
        for score, ones in chosen.items():
            of_it = statistics.median(one.question for one in ones) / whole
            kept = share([one.keeps for one in ones])
            print(f"  {score}: {kept}, {of_it:.2f} of the question", flush=True)


def share(kept: Sequence[bool]) -> str:
    return f"{statistics.fmean(kept):.2f}"


if __name__ == "__main__":
    main()
