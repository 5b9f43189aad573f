"""Reads of what a user asked for: the hints that no version has learned yet, and which still hold.

A hint is what a rating says the reply should have been. Ratings contradict each other; the newest
wins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from django.db.models import Max, Q, QuerySet

from clawweb.models import (
    HOLDS,
    OPEN_SAMPLE,
    AdapterVersion,
    Consent,
    Feedback,
    FeedbackReason,
    SampleState,
    TrainingSample,
    User,
)
from clawweb.selectors.learning import BULKY_OF_TURN, line_of, live_adapter, trained_on_from
from clawweb.selectors.poles import Axes, Said
from training.config import CANDIDATES, KTO, REPLAYED, THUMBS_REPLAYED

Told = tuple[TrainingSample, list[TrainingSample], int]  # what is behind it; since when it is said
MOST_PROMPTED = 4  # as many as the gate lets a perfect student follow at once
LOOKED_AT = 8 * REPLAYED  # learned samples: those that followed a note taken back teach nothing
MOST_CHARACTERS = 1000  # of all together: the conversation needs its room
_LIKED = Q(reward__gt=0)
# What may say more than a thumb does: most ratings do not, and contradict nothing.
_HINTED = Q(hint__gt="") | Q(correction__gt="") | (_LIKED & ~Q(turn__prompted_hints=[]))


def hints_to_prompt(user: User) -> list[str]:
    """What the next reply of the user's agent is told besides the conversation; mostly nothing."""
    if not user.prompt_hints or user.consent != Consent.TRAIN:
        return []
    chosen: list[str] = []
    for hint in unlearned_hints(user):
        if sum(map(len, chosen)) + len(hint) <= MOST_CHARACTERS:
            chosen.append(hint)
    return chosen[:MOST_PROMPTED]


def unlearned_hints(user: User) -> list[str]:
    """The user's different hints that still hold and that no version has learned, newest first."""
    said = _holding().filter(user=user).defer(*BULKY_OF_TURN)
    # A judge's hints are its own words, not the user's: they teach, but never stand in a prompt.
    own = said.filter(state__in=OPEN_SAMPLE, judgement=None)
    open_ones = list(own.exclude(hint="").order_by("-id"))
    if not open_ones:
        return []
    learned = said.filter(state=SampleState.TRAINED, adapter__in=answering_line(user))
    # What was learned later than a hint was given may contradict it, and then wins too.
    told = _told(open_ones)
    contradicted = _contradicted([*told, *_told(learned.filter(_HINTED, pk__gt=_first_said(told)))])
    since = dict(learned.exclude(hint="").values_list("hint").annotate(Max("adapter__version")))
    holding = [
        sample.hint
        for sample in open_ones
        # A sample that is held back is never learned itself, but others may have said the same.
        if sample.pk not in contradicted and since.get(sample.hint, 0) <= sample.turn.version
    ]
    return list(dict.fromkeys(holding))


def learned_samples(version: AdapterVersion | None) -> QuerySet[TrainingSample]:
    """Feedback that the version or one of its line has learned and that still holds, newest first:
    not replaced or taken back, and of no chat that is kept out."""
    learned = _holding().filter(adapter__in=line_of(version), state=SampleState.TRAINED)
    return learned.order_by("-id")


def _holding() -> QuerySet[TrainingSample]:
    """Everybody's that were not replaced and are of no chat that is deleted or kept out."""
    return TrainingSample.objects.filter(HOLDS).select_related("feedback", "turn")


def replayed_samples(
    version: AdapterVersion | None, samples: Sequence[TrainingSample], method: str
) -> list[TrainingSample]:
    """Of what the version has learned: what a job on these samples is reminded of, never counted
    again. The newest with a hint that holds, which are answered anew, and the newest liked, which
    may be shown to the teacher; where nothing was ever said, or by KTO, the newest thumbs: its
    steps rest on them, too. By "combine" these beside the hints.
    """
    learned = learned_samples(version)
    told = [row for row in learned.filter(_HINTED)[:LOOKED_AT] if row.teaches]
    over = put_aside(samples, told, version)  # else it would take the place of what still teaches
    said = [row for row in told if row.pk not in over][:REPLAYED]
    if method in KTO or not (said or any(row.teaches for row in samples)):
        return list(learned.exclude(reward=None)[:THUMBS_REPLAYED])
    chosen = [*said, *learned.filter(_LIKED)[:CANDIDATES]]
    if method == "combine":
        chosen += learned.exclude(reward=None)[:THUMBS_REPLAYED]
    return list({sample.pk: sample for sample in chosen}.values())


def undisputed_samples(user_id: int) -> list[TrainingSample]:
    """What was put aside for a newer rating and is contradicted no more: that one was taken back,
    or dropped. What was put aside in part is given whole, unsaved."""
    aside = TrainingSample.objects.filter(
        user=user_id,
        state=SampleState.SUPERSEDED,
        replaced_by=None,
        turn__session__deleted_at=None,
    ).select_related("feedback", "turn")
    rows = [*aside.order_by("id"), *_in_part(user_id)]
    if not rows:
        return []
    open_or_learned = [*OPEN_SAMPLE, SampleState.TRAINED]
    holds = _holding().filter(_HINTED, user=user_id, state__in=open_or_learned)
    told = _told(rows)
    newer = holds.filter(pk__gt=_first_said(told)).exclude(pk__in=[row.pk for row in rows])
    disputed = _contradicted([*told, *_told(newer.defer(*BULKY_OF_TURN))])
    return [row for row in rows if row.pk not in disputed]


def _in_part(user_id: int) -> list[TrainingSample]:
    """The ready ones of which a job that gave them back had put a part aside: as they were said."""
    ready = _holding().filter(user=user_id, state=SampleState.READY, feedback__isnull=False)
    rows = ready.defer(*BULKY_OF_TURN, "token_effects").order_by("id")
    found = []
    for row in rows:
        said = row.feedback
        if said and (row.hint, row.correction) != (said.hint, said.correction):
            row.hint, row.correction = said.hint, said.correction
            found.append(row)
    return found


def put_aside(
    samples: Sequence[TrainingSample],
    replayed: Iterable[TrainingSample],
    version: AdapterVersion | None,
) -> dict[int, str]:
    """Of the samples that a job may claim, oldest first, and of those it would replay, the ones
    that the user has contradicted since, in these or elsewhere; each with what is left of it."""
    told = _told([*replayed, *samples])
    return _contradicted([*told, *_told(_said_since(told, version))])


def _said_since(told: Sequence[Told], version: AdapterVersion | None) -> Iterable[TrainingSample]:
    """What their user said since the first of them and still holds: open, kept aside for the gate,
    too, or learned by the version or one of its line."""
    if not told:
        return ()
    user = told[0][0].user_id
    there = Q(state=SampleState.READY) | Q(state=SampleState.TRAINED, adapter__in=line_of(version))
    rest = _holding().filter(there, _HINTED, user=user, pk__gt=_first_said(told))
    return rest.exclude(pk__in=[sample.pk for sample, *_ in told]).defer(*BULKY_OF_TURN)


def _told(samples: Iterable[TrainingSample]) -> list[Told]:
    """Each, all of one user, with what said the hints that it followed, if it was liked."""
    rows = list(samples)
    saying = _saying(rows)
    said = said_at([*rows, *(row for behind in saying.values() for row in behind)])
    since = {followed: _since(behind, said) for followed, behind in saying.items()}
    followed = [_followed(row) for row in rows]
    return [
        (row, saying[hints], since[hints] or said[row.pk])
        for row, hints in zip(rows, followed, strict=True)
    ]


def _followed(sample: TrainingSample) -> tuple[str, ...]:
    """The hints that stood in the prompt of what was liked."""
    return tuple(sample.turn.prompted_hints) if sample.reward == 1 else ()


def _saying(samples: Sequence[TrainingSample]) -> dict[tuple[str, ...], list[TrainingSample]]:
    """What is behind each list of hints that any of them followed, oldest first: replies between
    two versions followed the same, so that they are looked up once, for all of them."""
    lists = {_followed(sample) for sample in samples}
    hints = {hint for followed in lists for hint in followed}
    if not hints:
        return {followed: [] for followed in lists}
    said = TrainingSample.saying(samples[0].user_id, hints)
    rows = list(said.select_related("feedback").defer("token_effects").order_by("id"))
    return {followed: [row for row in rows if row.hint in followed] for followed in lists}


def said_at(samples: Iterable[TrainingSample]) -> dict[int, int]:
    """When each was said, as the key of a sample, by its own: what is left of a rating of which
    something was taken back since is as old as that rating."""
    first = {row.pk: row for row in samples}
    looked_at = {pk: row for pk, row in first.items() if row.feedback_id}
    while looked_at:
        replaced = TrainingSample.objects.filter(replaced_by__in={r.pk for r in looked_at.values()})
        found = replaced.select_related("feedback").defer("token_effects")
        before = {row.replaced_by_id: row for row in found}
        looked_at = {
            pk: before[row.pk]
            for pk, row in looked_at.items()
            if row.pk in before and _is_left_of(row.feedback, before[row.pk].feedback)
        }
        first |= looked_at
    return {pk: row.pk for pk, row in first.items()}


def _is_left_of(now: Feedback | None, before: Feedback | None) -> bool:
    """Whether it says less than the rating before it, and nothing else."""
    if now is None or before is None or now.value != before.value:
        return False
    reasons, known = ({each["slug"] for each in row.reasons} for row in (now, before))
    words = [(now.comment, before.comment), (now.correction, before.correction)]
    is_same = reasons == known and all(left == said for left, said in words)
    return not is_same and reasons <= known and all(left in ("", said) for left, said in words)


def _since(behind: Sequence[TrainingSample], said: Mapping[int, int]) -> int:
    """When what followed hints and is liked was said, as who likes it says nothing new: when the
    oldest of them was, each since it was said last. 0 when nothing is behind it."""
    newest: dict[str, int] = {}
    for row in behind:
        newest[row.hint] = max(said[row.pk], newest.get(row.hint, 0))
    return min(newest.values(), default=0)


def _first_said(told: Sequence[Told]) -> int:
    """Since when anything could contradict one of them."""
    return min(since for *_, since in told)


def answering_line(user: User) -> list[int]:
    """The version that answers and those it was trained from: what they learned, the agent knows.
    None while the live one stands aside, as the server could not wear it."""
    return [row.pk for row in line_of(trained_on_from(live_adapter(user)))]


def contradicted_by_newer(samples: Iterable[TrainingSample]) -> set[int]:
    """Samples that ask for one pole of an axis while a newer one asks for another: it wins. What
    says more than that is not put aside with it."""
    return set(_contradicted(_told(samples)))


def _contradicted(told: Iterable[Told]) -> dict[int, str]:
    """Those, each with what it asks for beside that, if anything: it is as new as the rest was."""
    axes = Axes(FeedbackReason.objects.all())
    read: dict[tuple[str, ...], Said] = {}  # what is behind the same hints says the same
    wanted: dict[str, str] = {}
    older: dict[int, str] = {}
    for sample, behind, _ in sorted(told, key=lambda row: row[2], reverse=True):
        followed = _followed(sample)
        if followed not in read:
            read[followed] = _said(behind, axes)
        said = _together([_said([sample], axes), read[followed]])
        if all(wanted.get(axis, pole) == pole for axis, pole in said.poles.items()):
            wanted |= said.poles
        elif not said.says_more:
            rating = sample.feedback
            left = axes.left_of(rating, sample.hint, wanted) if rating and not behind else ""
            if not left or left != sample.hint:
                older[sample.pk] = left
            if left:
                wanted = said.poles | wanted
    return older


def _said(samples: Sequence[TrainingSample], axes: Axes) -> Said:
    """What they teach. A judge's words have no pole: they never put a person's aside."""
    return _together([axes.of_rating(row.feedback, row.hint) for row in samples if row.feedback])


def _together(found: Sequence[Said]) -> Said:
    """Of two that ask for different poles of an axis the first one has its say."""
    poles = {axis: pole for said in reversed(found) for axis, pole in said.poles.items()}
    return Said(poles, says_more=any(said.says_more for said in found))
