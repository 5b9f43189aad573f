"""The training run: rated replies first, then re-answers, until learned or out of steps or time."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor

from rollouts.types import Sample
from training.advantages import Baseline, updated_baseline
from training.base import Base
from training.batching import (
    Item,
    Pair,
    chosen_for_reanswer,
    in_steps_beside,
    micro_batches,
    reanswer_sets,
    shared_ids,
)
from training.config import REPLAYED, TrainConfig
from training.corrections import WordsLeft, correction_backward
from training.demonstrations import with_demonstrations
from training.errors import Diverged, NoSignal
from training.forward import read_once, response_logprobs
from training.heard import unheard_among, without_unheard
from training.kto import (
    config_for_thumbs,
    earlier_thumbs,
    kto_backward,
    kto_steps_after_hints,
    weights_of,
)
from training.liked import Liked
from training.metrics import begin_memory, step_metrics
from training.optimizer import go_on_with, make_optimizer, step_share
from training.prepare import HINT_NO_EFFECT, prepare, said_again, shortened, under_collected
from training.sampling import sample_replies
from training.step import StepSums, counts_of, group_backward
from training.teacher import Effect, Teacher
from training.types import RATED, REANSWER, THUMBS, StepMetrics, TrainResult


def train(
    base: Base,
    model: PeftModel,
    samples: Sequence[Sample],
    config: TrainConfig,
    *,
    replay: Sequence[Sample] = (),
    parent_optimizer: Path | None = None,
    baseline: Baseline,
    on_step: Callable[[StepMetrics], None],
    check: Callable[[], None],
    enough: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> TrainResult:
    """Train `model`'s adapter on one job's samples.

    The rated replies train once, in ceil(n / batch_size) steps; thumbs alone as `config` says. Then
    up to max_steps - 1 times the current adapter answers the hinted prompts anew, without the hint,
    and is distilled under it. `replay`: earlier jobs' samples, oldest first: the newest hinted are
    answered anew, too, liked ones may be held (`Liked`), KTO's steps use all their thumbs. `check`,
    called often, may raise; `enough`, asked after each step, ends the run. Raises NoSignal where
    nothing can train, Diverged at a gradient that is not finite.
    """
    run = _Run(base=base, model=model, config=config, on_step=on_step, check=check, clock=clock)
    run.started, run.enough = clock(), enough
    known = _known(run, [*replay, *samples], earlier=len(replay))
    replay, samples = known[: len(replay)], known[len(replay) :]
    items, dropped = _prepared(run, samples, replay, baseline)
    config, adam = run.config, run.begin_steps(parent_optimizer)
    hinted = [item for item in items if item.is_hinted]
    run.sets = reanswer_sets(items, config)
    replayed = _replayed(run, replay, is_alone=not hinted) if run.sets else []
    learns, epochs = (True, 1) if hinted or replayed else (False, config.reward_epochs)
    left = sorted((s for s in known if learns and s.id not in dropped), key=lambda s: s.id)
    run.liked = Liked(base, model, left, config, check)
    batches = in_steps_beside(items, earlier_thumbs(base, replay, config), config.batch_size)
    run.kto_weights = weights_of([item for batch in batches for item in batch])
    kto, thumbs = kto_steps_after_hints(base, config, left)
    run.steps = epochs * len(batches) + learns * run.sets * config.reanswer_steps + len(thumbs)
    reached, stopped = _rate(run, batches, epochs)
    trained = tuple(item.sample_id for item in items if item.sample_id in reached)
    if learns and stopped != "asked":
        stopped = _reanswer(run, hinted, replayed, known)
        stopped = _rest_on_thumbs(run, kto, thumbs) or stopped
    rewards = [s.reward for s in samples if s.reward is not None and s.id in trained]
    return TrainResult(
        config=config,
        steps=run.step,
        trained=trained,
        dropped=dropped,
        reanswers=dict(run.reanswers),
        effects=dict(run.effects),
        unheard=run.unheard,
        baseline=updated_baseline(baseline, rewards, rate=config.baseline_rate),
        optimizer=adam,
        stopped=stopped,
        seconds=clock() - run.started,
    )


def _known(run: _Run, samples: Sequence[Sample], *, earlier: int) -> list[Sample]:
    """All, of long chats the newest part, without hints that are not heard; with demonstrations, of
    which the job's own replies (those after the first `earlier`) that cannot train are none."""
    base, config = run.base, run.config
    newest = [shortened(base, sample, config) for sample in samples]
    known, run.unheard = without_unheard(base, run.model, newest, config, run.check)
    if not config.demonstrations:
        return known
    _, unfit = prepare(base, known[earlier:], config, baseline=Baseline())
    liked = [sample for sample in known if sample.id not in unfit]
    return with_demonstrations(base, run.model, known, liked, config)


def _rate(run: _Run, batches: Sequence[Sequence[Item]], epochs: int) -> tuple[set[int], str]:
    """A step on each batch of rated replies, `epochs` times over as far as there is time; the
    samples that were reached, and why it ended."""
    reached: set[int] = set()
    if epochs > 1 and not run.config.is_kto:
        batches = [[_with_proximal(run, item) for item in batch] for batch in batches]
    for number, batch in enumerate([*batches] * epochs):
        began = run.clock()
        if number >= len(batches) and run.is_late(began):
            return reached, "time"
        _step(run, batch, phase=RATED, began=began)
        reached |= {item.sample_id for item in batch}
        if run.enough():
            return reached, "asked"
    return reached, "steps"


@dataclass(kw_only=True)
class _Run:
    """What the steps of one run share."""

    base: Base
    model: PeftModel
    config: TrainConfig
    on_step: Callable[[StepMetrics], None]
    check: Callable[[], None]
    clock: Callable[[], float]
    enough: Callable[[], bool] = lambda: False
    started: float = 0.0
    step: int = 0
    steps: int = 0
    sets: int = 0  # of re-answers
    longest_step: float = 0.0
    kto_weights: tuple[float, float] = (1.0, 1.0)
    base_logprobs: dict[Pair, Tensor] = field(default_factory=dict)
    unheard: frozenset[int] = frozenset()
    again: frozenset[str] = frozenset()  # hints that are said although a version has learned them
    effect: float | None = None  # KL(base || teacher) on the hinted replies, nats per token
    words: WordsLeft = field(default_factory=WordsLeft)
    reanswers: Counter[int] = field(default_factory=Counter)
    effects: dict[int, tuple[float, ...]] = field(default_factory=dict)  # of each token
    optimizer: torch.optim.AdamW = field(init=False)
    teacher: Teacher = field(init=False)
    liked: Liked = field(init=False)

    def __post_init__(self) -> None:
        begin_memory(self.base.device)
        self.optimizer = make_optimizer(self.model, self.config)
        self.teacher = Teacher(self.base, self.model, self.config)

    def is_late(self, now: float) -> bool:
        """Whether what begins now would end after the time that a job has."""
        return now - self.started + self.longest_step > self.config.train_seconds

    def begin_steps(self, parent: Path | None) -> torch.optim.AdamW:
        """Adam as the parent left it, for the child to go on with. KTO, which begins from all
        thumbs anew, steps by one of its own: its moments would be of another loss."""
        adam = self.optimizer
        if parent is not None:
            go_on_with(adam, parent)
        if self.config.is_kto:
            self.optimizer = make_optimizer(self.model, self.config)
        return adam

    @property
    def parameters(self) -> list[Tensor]:
        return list(self.optimizer.param_groups[0]["params"])


def _prepared(
    run: _Run, samples: Sequence[Sample], replay: Sequence[Sample], baseline: Baseline
) -> tuple[list[Item], dict[int, str]]:
    """What trains, and why the rest does not. Where no hint is left, it may be by another method:
    then that is the run's. Raises NoSignal when nothing trains."""
    run.again = said_again(samples, replay)
    items, dropped = prepare(run.base, samples, run.config, baseline=baseline, again=run.again)
    items = _effective(run, items, dropped)
    idle = {number: why for number, why in dropped.items() if why == HINT_NO_EFFECT}
    left = [sample for sample in samples if sample.id not in idle]
    if (again := said_again(left, replay)) > run.again:  # what asks for nothing is no other wish
        run.again = again
        items, _ = prepare(run.base, left, run.config, baseline=baseline, again=again)
        items = _effective(run, items, dropped)
    config = config_for_thumbs(run.base, run.config, left, replay)
    if config != run.config:
        run.config = config
        items, dropped = prepare(run.base, left, config, baseline=baseline)
    dropped = unheard_among(dropped, run.unheard) | idle
    if not items:
        raise NoSignal(dropped, unheard=run.unheard)
    return items, dropped


def _effective(run: _Run, items: Sequence[Item], dropped: dict[int, str]) -> list[Item]:
    """The items whose hint does more to the base on the rated reply than a note that asks for
    nothing; the others drop: hint_no_effect. Also keeps the mean effect KL(base || teacher) of
    those that stay, and the teacher's states."""
    effects: dict[int, Effect] = {}
    items = [run.teacher.with_chosen_hint(item, run.check) for item in items]
    if not run.config.measures_effects:
        return items
    hinted = [item for item in items if item.is_hinted]
    run.teacher.begin(hinted)
    for group in micro_batches(hinted, run.config, run.base.device):
        run.check()
        for item, effect in zip(group, run.teacher.effects(group, run.check), strict=True):
            effects[item.sample_id] = effect
    small = run.config.hint_effect_min
    idle = {
        item.sample_id
        for item in hinted
        if (own := effects[item.sample_id].own) is not None and own < small
    }
    dropped.update(dict.fromkeys(idle, HINT_NO_EFFECT))
    if moving := [effect.kl_T for number, effect in effects.items() if number not in idle]:
        run.effect = float(torch.cat(moving).mean())
    return [item for item in items if item.sample_id not in idle]


def _replayed(run: _Run, replay: Sequence[Sample], *, is_alone: bool) -> list[Item]:
    """Hinted items whose prompts are answered anew: however old the reply to them is by now.

    When the job has no hint of its own, the hints' whole effect is measured on these.
    """
    fresh = [replace(sample, version_age=0) for sample in replay]
    items, dropped = prepare(run.base, fresh, run.config, baseline=Baseline(), again=run.again)
    items = [item for item in items if item.is_hinted][-REPLAYED:]
    if is_alone:
        return _effective(run, items, dropped)
    return [run.teacher.with_chosen_hint(item, run.check) for item in items]


def _rest_on_thumbs(run: _Run, kto: TrainConfig, steps: Sequence[Sequence[Item]]) -> str | None:
    """The last steps, after the hints: the first is made however late it is. Their Adam begins
    anew and ends with them, as its moments are of another loss. Returns why they ended early."""
    own, adam, ended = run.config, run.optimizer, None
    for number, items in enumerate(steps):
        began = run.clock()
        is_late = number > 0 and run.is_late(began)
        if ended := "asked" if run.enough() else "time" if is_late else None:
            break
        if not number:
            run.config, run.optimizer = kto, make_optimizer(run.model, kto)
            run.kto_weights = weights_of(items)
        _step(run, items, phase=THUMBS, began=began)
    run.config, run.optimizer = own, adam
    return ended


def _with_proximal(run: _Run, item: Item) -> Item:
    """The item with the log-probs that the policy gives it before it trains: the clip's centre."""
    run.check()
    logprobs_T = response_logprobs(run.base, run.model, item.plain, temperature=item.temperature)
    return replace(item, proximal_logprobs=tuple(logprobs_T.tolist()))


def _reanswer(
    run: _Run, hinted: Sequence[Item], replayed: Sequence[Item], known: Sequence[Sample]
) -> str:
    """Answer, distill, repeat. Returns why it ended. `known`: whose hints can be collected."""
    config = run.config
    if config.reanswer_hints == "collected":
        # What was dropped teaches nobody.
        taught = {item.sample_id for item in (*hinted, *replayed)}
        known = [sample for sample in known if sample.id in taught]
        own = [*hinted, *replayed]
        hinted = under_collected(run.base, hinted, known, config)
        replayed = under_collected(run.base, replayed, known, config)
        if [*hinted, *replayed] != own:  # how far there is to go is another way now
            _effective(run, hinted or replayed, {})
    for turn in range(run.sets):
        if run.enough():
            return "asked"
        began = set_began = run.clock()
        if run.is_late(began):
            return "time"
        asked = chosen_for_reanswer(hinted, replayed, turn=turn, batch_size=config.batch_size)
        beside = run.liked.asked(turn)
        replies = sample_replies(
            run.base,
            run.model,
            [item.prompt_ids for item in (*asked, *beside)],
            temperature=config.reanswer_temperature,
            max_new_tokens=config.reanswer_tokens,
            seed=config.seed + turn,
            check=run.check,
        )
        batch = [
            replace(
                item,
                response_ids=reply.ids,
                reward=None,
                advantage=None,  # nobody has voted on this reply
                rollout_logprobs=None,
                is_fresh=True,
                is_finished=reply.is_finished,
                temperature=config.reanswer_temperature,
            )
            for item, reply in zip(asked, replies[: len(asked)], strict=True)
        ]
        run.liked.answered(beside, replies[len(asked) :])
        if config.reanswer_steps > 1:
            batch = [_with_proximal(run, item) for item in batch]
        run.reanswers.update(item.sample_id for item in batch)
        run.teacher.forget()
        for _ in range(config.reanswer_steps):
            kl = _step(run, batch, phase=REANSWER, began=began)
            began = run.clock()
            if kl is not None and kl < config.kl_stop and not any(i.correction_ids for i in batch):
                return "learned"
            if run.enough():
                return "asked"
        run.longest_step = max(run.longest_step, began - set_began)
    return "steps"


def _step(run: _Run, items: Sequence[Item], *, phase: str, began: float) -> float | None:
    """One optimizer step. Returns the mean KL under the hints before it, None without hints."""
    if run.config.is_kto:
        weights, known = run.kto_weights, run.base_logprobs
        loss = kto_backward(
            run.base, run.model, items, run.config, run.check, weights=weights, known=known
        )
        sums = StepSums(loss=loss)
    else:
        sums = _backward(run, items)
        run.effects.update(sums.effects)
    grad_norm = float(torch.nn.utils.clip_grad_norm_(run.parameters, run.config.grad_clip))
    kl = sums.kl / sums.hinted_tokens if sums.hinted_tokens else None
    is_finite = math.isfinite(grad_norm) and math.isfinite(sums.loss)
    lr = None
    if is_finite:
        left = run.words.after(sums)
        share = step_share(kl, effect=run.effect, words_left=left, config=run.config, items=items)
        lr = run.optimizer.param_groups[0]["lr"] = run.config.lr * share
        run.optimizer.step()
    run.optimizer.zero_grad()
    run.step += 1
    seconds = run.clock() - began
    run.longest_step = max(run.longest_step, seconds)
    run.on_step(
        step_metrics(
            items,
            sums,
            step=run.step,
            steps=run.steps,
            phase=phase,
            grad_norm=grad_norm,
            lr=lr,
            seconds=seconds,
            device=run.base.device,
        )
    )
    if not is_finite:  # told first, so that the charts show where
        raise Diverged(f"step {run.step}: loss {sums.loss}, gradient norm {grad_norm}")
    return kl


def _backward(run: _Run, items: Sequence[Item]) -> StepSums:
    """The step's gradient, a micro-batch at a time."""
    counts = counts_of(items, run.config)
    sums = correction_backward(run.base, run.model, items, run.config, run.check)
    sums.loss += run.liked.backward()
    run.teacher.begin(items)
    taught = []
    for group in micro_batches(items, run.config, run.base.device):
        run.check()
        taught.append((group, run.teacher.hidden(group)))
    begins = shared_ids([item.prompt_ids for item in items], device=run.base.device)
    with read_once(run.base, run.model, begins) as read:
        for group, teacher_NH in taught:
            run.check()
            sums += group_backward(
                run.base, run.model, group, teacher_NH, config=run.config, counts=counts, read=read
            )
    return sums
