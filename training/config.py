"""TrainConfig: every hyper-parameter of a job with its meaning and its source. No torch."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

METHODS = ("combine", "opd", "binary", "kto", "apo_zero_unpaired")  # the usual one first
KTO = ("kto", "apo_zero_unpaired")  # methods; the losses of whole replies
THUMBS = (*KTO, "binary")
ESTIMATORS = ("full", "token", "topk")
SUPPORTS = ("student", "teacher")
COMBINES = ("losses", "advantages")
LOSS_MEANS = ("tokens", "replies")
TEACHERS = ("base", "parent")
REANSWER_HINTS = ("own", "collected")
REANSWER_SETS = ("needed", "all")
CHOOSABLE = (  # fields that a job may be queued with; the rest is the installation's
    "estimator", "topk", "topk_support", "topk_clip", "teacher", "hint_boost", "hint_boost_again",
    "question_boost", "question_tokens", "forward_share", "reanswer_hints", "reanswer_sets",
    "demonstrations", "correction_weight", "correction_kept_weight", "liked_weight", "combine",
    "distill_weight", "reward_weight", "anchor_weight", "clip_low", "clip_high", "importance_cap",
    "negative_importance_cap", "positive_cap", "negative_cap", "reward_epochs", "reward_step",
    "kto_beta", "kto_beside", "kto_beside_steps", "thumbs", "thumbs_batch", "thumbs_epochs",
    "thumbs_step",
)  # fmt: skip
MOST_EPOCHS = 16  # that a job may be given
MOST_WORDS = 1000  # of the support of top-k; the memory of choosing a hint goes by its square
CANDIDATES = 4  # liked replies that demonstrations are chosen from: the newest
HINT_TOKENS = 256  # first of a hint that are told where there is no room for all of it
COLLECTED = 4  # hints of other replies that stand before a re-answer's own: the newest said again
REPLAYED = 8  # of what earlier versions learned under hints, answered anew: the newest
THUMBS_REPLAYED = 56  # of the thumbs that earlier versions learned, for steps of KTO: the newest
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what --max-lora-rank accepts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One job's settings, frozen with the job. Raises ValueError when a field makes no sense."""

    method: str = METHODS[0]  # how ratings become gradients: docs/algorithms.md, Methods
    seed: int = 0  # of what is sampled: re-answers and the gate's replies

    # The adapter
    rank: int = 8  # LoRA r; at 8 the CPU server's prefill is twice as fast as at 16 (vLLM bench)
    alpha: int = 16  # LoRA alpha; scale alpha / r = 2 as OpenClaw-RL's 16 / 32

    # The optimizer
    lr: float = 6e-4  # AdamW's learning rate; 3e-4 is too slow, 1e-3 overshoots: LOG, Recipe tuning
    beta1: float = 0.9  # Adam (arXiv 1412.6980)
    beta2: float = 0.98  # shorter memory than 0.999: a job has a handful of steps; OpenClaw-RL
    weight_decay: float = 0.0  # none: what holds the policy back is a KL, not a norm
    grad_clip: float = 1.0  # largest global norm of a gradient; OpenClaw-RL, slime's default

    # The job
    batch_size: int = 4  # replies per optimizer step; 8 taught less of the same ratings (LOG)
    loss_mean: str = "tokens"  # a step's loss is a mean over its "tokens", or over its "replies"
    max_steps: int = 7  # 1 for the rated replies; the rest: most sets of re-answers
    reward_epochs: int = 1  # passes over the rated replies in a job that distils no hint
    train_seconds: float = 120.0  # time limit; only the first pass and first step of KTO ignore it
    kl_full_share: float = 0.5  # steps shrink with the KL below this share of the hints' effect
    kl_stop: float = 0.01  # re-answers end when the KL to the teacher is below it, nats per token
    micro_batch_tokens: int = 512  # padded tokens held at once, on a GPU 4 times; bounds memory
    max_tokens: int = 1024  # prompt plus reply; the oldest exchanges go, or it is dropped: too_long
    earlier_exchanges: int = 1  # of a chat, that train before the newest; each takes time (LOG)
    max_version_age: int = 3  # older samples are dropped as stale; ART, TRL drop at 4

    # Distillation
    teacher: str = "base"  # who is shown the hint: the "base", or the "parent" version of the job
    estimator: str = "full"  # of KL(policy || teacher): "full", "topk" words or sampled "token"
    topk: int = 4  # estimator topk: number of words; OpenClaw-RL's second generation
    topk_support: str = "student"  # estimator topk: whose likeliest words, "student" or "teacher"
    topk_clip: float = 1.0  # estimator topk: most nats a word's log-ratio counts; OpenClaw-RL
    distill_weight: float = 1.0  # weight of the distillation beside the reward
    demonstrations: int = 0  # liked replies shown to the teacher as examples beside a hint
    demonstration_tokens: int = 96  # longest such reply; longer ones are no examples
    correction_weight: float = 4.0  # weight of the cross-entropy on what users wrote instead; LOG
    correction_tokens: int = 128  # only the first so many of the tokens that train
    correction_kept_weight: float = 0.0  # of words that the reply had, beside 1 of those it had not
    liked_weight: float = 1.0  # of KL(policy || before the job) on liked prompts; 0: not held
    forward_share: float = 0.0  # f: weight of KL(teacher || policy), 1 - f of KL(policy || teacher)
    hint_boost: float = 0.3  # teacher logits go so much further in the hint's direction; LOG
    hint_boost_again: float = 0.9  # the same, of a hint said again after a version learned it
    question_boost: float = 0.0  # and in the question's direction, which a hint can drown; LOG
    question_tokens: int = 12  # first tokens of a reply it applies to: they set the subject
    hint_effect_min: float = 0.15  # drop a hint if less of its effect goes beyond that of "Please."
    hint_heard_min: float = 3.0  # least t value to distill hints about one kind of request
    small_talk_nats: float = 1.0  # drop hints that are small talk by higher log-odds; 0: none
    of_talk_nats: float = 3.0  # but not what their reply makes likelier by more: it speaks of it
    rated_tokens: int = 64  # only the first so many tokens of a rated reply train; bounds time
    reanswer_tokens: int = 56  # longest re-answer; bounds time; LOG, Recipe tuning
    reanswer_hints: str = "own"  # the reply's "own", or "collected": those said of others, too
    reanswer_sets: str = "needed"  # "needed": by the root of the disliked share; or "all"; LOG
    reanswer_steps: int = 1  # optimizer steps on one set of re-answers; the later ones are cheap
    reanswer_temperature: float = 0.7  # as the replies themselves are sampled

    # Reward
    combine: str = "losses"  # method combine: two "losses" added up, or one sum of "advantages"
    reward_weight: float = 1.0  # weight of the clipped surrogate beside the distillation
    reward_step: float = 0.5  # share of the learning rate in a step without hints: one bit each
    anchor_weight: float = 0.2  # of KL(policy || base) on replies that train by reward alone
    clip_low: float = 0.2  # PPO's epsilon (arXiv 1707.06347, eq. 7)
    clip_high: float = 0.28  # PPO's upper epsilon (DAPO, arXiv 2503.14476, eq. 10)
    importance_cap: float = 2.0  # largest importance weight; slime, SDPO
    negative_importance_cap: float = 1.0  # where the advantage is negative; stale ones hurt; ART
    baseline_rate: float = 0.1  # of the running mean and variance of the user's thumbs
    sigma_floor: float = 0.5  # least standard deviation to divide by: equal votes must not explode
    positive_cap: float = 1.0  # largest advantage
    negative_cap: float = 0.5  # largest negative advantage, unsigned; a raw -1 wrecks fluency

    # KTO on known thumbs; after hints those without a word only since the newest wish: LOG
    thumbs: str = "kto"  # method of jobs without hints; a KTO also ends jobs with hints
    thumbs_batch: int = 64  # thumbs per step of KTO: the gradient of a few points anywhere
    thumbs_epochs: int = 2  # passes over them in a job without hints
    thumbs_step: float = 1.5  # share of the learning rate in a step of KTO: there are few steps
    kto_beta: float = 0.1  # weight of the log-ratio in KTO (arXiv 2402.01306), as its authors
    kto_beside: int = 1  # likes, and dislikes, that KTO after hints needs at least; 0: no such KTO
    kto_beside_steps: int = 4  # steps of KTO after hints; two do not undo overreach; LOG

    # The gate
    gate_tokens: int = 48  # longest test reply, in tokens
    gate_temperature: float = 0.7  # of test replies, as served
    gate_drift_margin: float = 0.05  # nats per token of drift beyond what the user's wishes explain
    gate_preference_margin: float = 0.05  # nats per token that liked replies may lose to disliked
    gate_cut_margin: float = 0.1  # by which more replies may be cut off than of the parent's
    gate_chance: float = 1.64  # standard errors added to that limit for chance; one-sided 5 %
    gate_empty_max: float = 0.02  # largest share of empty replies
    gate_length_min: float = 3.0  # least length of the median reply, in tokens
    gate_question_min: float = 0.25  # least fit of replies to their questions; the base's is 1
    gate_repeat_margin: float = 0.15  # by which more 4-grams may repeat than in the base's replies

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        if self.rank not in VLLM_RANKS:
            raise ValueError(f"rank must be one of {VLLM_RANKS}: the server knows no other")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) and not abs(value) <= sys.float_info.max:
                raise ValueError(f"{field.name} must be a finite number")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for name in _NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be below 0")
        for name in _SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1")

    @property
    def distils(self) -> bool:
        """Whether hints teach by distillation; else a hinted reply counts as its thumb alone."""
        return self.method in ("opd", "combine")

    @property
    def is_kto(self) -> bool:
        """Whether thumbs train by KTO's loss: it needs no sampling log-probs and anchors itself."""
        return self.method in KTO

    @property
    def distils_tokens(self) -> bool:
        """Whether hints teach through the sampled words alone, as an advantage of each."""
        return self.distils and (self.estimator == "token" or self.sums_advantages)

    @property
    def needs_logprobs(self) -> bool:
        """Whether every reply, a hinted one, too, trains by the probabilities it was sampled with:
        those of one that was not sampled plainly are not known."""
        return not self.is_kto and (self.distils_tokens or not self.distils)

    @property
    def sums_advantages(self) -> bool:
        """Whether votes and hints teach through one advantage of each word (Gen-1 of combine)."""
        return self.method == "combine" and self.combine == "advantages"

    @property
    def measures_effects(self) -> bool:
        """Whether anything asks how far a hint moves the teacher: else a pass is spared."""
        return self.hint_effect_min > 0 or self.kl_full_share > 0

    @property
    def loss_is_kl(self) -> bool:
        """Whether the distillation's loss is KL(policy || teacher) itself, the mean of tokens."""
        whole = self.estimator == "full" and self.forward_share == 0 and not self.distils_tokens
        return whole and self.loss_mean == "tokens"

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """From a JSON object of its fields. Unknown fields and wrong types raise ValueError."""
        fields = json.loads(text)
        if not isinstance(fields, dict):
            raise ValueError("a TrainConfig is a JSON object")
        types = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        for name, value in fields.items():
            if name not in types:
                raise ValueError(f"TrainConfig has no field {name!r}")
            if not _fits(value, types[name]):
                raise ValueError(f"{name} must be {types[name]}, not {value!r}")
        return cls(**fields)


def check_chosen(fields: Mapping[str, object]) -> None:
    """Raises ValueError, saying what can be chosen, unless a job may be queued with these."""
    if strange := sorted(fields.keys() - set(CHOOSABLE)):
        raise ValueError(f"{', '.join(strange)}: a job is given {', '.join(CHOOSABLE)} alone")
    chosen = TrainConfig.from_json(json.dumps(dict(fields)))
    for name in ("reward_epochs", "thumbs_epochs", "kto_beside_steps"):
        if getattr(chosen, name) > MOST_EPOCHS:
            raise ValueError(f"{name} must be at most {MOST_EPOCHS}: each is a pass over all")
    if chosen.topk > MOST_WORDS:
        raise ValueError(f"topk must be at most {MOST_WORDS}: it goes into memory by its square")


def _fits(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return False
    if kind == "float":
        return isinstance(value, (int, float))
    return isinstance(value, {"int": int, "str": str}[kind])


CHOICES = {
    "method": METHODS,
    "thumbs": THUMBS,
    "estimator": ESTIMATORS,
    "topk_support": SUPPORTS,
    "combine": COMBINES,
    "loss_mean": LOSS_MEANS,
    "teacher": TEACHERS,
    "reanswer_hints": REANSWER_HINTS,
    "reanswer_sets": REANSWER_SETS,
}
_POSITIVE = (
    "reanswer_steps", "reward_epochs", "topk", "topk_clip", "kto_beta", "negative_importance_cap",
    "alpha", "lr", "batch_size", "max_steps", "train_seconds", "micro_batch_tokens", "max_tokens",
    "grad_clip", "rated_tokens", "reanswer_tokens", "reanswer_temperature", "importance_cap",
    "sigma_floor", "positive_cap", "negative_cap", "demonstration_tokens", "question_tokens",
    "correction_tokens", "thumbs_batch", "thumbs_epochs", "kto_beside_steps",
    "gate_tokens", "gate_temperature",
)  # fmt: skip
_NOT_NEGATIVE = (
    "seed", "weight_decay", "kl_stop", "kl_full_share", "max_version_age", "hint_boost",
    "hint_boost_again", "question_boost", "distill_weight", "correction_weight", "liked_weight",
    "correction_kept_weight", "reward_weight", "reward_step", "thumbs_step", "kto_beside",
    "anchor_weight", "clip_high",
    "demonstrations", "gate_drift_margin", "gate_preference_margin", "gate_cut_margin",
    "gate_chance", "gate_length_min", "gate_repeat_margin", "small_talk_nats",
    "of_talk_nats", "hint_heard_min", "earlier_exchanges",
)  # fmt: skip
_SHARES = (
    "beta1", "beta2", "forward_share", "clip_low", "baseline_rate", "gate_empty_max",
    "gate_question_min", "hint_effect_min",
)  # fmt: skip
