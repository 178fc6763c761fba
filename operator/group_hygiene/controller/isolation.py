"""An error in our own code ends one piece of work, such as one policy's plan, and not that of others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from group_hygiene.errors import HygieneError, LedgerProblem
from group_hygiene.model import reasons
from group_hygiene.model.reasons import Refusal

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def isolated(what: str, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R | Refusal:
    """The result of `work`; a Refusal after an error in our own code. what: the work's object, for the log.

    Raises HygieneError and MemoryError, which concern all work.
    """
    try:
        return work(*arguments, **named)
    except (HygieneError, MemoryError):
        raise
    except Exception as error:
        log.exception("%s: unexpected; trying again at its next run", what)
        return internal_error(error)


def tried(what: str, work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R | Refusal:
    """As `isolated`; a Refusal also if the ledger can't be used, so that policies still run."""
    try:
        return isolated(what, work, *arguments, **named)
    except LedgerProblem as error:
        return Refusal.of(error)


def internal_error(error: Exception) -> Refusal:
    """The Refusal for an internal error. Its text may name objects of other tenants: only the log shows it."""
    if isinstance(error, MemoryError):
        return Refusal(reasons.MEMORY_EXHAUSTED, "the operator has too little memory for this run; it tries again")
    return Refusal(reasons.INTERNAL_ERROR, f"{type(error).__name__}: see the operator's log; it tries again")
