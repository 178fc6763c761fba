"""The files and the page for kind, which does not run here: what they say of versions, memory, files and objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from group_hygiene import __version__
from group_hygiene.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text().partition("\n## In kind\n")[2].partition("\n## ")[0]
NODES = yaml.safe_load((ROOT / "kind-config.yaml").read_text())
_MIB = {"m": 1, "Mi": 1, "g": 1024, "Gi": 1024}


def _container() -> dict[str, Any]:
    objects = yaml.safe_load_all((ROOT / "deploy" / "kind" / "kafka.yaml").read_text())
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def _mib(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\D+)", text).groups()  # type: ignore[union-attr]
    return int(number) * _MIB[unit]


def test_nodes_are_pinned_by_digest() -> None:
    """Of kind's node images, each runs only with some versions of kind: all nodes have the same one."""
    (image,) = {node["image"] for node in NODES["nodes"]}
    assert re.fullmatch(r"kindest/node:v1\.\d+\.\d+@sha256:[0-9a-f]{64}", image)


def test_heap_of_kafka_is_below_its_limit() -> None:
    """The heaps of the broker and of a tool beside it, which has the same variable, leave a quarter of the limit."""
    container = _container()
    options = {each["name"]: each["value"] for each in container["env"]}["KAFKA_HEAP_OPTS"]
    heap = _mib(re.findall(r"-Xmx(\S+)", options)[0])
    assert 2 * heap <= 0.75 * _mib(container["resources"]["limits"]["memory"])


def test_the_page() -> None:
    """Its cluster, image, address and files are those of the files, and its objects are valid."""
    name, broker = NODES["name"], "kafka.kafka:9092"
    assert f"kind load docker-image group-hygiene:{__version__} --name {name}\n" in PAGE
    assert f"kind delete cluster --name {name}\n" in PAGE
    advertised = {each["name"]: each["value"] for each in _container()["env"]}["KAFKA_ADVERTISED_LISTENERS"]
    assert f"INSIDE://{broker}," in advertised
    assert PAGE.count(broker) == 2
    assert f"`{advertised.rpartition('OUTSIDE://')[2]}`" in PAGE
    for path in re.findall(r"kind-config.yaml|deploy/(?:kind|helm|images)/[\w/.-]+", PAGE):
        assert (ROOT / path).exists(), path
    (objects,) = re.findall(r"<< 'END'\n(.*?)^END$", PAGE, re.MULTILINE | re.DOTALL)
    answer = CliRunner().invoke(main, ["plan", "--validate-only", "-f", "-"], input=objects)
    assert answer.stdout == "2 objects are valid\n", answer.stderr
