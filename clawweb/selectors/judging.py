"""Reads of judging: what a judge is shown, whether it answers, how often it agrees with people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Max, OuterRef, QuerySet, Subquery
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from clawweb.config import config
from clawweb.engine import judge_is_elsewhere, judge_name
from clawweb.models import Consent, Feedback, Judgement, JudgementState, Turn, User
from clawweb.selectors.chat import input_of, messages_for, reply_message
from clawweb.selectors.placing import plain
from rollouts.judge import Judged, spoken
from rollouts.types import Message

NEWEST = 50  # judged and rated replies that agreement is taken over
ENOUGH = 10  # of them; below it nothing is said about a judge


def next_state(turn: Turn) -> list[Message]:
    """What a turn's new messages tell about the reply before them: the user's and the tools'.

    Empty where they follow other words than that reply's: a client may bring words of its own, or
    the whole conversation anew with the reply changed.
    """
    messages = input_of(turn)
    spoken_at = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if spoken_at:
        *_, last = spoken_at
        if turn.parent is None or plain(messages[last]) != plain(reply_message(turn.parent)):
            return []
        messages = messages[last + 1 :]
    return [message for message in messages if message["role"] in ("user", "tool")]


def judged(judgement: Judgement) -> Judged:
    """All that a judge is shown, without the model's reasoning."""
    return Judged(
        messages=[_aloud(message) for message in messages_for(judgement.turn)],
        reply=_aloud(reply_message(judgement.turn)),
        next_state=next_state(judgement.next_turn),
    )


def _aloud(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    return {**message, "content": spoken(message["content"])}


def judgements_of(turns: Iterable[Turn]) -> dict[int, Judgement]:
    """The judgements of these replies by the turn's key, with `next_id`, the next turn's id."""
    rows = Judgement.objects.filter(turn__in=[turn.pk for turn in turns])
    return {row.turn_id: row for row in rows.annotate(next_id=F("next_turn__public_id"))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How often a judge and people's own ratings said the same of a reply."""

    agreed: int
    of: int

    @property
    def share(self) -> float | None:
        """Between 0 and 1; None when nothing was both judged and rated."""
        return self.agreed / self.of if self.of else None

    @property
    def is_too_low(self) -> bool:
        """Whether the judge should not count; never said of fewer than ten replies."""
        return self.of >= ENOUGH and self.agreed / self.of < config().judge_agreement


def agreement(user: User | None) -> Agreement:
    """Over the user's newest replies that were judged good or bad and rated up or down; over
    everybody's for None."""
    vote = Feedback.objects.filter(turn=OuterRef("turn")).order_by("-id").values("value")[:1]
    both = (
        _judgements(user)
        # What came in from elsewhere has no time: it says nothing about this judge.
        .filter(state=JudgementState.JUDGED, score__in=[-1, 1], judged_at__isnull=False)
        .filter(judge=judge_name())  # nor does what another one said before
        .annotate(vote=Subquery(vote))
        .filter(vote__in=[-1, 1])
    )
    pairs = list(both.order_by("-id").values_list("score", "vote")[:NEWEST])
    return Agreement(agreed=sum(score == vote for score, vote in pairs), of=len(pairs))


def _judgements(user: User | None) -> QuerySet[Judgement]:
    rows = Judgement.objects.all()
    return rows if user is None else rows.filter(turn__session__user=user)


def is_judged_for(user: User) -> bool:
    """Whether this user's replies may be shown to the judge."""
    may_leave = user.judge_elsewhere or not judge_is_elsewhere()
    return config().has_judge and user.consent == Consent.TRAIN and may_leave


def judge_is_silent() -> bool:
    """Whether the judge was last asked in vain: replies wait for it."""
    asked = Judgement.objects.filter(state=JudgementState.WAITING, lease_token="")
    in_vain = asked.exclude(error="").aggregate(at=Max("lease_until"))["at"]
    return in_vain is not None and not _has_answered_since(in_vain)


def judge_refusal() -> str:
    """Why the judge refuses what it is asked; empty when it has answered since."""
    refused = Judgement.objects.filter(state=JudgementState.FAILED, judged_at__isnull=False)
    last = refused.exclude(votes=[]).order_by("-judged_at").first()
    if last is None or last.judged_at is None or _has_answered_since(last.judged_at):
        return ""
    return last.error


def _has_answered_since(time: datetime) -> bool:
    answered = [JudgementState.JUDGED, JudgementState.NO_SIGNAL]
    return Judgement.objects.filter(state__in=answered, judged_at__gte=time).exists()


def judge_status(user: User | None) -> dict[str, Any]:
    """The judge as one user sees it, or the whole installation for None."""
    if not config().has_judge:
        return {"on": False, "words": _("off: ratings alone drive learning")}
    agrees = agreement(user)
    status = {
        "on": True,
        "name": judge_name(),
        "elsewhere": judge_is_elsewhere(),
        "asked": user is None or is_judged_for(user),
        "silent": judge_is_silent(),
        "refusal": judge_refusal(),
        "waiting": _judgements(user).filter(state=JudgementState.WAITING).count(),
        "agreement": agrees,
        "percent": None if agrees.share is None else round(100 * agrees.share),
        "least": round(100 * config().judge_agreement),
        "counts": user is None or not agrees.is_too_low,
    }
    return {**status, "words": _words(status)}


def _words(status: dict[str, Any]) -> str:
    """One line for the list of what runs."""
    does = _("%(name)s reads what follows a reply")
    if status["refusal"]:
        does = _("%(name)s refuses")
    if status["silent"]:  # the newer trouble, which the other pages tell first, too
        does = _("%(name)s does not answer")
    words = [does % {"name": status["name"]}]
    if count := status["waiting"]:
        words.append(
            ngettext("%(n)s reply waits for it", "%(n)s replies wait for it", count) % {"n": count}
        )
    if status["percent"] is not None:
        known = {"percent": status["percent"], "n": status["agreement"].of}
        words.append(_("agrees with %(percent)s%% of %(n)s ratings") % known)
    return "; ".join(words)
