"""How a scenario fails."""


class FaultsError(Exception):
    """Base of all errors of this package."""


class NotReached(FaultsError):
    """Something that a scenario waited for did not happen."""


class Broken(FaultsError):
    """The operator did what it must not do."""
