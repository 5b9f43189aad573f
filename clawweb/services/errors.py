"""What a service refuses, in words for the person who asked."""

from __future__ import annotations


class ServiceError(Exception):
    """A request that cannot be done; `title` names the rule, the message says what to do,
    `retry_after` in how many seconds it may be done, where that is known."""

    title = "not possible"
    status = 409
    retry_after: int | None = None


class NotRecorded(ServiceError):
    title = "not_recorded"


class UnknownReason(ServiceError):
    title = "unknown_reason"
    status = 422


class Contradiction(ServiceError):
    title = "contradiction"
    status = 422


class NothingToRate(ServiceError):
    title = "no_reply_yet"


class NothingReady(ServiceError):
    title = "nothing_ready"


class AlreadyTraining(ServiceError):
    title = "already_training"


class UnknownSetting(ServiceError):
    title = "unknown_setting"
    status = 422


class CannotPromote(ServiceError):
    title = "cannot_promote"


class CannotCompare(ServiceError):
    title = "cannot_compare"


class CannotTry(ServiceError):
    title = "cannot_try"


class AlreadyDecided(ServiceError):
    title = "already_decided"


class CannotDelete(ServiceError):
    title = "cannot_delete"


class NothingToKeep(ServiceError):
    title = "nothing_to_keep"


class NothingToRollBack(ServiceError):
    title = "already_base"


class EngineDown(ServiceError):
    title = "engine_unavailable"
    status = 503


class OtherRequest(ServiceError):
    title = "idempotency_key_reused"
    status = 422


class AlreadyRunning(ServiceError):
    title = "already_running"


class NotReady(ServiceError):
    title = "not_ready"


class FileErased(ServiceError):
    title = "erased"
    status = 410


class TooLarge(ServiceError):
    title = "too_large"
    status = 413


class DiskFull(ServiceError):
    title = "disk_full"
    status = 507


class DatabaseAway(ServiceError):
    title = "database_away"
    status = 503
    retry_after = 5  # one that was killed is back in two


class QuotaReached(ServiceError):
    title = "quota_reached"
    status = 429

    def __init__(self, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(QuotaReached):
    title = "queue_full"


class LeaseLost(Exception):
    """Another worker holds the row now: go home without writing anything."""
