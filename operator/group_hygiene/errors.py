"""The errors of this product. Every library's error is wrapped into one of these where it enters.

    HygieneError
    ├── SpecError              a policy or connection says something that only an edit can mend
    ├── ConnectError           the Kafka cluster can't be used now; tried again with back-off
    │   ├── Unreachable        no bootstrap server answers
    │   ├── TLSFailed          the TLS handshake fails
    │   ├── AuthenticationFailed  the broker refuses the credentials
    │   └── SecretProblem      a Secret, or a key in it, is missing or malformed
    ├── MemoryExhausted        what a connection asks for does not fit into the memory that the process has left
    ├── LedgerProblem          the ledger can't be read or written: nothing is deleted without it
    ├── LedgerFenced           another client writes the ledger under our transactional.id: the run must end
    ├── ApiError               the Kubernetes API server refuses or does not answer
    │   ├── NotFound
    │   └── Refused            it answers, and refuses this one request
    │       ├── Conflict       the object changed since it was read
    │       └── Forbidden      RBAC denies it
    ├── PipelineError          the Spark pipeline can't go on: Spark, the log that it reads, or its tables
    └── UsageError             the command line asks for something that makes no sense

Errors that concern one group, one partition or one broker are data, not exceptions: see `model.Fault`.
"""

from __future__ import annotations


class HygieneError(Exception):
    """Base of all: `reason` is a documented constant of `reasons`, the text says what is wrong and what to do."""

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
    """`reason` is one of LedgerUnavailable, LedgerReset, LedgerOwnedByAnother."""

    reason = "LedgerUnavailable"


class LedgerFenced(HygieneError):
    """No LedgerProblem on purpose: no run may go on after it.

    Another process of ours that took the Lease fences, and so does any client that Kafka allows our transactional.id.
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


class Halted(PipelineError):
    """What every further try would meet as well: a person must look at it and say how to go on."""
