"""What is compared: our methods, OpenClaw-RL's rebuilt from their formulas, and rivals."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from training.config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How ratings become better replies.

    `learns`: "train" (an adapter, by `config`), "sft" (an adapter, by cross-entropy on corrected
    answers), "trl" (an adapter, by TRL's KTOTrainer at learning rate `rate`, None being its own),
    "memory" (the hints so far go into the prompt), "hinted" (all wishes in the prompt from the
    start) or "nothing". `batch`: ratings per update. `words`: whether the person says more than a
    thumb.
    """

    name: str
    learns: str
    config: TrainConfig
    batch: int
    counts_unhinted: bool  # whether a rating without a hint takes a place in the batch
    words: bool
    corrects: bool  # the person also writes the reply that they wanted: one of the hinted base's
    edits: int  # replies of a batch, at most, that the person edits into what they wanted
    rate: float | None  # for "trl"
    steps_back: bool  # what "train" leads beyond the drift limit is moved back, as in the product
    at_once: bool  # hints that are not learned yet go into the prompt
    as_served: bool  # as a job of the product: its gate, and every fifth rating kept for that
    one_chat: bool  # all rated turns are of one chat, each after what was said before

    @property
    def is_thumb(self) -> bool:
        """Whether a thumb is all that the person gives."""
        return not (self.words or self.corrects or self.edits)

    @property
    def is_rated(self) -> bool:
        """Whether turns are rated: the base, and the base with the hints, are only asked."""
        return self.learns not in ("nothing", "hinted")


def recipe(
    name: str,
    *,
    learns: str = "train",
    words: bool = True,
    corrects: bool = False,
    edits: int = 0,
    steps_back: bool = True,
    at_once: bool = False,
    as_served: bool = False,
    one_chat: bool = False,
    batch: int = 8,
    counts_unhinted: bool = True,
    rate: float | None = None,
    **chosen: Any,
) -> Recipe:
    # Its time is measured, not limited; what is not said to be another method varies opd.
    config = TrainConfig(**{"train_seconds": 1e6, "method": "opd", **chosen})
    return Recipe(
        name=name,
        learns=learns,
        config=config,
        batch=batch,
        counts_unhinted=counts_unhinted,
        words=words,
        corrects=corrects,
        edits=edits,
        rate=rate,
        steps_back=steps_back,
        at_once=at_once,
        as_served=as_served,
        one_chat=one_chat,
    )


# One more whenever the same settings come to train otherwise: older rows go, or the table says how
# many there are.
TRAINER = 7


def made_with(recipe: Recipe) -> dict[str, Any]:
    """All that makes the recipe: what a row says it was made with."""
    own = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    del own["name"]
    return {**own, "config": asdict(recipe.config), "trainer": TRAINER}


# No KTO follows the hints, several wishes are no more to it than one, and none is too much for the
# teacher. (The steps are none, and say so as older rows do.)
HINTS_ALONE: dict[str, Any] = {
    "liked_weight": 0.0, "kto_beside": 0, "kto_beside_steps": 2, "hint_heard_min": 0.0,
}  # fmt: skip

# What is written is an answer of the hinted base, and no edit: all of its words teach.
WHOLE: dict[str, Any] = {"correction_kept_weight": 1.0}

# OpenClaw-RL's defaults (arXiv 2603.10165 and its scripts): raw +-1 as the advantage, no baseline,
# no anchor, one step per batch of 16 on whole replies, the mean over replies of each one's mean;
# its distillation leaves turns without a hint out of the batch. What differs here: adapters have
# our shape (rank 8, not 16; the scale is the same), replies are sampled at 0.7 and not at 0.6, a
# batch trains before the next is rated and not one version late, importance weights are cut at 2,
# of pushes away at 1 (there are none there; of replies of the same version they are 1), a person
# says one hint and not up to three, and never nothing, so no neutral turn fills the batch. Its
# hybrid pulls replies without a hint toward the base through the distillation, whose mean is over
# all 16; here they train by reward alone, and the distillation's mean is over those with a hint.
# Nor are its faults rebuilt, which would make it worse: replies train by the ids and log-probs that
# they were sampled with, at their temperature, and a teacher that fails gives none of 0.
UPSTREAM: dict[str, Any] = {
    "steps_back": False,
    "batch": 16,
    "batch_size": 16,
    "loss_mean": "replies",
    "lr": 1e-5,
    "weight_decay": 0.1,
    "max_steps": 1,
    "kl_full_share": 0.0,
    "hint_boost": 0.0,
    "hint_boost_again": 0.0,
    "question_boost": 0.0,
    "hint_effect_min": 0.0,
    "baseline_rate": 0.0,
    "sigma_floor": 1.0,
    "negative_cap": 1.0,
    "anchor_weight": 0.0,
    "reward_step": 1.0,
    "rated_tokens": 1024,
    **HINTS_ALONE,
}
# "Our rate": our learning rate and our batch of ratings, in one step, as theirs is; ours takes two.
OURS: dict[str, Any] = {"lr": TrainConfig().lr, "batch": 8, "batch_size": 8}
UPSTREAM_METHODS: dict[str, dict[str, Any]] = {
    "openclaw-binary": {"method": "binary"},
    "openclaw-opd": {"method": "opd", "estimator": "token", "counts_unhinted": False},
    "openclaw-combine": {"method": "combine", "combine": "advantages"},
    "openclaw-hybrid": {"method": "combine", "estimator": "topk"},
}
# Thumbs alone by reward need more than one pass: a thumb is one bit.
PASSES: dict[str, Any] = {"reward_epochs": 4, "reward_step": 1.0}

# A hint that is said again is pushed no further.
ONE_BOOST: dict[str, Any] = {"hint_boost_again": TrainConfig().hint_boost}
# However much was liked, too: what differs in one thing is compared with "opd-all-sets".
ALL_SETS: dict[str, Any] = {"reanswer_sets": "all", **ONE_BOOST}
UNBOOSTED: dict[str, Any] = {"hint_boost": 0.0, "hint_boost_again": 0.0}

SERVED = "combine-as-served"
THUMBS_SERVED = "thumbs-as-served"  # and never a word
AS_SERVED = (SERVED, THUMBS_SERVED)

RECIPES = {
    each.name: each
    for each in (
        recipe("base", learns="nothing"),
        recipe("hinted", learns="hinted"),
        recipe("memory", learns="memory", batch=1),  # the next reply knows
        recipe("opd"),
        recipe("opd-topk", estimator="topk"),
        recipe("opd-token", estimator="token"),
        recipe("opd-corrected", corrects=True, **WHOLE),  # learned as words, too
        recipe("combine", method="combine"),
        recipe("binary", method="binary", words=False, **PASSES),
        recipe("kto", method="kto", words=False),
        recipe("apo_zero_unpaired", method="apo_zero_unpaired", words=False),
        # As many steps as opd, at its rate.
        recipe("sft", learns="sft", corrects=True, reward_epochs=8),
        *(
            recipe(f"TRL {method}{name}", learns="trl", method=method, words=False, rate=rate)
            for method in ("kto", "apo_zero_unpaired")
            for name, rate in (("", None), (", our rate", TrainConfig().lr))
        ),
        *(recipe(name, **(UPSTREAM | method)) for name, method in UPSTREAM_METHODS.items()),
        *(
            recipe(f"{name}, our rate", **(UPSTREAM | OURS | method))
            for name, method in UPSTREAM_METHODS.items()
        ),
        recipe("combine-at-once", method="combine", at_once=True),  # what the product can do, too
        # In one chat, of which as much trains as there is room for; and as the product has it.
        recipe("combine-one-chat", method="combine", one_chat=True, earlier_exchanges=99),
        recipe("combine-one-chat-last", method="combine", one_chat=True),
        # And within the time that a job has there.
        *(
            recipe(
                name, method="combine", words=name == SERVED, as_served=True,
                train_seconds=TrainConfig().train_seconds,
            )
            for name in AS_SERVED
        ),
        recipe("combine-fours", method="combine", batch=4),  # a version after every fourth rating
        # Twice the rank at the same scale.
        recipe("combine-rank-16", method="combine", rank=16, alpha=32),
        # Twice the rate where hints teach, thumbs as before.
        recipe(
            "combine-faster", method="combine",
            lr=2 * TrainConfig().lr,
            reward_step=TrainConfig().reward_step / 2, thumbs_step=TrainConfig().thumbs_step / 2,
        ),
        recipe("combine-corrected", method="combine", corrects=True, **WHOLE),
        recipe("combine-edited", method="combine", edits=8),  # whatever they dislike
        recipe("combine-edited-twice", method="combine", edits=2),  # of eight replies
        recipe("combine-edited-whole", method="combine", edits=8, **WHOLE),  # all of their words
        recipe(
            "combine-unheld", method="combine",
            liked_weight=0.0, kto_beside=4, kto_beside_steps=2, hint_heard_min=0.0,
        ),
        recipe("combine-unheard", method="combine", hint_heard_min=0.0),
        recipe("combine-thumbless", method="combine", **HINTS_ALONE),
        recipe("combine-unboosted", method="combine", **UNBOOSTED, **HINTS_ALONE),
        recipe("combine-collected", method="combine", reanswer_hints="collected"),
        recipe("opd-fours", batch=4),
        recipe("opd-longer", max_steps=13),  # twice the sets of re-answers
        recipe("opd-corrected-alone", corrects=True, words=False, **WHOLE),  # and no hint beside
        recipe("opd-asked", question_boost=0.5),  # held to the question at first
        recipe("opd-asked-throughout", question_boost=0.5, question_tokens=1024),
        recipe("opd-one-boost", **ONE_BOOST),
        recipe("opd-all-sets", **ALL_SETS),
        recipe("opd-twice", reanswer_steps=2, **ALL_SETS),
        recipe("opd-collected", reanswer_hints="collected", **ALL_SETS),
        recipe("opd-shown", demonstrations=2, **ALL_SETS),  # liked replies, beside the hint
        recipe("opd-correction-shown", corrects=True, correction_weight=0.0, **WHOLE),  # to it
        recipe("opd-corrected-lightly", corrects=True, correction_weight=1.0, **WHOLE),
        recipe("opd-forward", forward_share=1.0),  # KL(teacher || policy) instead
        recipe("opd-eights", batch_size=8, max_steps=4, **ALL_SETS),  # in half the steps
        recipe("opd-rated-only", max_steps=1, **ONE_BOOST),
        recipe("opd-unboosted", **(ALL_SETS | UNBOOSTED)),
    )
}  # fmt: skip
# Of combine or opd, each in a thing or two: to find what its parts do.
VARIATIONS = list(RECIPES)[list(RECIPES).index("combine-at-once") :]

# For the bench's quick form: within the time that the product gives a job, nothing moved back.
QUICK = replace(
    RECIPES[TrainConfig().method],
    name="quick",
    config=TrainConfig(),
    steps_back=False,
)
