"""The errors of this product. Every library's error is wrapped into one of these where it enters.

    HygieneError
    ├── SpecError              a policy or connection is invalid until it is edited
    ├── ConnectError           the Kafka cluster can't be used now; retried with back-off
    │   ├── Unreachable        no bootstrap server answers
    │   ├── TLSFailed          the TLS handshake fails
    │   ├── AuthenticationFailed  the broker refuses the credentials
    │   └── SecretProblem      a Secret, or a key in it, is missing or malformed
    ├── MemoryExhausted        a connection needs more memory than the process has left
    ├── LedgerProblem          the ledger can't be read or written: nothing is deleted without it
    ├── LedgerFenced           another client writes the ledger with our transactional.id: the run must end
    ├── ApiError               the Kubernetes API server refuses or does not answer
    │   ├── NotFound
    │   └── Refused            it answers, and rejects this one request
    │       ├── Conflict       the object changed since it was read
    │       └── Forbidden      RBAC denies it
    ├── PipelineError          the Spark pipeline can't continue: Spark, the log that it reads, or its tables
    │   └── Halted             a retry would fail in the same way: a user must choose how to continue
    └── UsageError             the command line is invalid
        └── NotAllowed         a user of a command lacks rights to the KafkaConnection, or to its Secrets

Errors that concern one group, one partition or one broker are data, not exceptions: see `model.groups.Fault`
and `model.reasons.Refusal`.
"""

from __future__ import annotations


class HygieneError(Exception):
    """Base of all: `reason` is a documented constant of `reasons`; the text says what is wrong and what to do."""

    reason = "InternalError"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class SpecError(HygieneError):
    reason = "InvalidSpec"


class ConnectError(HygieneError):
    reason = "BrokersUnreachable"


class Unreachable(ConnectError):
    reason = "BrokersUnreachable"


class TLSFailed(ConnectError):
    reason = "TLSFailed"


class AuthenticationFailed(ConnectError):
    reason = "AuthenticationFailed"


class SecretProblem(ConnectError):
    """`reason` is one of SecretNotFound, SecretKeyMissing, SecretInvalid, SecretForbidden."""

    reason = "SecretNotFound"


class MemoryExhausted(HygieneError):
    reason = "MemoryExhausted"


class LedgerProblem(HygieneError):
    """`reason` is one of LedgerUnavailable, LedgerChanged, LedgerReset, LedgerOwnedByAnother."""

    reason = "LedgerUnavailable"


class LedgerFenced(HygieneError):
    """Not a LedgerProblem on purpose: the run must end.

    The process that took the Lease fences its predecessor, as can any client that Kafka allows our transactional.id.
    """

    reason = "LedgerFenced"


class ApiError(HygieneError):
    reason = "ApiServerError"


class NotFound(ApiError):
    pass


class Refused(ApiError):
    pass


class Conflict(Refused):
    pass


class Forbidden(Refused):
    pass


class PipelineError(HygieneError):
    reason = "PipelineFailed"


class UsageError(HygieneError):
    reason = "UsageError"


class NotAllowed(UsageError):
    pass


class Halted(PipelineError):
    """A retry would fail in the same way: a user must choose how to continue."""
