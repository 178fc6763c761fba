"""The errors of scenarios."""


class FaultsError(Exception):
    """Base of all errors of this package."""


class Broken(FaultsError):
    """The operator did something that it must not do."""
