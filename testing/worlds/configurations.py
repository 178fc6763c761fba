"""Which configuration of Kafka is in which world, or why in none: `configurations.yaml`.

`python -m testing.worlds.configurations` writes its generated part.
"""

from __future__ import annotations

from pathlib import Path

import yaml

from testing.worlds.table import WORLDS

FILE = Path(__file__).with_name("configurations.yaml")
_BEGIN = "worlds:\n"


def in_worlds() -> dict[str, list[str]]:
    """Setting -> the worlds that change it."""
    settings = sorted({setting for world in WORLDS for setting in world.touched})
    return {setting: [world.name for world in WORLDS if setting in world.touched] for setting in settings}


def elsewhere() -> dict[str, str]:
    """Setting -> why no world changes it. Raises ValueError if one is listed twice."""
    found: dict[str, str] = {}
    for row in yaml.safe_load(FILE.read_text())["elsewhere"]:
        for setting in row["settings"]:
            if setting in found:
                raise ValueError(f"{setting} is listed twice")
            found[setting] = row["why"]
    return found


def generated(text: str) -> str:
    """The file with its part `worlds` of today."""
    by_hand = text.partition(_BEGIN)[0]
    rows = [f"  {setting}: [{', '.join(worlds)}]\n" for setting, worlds in in_worlds().items()]
    return by_hand + _BEGIN + "".join(rows)


if __name__ == "__main__":
    FILE.write_text(generated(FILE.read_text()))
