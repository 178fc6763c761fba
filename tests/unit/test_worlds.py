"""The table of worlds is whole: each setting of Kafka is in a world or has a reason why not."""

from __future__ import annotations

import pytest
import yaml

from testing.worlds import configurations
from testing.worlds.table import SMOKE, WORLDS
from testing.worlds.world import Refuses, World

_REFUSING = [world for world in WORLDS if isinstance(world.expected, Refuses)]


def test_names() -> None:
    """Each world has a name of its own, which is a DNS label, as it names a namespace."""
    names = [world.name for world in WORLDS]
    assert len(set(names)) == len(names)
    assert [name for name in names if len(name) > 50 or not name.replace("-", "").isalnum() or not name.islower()] == []


def test_how_many() -> None:
    """At least 80 worlds, of which at most a third must refuse; ten of them in `make smoke`."""
    assert len(WORLDS) >= 80
    assert len(_REFUSING) * 3 <= len(WORLDS)
    assert len(SMOKE) == len(set(SMOKE)) == 10
    assert set(SMOKE) <= {world.name for world in WORLDS}


@pytest.mark.parametrize("world", [pytest.param(world, id=world.name) for world in _REFUSING])
def test_a_refusal_has_a_reason(world: World) -> None:
    """The table says which reason a status has, and what its message names."""
    assert isinstance(world.expected, Refuses)
    assert world.expected.reason
    assert world.expected.cause


def test_a_setting_is_in_worlds_or_elsewhere() -> None:
    """Not both; and the generated part of the file is that of today (python -m testing.worlds.configurations)."""
    text = configurations.FILE.read_text()
    assert configurations.generated(text) == text
    assert yaml.safe_load(text)["worlds"] == configurations.in_worlds()
    assert set(configurations.in_worlds()) & set(configurations.elsewhere()) == set()
