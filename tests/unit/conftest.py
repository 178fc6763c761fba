"""Hypothesis without deadlines (a busy machine is no failure) and without a database of earlier examples."""

from hypothesis import settings

settings.register_profile("unit", deadline=None, database=None, max_examples=100)
settings.load_profile("unit")
