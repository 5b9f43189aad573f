"""Writes of comparisons: a reply asked for again of another version, and the user's verdict.

The other answer stands beside the conversation, as a side turn, until it is chosen. It is asked for
by number, so that it can be rated and never trains.
"""

from __future__ import annotations

import random
import re

from django.db import transaction
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext as _

from clawweb.events import changed
from clawweb.models import (
    FINISHED,
    AdapterVersion,
    ChatSession,
    Comparison,
    Consent,
    Turn,
    TurnState,
    User,
)
from clawweb.selectors.agent import version_name
from clawweb.selectors.comparisons import previous_version, usable_versions
from clawweb.selectors.learning import live_adapter
from clawweb.services import chat, retyping, serving
from clawweb.services.errors import (
    AlreadyDecided,
    CannotCompare,
    CannotPromote,
    NothingToRate,
    NotRecorded,
)
from clawweb.turn_types import COMPARISON, MAIN, SIDE

OTHER = "other"  # any of the versions that did not write the reply
RANDOM = random.SystemRandom()


def open_comparison(
    *, turn: Turn, other: str = OTHER, kind: str = Comparison.BLIND, chance: random.Random = RANDOM
) -> Comparison:
    """The turn's reply beside one by `other`: "agent@vN", "base", "previous", "live", or "other"
    (live, the one before it or base, by chance; never the one that wrote the reply).

    The second reply is on its way when this returns. Asked twice before a verdict it gives the same
    comparison. CannotCompare when that version is not to be had; EngineDown.
    """
    user = _owner(turn)
    version = _chosen(user, turn, other, chance)
    asked = "base" if version is None else f"agent@v{version.version}"
    if version is not None:
        _have_served(version)
    with transaction.atomic():
        Turn.objects.select_for_update().get(pk=turn.pk)  # of two clicks one opens it
        waiting = Comparison.objects.filter(first=turn, kind=kind, verdict="")
        if kind != Comparison.BLIND:
            waiting = waiting.filter(second__asked=asked)
        silent = Q(second__state__in=FINISHED, second__reply="")  # stopped before its first word
        waiting.filter(silent | Q(second__state=TurnState.FAILED)).delete()
        return waiting.first() or _open(user, turn, asked, kind, chance)


def _owner(turn: Turn) -> User:
    """Whose turn it is, if its reply can be compared."""
    if not turn.is_finished or not turn.reply:
        raise NothingToRate(_("There is no finished reply to compare with yet."))
    user = User.objects.get(pk=turn.session.user_id)
    if not turn.recorded or user.consent == Consent.NOTHING or turn.session.temporary:
        raise NotRecorded(_("Nothing of this chat is kept, so its replies cannot be compared."))
    return user


def _chosen(user: User, turn: Turn, other: str, chance: random.Random) -> AdapterVersion | None:
    """The version that answers beside the turn's; None = the base model."""
    if other == OTHER:
        candidates = {live_adapter(user), previous_version(user), None}
        usable = {None, *usable_versions(user)}
        able = [v for v in candidates & usable if (v.version if v else 0) != _wrote(turn)]
        if not able:
            raise CannotCompare(_("There is no other version to compare with yet."))
        return chance.choice(sorted(able, key=lambda v: v.version if v else 0))
    version = _named(user, other)
    if (version.version if version else 0) == _wrote(turn):
        name = version_name(turn.version)
        raise CannotCompare(
            _("This reply is by %(name)s already. Compare it with another version.")
            % {"name": name}
        )
    return version


def _wrote(turn: Turn) -> int | None:
    """The user's version that gave the reply, 0 = the base model; None where it was brought in from
    elsewhere, where versions have numbers of their own."""
    return None if turn.version and turn.adapter_id is None else turn.version


def _named(user: User, other: str) -> AdapterVersion | None:
    if other == "base":
        return None
    if other == "live":
        live = live_adapter(user)
        return _named(user, f"agent@v{live.version}") if live else None
    if other == "previous":
        before = previous_version(user)
        if before is None and live_adapter(user) is None:
            raise CannotCompare(_("The base model answers now, and nothing before it."))
        return before
    number = re.fullmatch(r"agent@v([1-9][0-9]{0,8})", other)
    if number is None:
        raise CannotCompare(_('Compare with "agent@vN", "base", "previous", "live" or "other".'))
    version = usable_versions(user).filter(version=int(number[1])).first()
    if version is None:
        raise CannotCompare(
            _(
                "Version %(n)s cannot answer: it is not there, did not pass its tests, or was "
                "trained on another base model."
            )
            % {"n": number[1]}
        )
    return version


def _have_served(version: AdapterVersion) -> None:
    try:
        serving.serve(version)
    except CannotPromote as exc:
        raise CannotCompare(
            _("Version %(n)s cannot answer now: %(why)s") % {"n": version.version, "why": exc}
        ) from exc


def _open(user: User, turn: Turn, asked: str, kind: str, chance: random.Random) -> Comparison:
    session = turn.session
    as_it_was = {name: getattr(session, name) for name in ("updated_at", "closed_at", "done")}
    second = chat.regenerate(turn=turn, asked=asked, turn_type=SIDE, turn_type_from=COMPARISON)
    if kind == Comparison.RECHECK:  # nobody speaks in that chat: it stays where it is in the list
        ChatSession.objects.filter(pk=session.pk).update(**as_it_was)
    comparison = Comparison.objects.create(
        user=user,
        kind=kind,
        first=turn,
        second=second,
        swapped=kind == Comparison.BLIND and chance.random() < 0.5,
    )
    changed(user.pk, "comparison", comparison.public_id)
    return comparison


@transaction.atomic
def decide(*, comparison: Comparison, verdict: str) -> None:
    """The user's verdict, once: "first", "second", "tie" or "neither". A second reply that is
    preferred joins the conversation, which goes on from it; old complaints stay as they are."""
    turns = Turn.objects.filter(pk__in=[comparison.first_id, comparison.second_id])
    if not all(turn.is_finished for turn in turns):
        raise CannotCompare(_("Wait until both replies are there."))
    if not all(turn.reply for turn in turns):
        raise CannotCompare(_("No other answer came. Close this, and compare again."))
    decided = Comparison.objects.filter(pk=comparison.pk, verdict="").update(
        verdict=verdict, decided_at=timezone.now()
    )
    if not decided:
        if Comparison.objects.filter(pk=comparison.pk, verdict=verdict).exists():
            return  # said twice
        raise AlreadyDecided(_("You have decided this one already."))
    if verdict == "second" and comparison.kind != Comparison.RECHECK:
        retyping.set_turn_type(turn=comparison.second, turn_type=MAIN)
    changed(comparison.user_id, "turn", comparison.first.public_id)
    changed(comparison.user_id, "comparison", comparison.public_id)


@transaction.atomic
def close(*, comparison: Comparison) -> None:
    """Without a verdict: the conversation is as it was before."""
    gone = Comparison.objects.filter(pk=comparison.pk, verdict="").delete()[0]
    if not gone:
        raise AlreadyDecided(_("You have decided this one already."))
    chat.request_stop(comparison.second)
    changed(comparison.user_id, "turn", comparison.first.public_id)
    changed(comparison.user_id, "comparison", comparison.public_id)
