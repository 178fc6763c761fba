"""Who may do what in a guarded cluster, and what docs/kafka-permissions.md says of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path

import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.waiting import wait_for
from tests.kafka.makers import Maker

PERMISSIONS = Path(__file__).parents[2] / "docs" / "kafka-permissions.md"
CLUSTER, TOPIC, GROUP = ResourceType.BROKER, ResourceType.TOPIC, ResourceType.GROUP
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
CREATE, DELETE, DESCRIBE = AclOperation.CREATE, AclOperation.DELETE, AclOperation.DESCRIBE
DESCRIBE_CONFIGS, READ, WRITE = AclOperation.DESCRIBE_CONFIGS, AclOperation.READ, AclOperation.WRITE

# Resource, name and operation. A name that ends with a dash stands for all that begin with it.
Acl = tuple[object, str, object]

WRITERS = "group-hygiene-"
LEAST: tuple[Acl, ...] = (
    (CLUSTER, "kafka-cluster", DESCRIBE),
    (TOPIC, "*", DESCRIBE),
    (GROUP, "*", DESCRIBE),
    (GROUP, "*", DELETE),
)
# What the documented examples grant: with Read, policies can see whether records wait.
EXAMPLE: tuple[Acl, ...] = (*LEAST, (TOPIC, "*", READ))
RESTORE: tuple[Acl, ...] = ((TOPIC, "*", READ), (GROUP, "*", READ))


def ledger_least(topic: str) -> tuple[Acl, ...]:
    """What a ledger in that topic needs."""
    operations = (CREATE, DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE)
    return (
        *((TOPIC, topic, operation) for operation in operations),
        *((TRANSACTIONAL_ID, WRITERS, operation) for operation in (DESCRIBE, WRITE)),
    )


def without(acls: Collection[Acl], *missing: tuple[object, str, Collection[object]]) -> tuple[Acl, ...]:
    """The rest, where some operations on a resource of that name are taken away."""
    gone = {(kind, name, operation) for kind, name, operations in missing for operation in operations}
    assert gone <= set(acls)
    return tuple(acl for acl in acls if acl not in gone)


def grant(maker: Maker, users: Mapping[str, Collection[Acl]], denied: Collection[tuple[str, Acl]] = ()) -> None:
    """Give each user exactly these permissions, and wait until they hold."""
    allow = [(user, *acl, AclPermissionType.ALLOW) for user, acls in users.items() for acl in acls]
    deny = [(user, *acl, AclPermissionType.DENY) for user, acl in denied]
    bindings = [
        AclBinding(resource, name, _pattern(name), f"User:{user}", "*", operation, permission)
        for user, resource, name, operation, permission in allow + deny
    ]
    for future in maker.admin.create_acls(bindings).values():
        future.result()
    wait_for(lambda: len(maker.admin.describe_acls(_of(None)).result()) == len(bindings))


def _pattern(name: str) -> ResourcePatternType:
    return ResourcePatternType.PREFIXED if name.endswith("-") else ResourcePatternType.LITERAL


def _of(user: str | None) -> AclBindingFilter:
    anything = (ResourceType.ANY, None, ResourcePatternType.ANY)
    principal = user and f"User:{user}"
    return AclBindingFilter(*anything, principal, None, AclOperation.ANY, AclPermissionType.ANY)


def documented(section: str, language: str) -> str:
    """The one block in that language under that heading."""
    _, _, text = PERMISSIONS.read_text().partition(f"\n## {section}\n")
    (block,) = re.findall(rf"^```{language}\n(.*?)^```$", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    return str(block)


def granted_by_commands(section: str, cluster: KafkaCluster, maker: Maker) -> set[Acl]:
    """What the documented commands grant, by Kafka's own tool, which takes them as they are; taken away again."""
    for line in documented(section, "bash").splitlines():
        script, *arguments = shlex.split(line)
        assert script == "kafka-acls.sh"
        where = arguments.index("--command-config")
        del arguments[where : where + 2]
        arguments[arguments.index("--bootstrap-server") + 1] = cluster.plaintext_bootstrap
        done = cluster.tool("org.apache.kafka.tools.AclCommand", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    user = _of("group-hygiene")
    found = maker.admin.describe_acls(user).result()
    maker.admin.delete_acls([user])[user].result()
    assert {acl.name: acl.resource_pattern_type for acl in found} == {acl.name: _pattern(acl.name) for acl in found}
    return {(acl.restype, acl.name, acl.operation) for acl in found}


def granted_by_strimzi(section: str) -> set[Acl]:
    """The same of the documented rules of a KafkaUser, whose words for kinds and operations are Strimzi's own."""
    kinds = {"cluster": CLUSTER, "topic": TOPIC, "group": GROUP, "transactionalId": TRANSACTIONAL_ID}
    block = yaml.safe_load(documented(section, "yaml"))
    acls = block if isinstance(block, list) else block["spec"]["authorization"]["acls"]
    found: set[Acl] = set()
    for acl in acls:
        resource = acl["resource"]
        name = resource.get("name", "kafka-cluster")
        prefixed = resource.get("patternType") == "prefix"
        assert prefixed == (_pattern(name) is ResourcePatternType.PREFIXED)
        words = [re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper() for operation in acl["operations"]]
        found |= {(kinds[resource["type"]], name, AclOperation[word]) for word in words}
    return found
