"""The life that is lived in every world: groups are marked, not deleted, deleted, restored, and a process is killed.

Real brokers, a real API server and real operator processes; `faults.auditor` judges from the brokers' answers.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from group_hygiene.kafka.client import connect
from group_hygiene.spec.client_settings import Settings
from testing.faults.enforcement import LOOK_SECONDS
from testing.faults.errors import Broken, FaultsError
from testing.faults.groups import Groups, Offsets
from testing.faults.operators import ROOT
from testing.faults.stage import needed
from testing.faults.world import Setup
from testing.faults.world import World as Enforced
from testing.sandbox.errors import NotReached
from testing.sandbox.kafka import KafkaCluster
from testing.sandbox.kubernetes import ApiServer
from testing.sandbox.waiting import wait_for
from testing.worlds import commands
from testing.worlds.acls import grant
from testing.worlds.members import abandon_share, start_offsets, visit
from testing.worlds.world import USER, Moment, Refuses, World

# Long, as other programs may load the machine.
_SECONDS = 240.0
_TIMEOUT = "60s"
# Long enough to be renewed on a loaded machine, and as short as a life can wait for.
_LEASE_SECONDS = 10
# The grace period: longer than it takes to see that groups are marked, which depends on the machine's load.
_GRACE_SECONDS, _GRACE_SECONDS_AT_MOST = 8.0, 60.0
# Longer than a life: each run is asked for by an edit, or is the first one of a new leader.
_INTERVAL_SECONDS = 3600
# What `faults.stage.needed` makes.
_PROTECTED = ("live", "simple", "protected-*")
# How often the operator runs at least while it must refuse, and at most until a status shows that.
_RUNS, _RUNS_AT_MOST = 3, 6
# How long after its grace period a group is deleted, at the latest.
_DUE_SECONDS = 10.0
# What a command says where a second try may do better, as leaders move or writes are slow.
_AGAIN = ("SnapshotIncomplete", "took too long")


class Silent(FaultsError):
    """Neither what was expected happened, nor does a status say why."""


@dataclass
class Made:
    """The groups of a life, and their offsets. unused: by type. used: by a consumer, after its mark.

    wanted: a user asks to keep it, after its mark. commanded: for the command line; no policy selects it.
    stayed: the groups that were there after the deletions, and must stay: one may be due before it is used.
    """

    unused: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    used: str = ""
    wanted: str = ""
    commanded: str = ""
    stayed: list[str] = field(default_factory=list)

    @property
    def marked(self) -> list[str]:
        """All that the operator marks."""
        return [*self.unused.values(), self.used, self.wanted]


@dataclass
class Life:
    """One world while it is lived in. kafka: its brokers. run: API server, proxy, replicas, policy and auditor."""

    world: World
    kafka: KafkaCluster
    run: Enforced
    stack: ExitStack
    made: Made = field(default_factory=Made)
    grace: float = _GRACE_SECONDS
    changed: ExitStack = field(default_factory=ExitStack)
    commands_environment: dict[str, str] = field(default_factory=dict)

    @property
    def groups(self) -> Groups:
        """Makes groups over the direct listener, which has all permissions."""
        return self.run.groups

    @property
    def admin(self) -> Any:
        """An administrator's client over the direct listener."""
        return self.run.groups.admin

    @property
    def lacks_topic_ids(self) -> bool:
        """Brokers below 2.8 have none (KIP-516), so that a restore must be allowed to go by names."""
        return self.world.cluster.numbers < (2, 8)

    def live(self) -> None:
        """Raises FaultsError or SandboxError; the audit is the caller's."""
        self.reach(Moment.FIRST)
        self.make_groups()
        if self.reach(Moment.START):
            return
        self.ensure_leader()
        with self.or_silent():
            self.run.until_marked(self.made.marked, _SECONDS)
        if self.reach(Moment.MARKED):
            return
        self.keep_and_use()
        self.delete_with_a_kill()
        if self.reach(Moment.DELETED):
            return
        self.restore_by_object()
        self.delete_and_restore_by_command()
        self.must_stay(self.made.stayed)

    # The steps

    def make_groups(self) -> None:
        """Groups that are due, of each type that the brokers have, and groups that must stay."""
        needed(self.run, self.stack)
        made, name, topic = self.made, self.run.name, self.run.topic
        classic, made.used, made.wanted = self.run.abandon(3)
        made.unused["Classic"] = classic
        made.offsets |= {each: self.groups.offsets(each) for each in (classic, made.used, made.wanted)}
        made.commanded = f"{name}-commanded"
        made.offsets[made.commanded] = {(topic, 0): 3, (topic, 1): 4}
        # Outside of the policy, since the command line deletes it without a mark.
        self.groups.abandon({made.commanded: made.offsets[made.commanded]})
        protocols = self.protocols()
        if "consumer" in protocols:
            made.unused["Consumer"] = group = f"{name}-consumer"
            made.offsets[group] = {(topic, 0): 2, (topic, 1): 1}
            visit(self.groups.bootstrap, group, topic, "consumer")
            # The group is Empty: clients may commit without a member. librdkafka adds a zero byte to metadata.
            self.groups.commit(group, made.offsets[group])
            self.run.truth.made({group: made.offsets[group]})
        if "share" in protocols:
            made.unused["Share"] = group = f"{name}-share"
            abandon_share(self.groups, group, self.groups.topic(f"{name}-shared", partitions=1))
            made.offsets[group] = self.start_offsets(group)
            # Its backup has no epochs and no metadata: the restore shows whether it is complete.
            self.run.truth.stays([group], "")
            self.run.truth.free([group])

    def protocols(self) -> set[str]:
        """The group protocols that the brokers offer."""
        if self.world.protocols is not None:
            return set(self.world.protocols)
        version = self.world.cluster.numbers
        return (
            {"classic"} | ({"consumer"} if version >= (4, 0) else set()) | ({"share"} if version >= (4, 2) else set())
        )

    def start_offsets(self, group: str) -> Offsets:
        """The start offsets of a share group."""
        client = connect(Settings(tuple(self.groups.bootstrap.split(","))))
        try:
            return start_offsets(client, group)
        finally:
            client.close()

    def reach(self, moment: Moment) -> bool:
        """Make the world's change if this is its moment; True = the life ends here, with a refusal as expected."""
        if self.world.change is not None and self.world.moment is moment:
            self.changed.enter_context(self.world.change(self))
        expected = self.world.expected
        # Before there is an operator, nothing can refuse.
        refuses_at = Moment.START if self.world.moment is Moment.FIRST else self.world.moment
        if not isinstance(expected, Refuses) or moment is not refuses_at:
            return False
        self.must_refuse(expected)
        self.changed.close()
        return expected.ends

    def ensure_leader(self) -> None:
        """Start the first operator process."""
        if not self.run.replicas.all:
            self.run.start(1)
            self.run.replicas.leader(_SECONDS)

    def keep_and_use(self) -> None:
        """A user asks to keep one group by the command line; a consumer joins another, and leaves without a commit."""
        made = self.made
        self.command("keep", made.wanted, "--for", "1d", "--why", "needed")
        self.run.truth.stays([made.wanted], "a request to keep it was confirmed")
        visit(self.groups.bootstrap, made.used, self.run.topic)
        # The audit refuses a deletion by a mark from before this use.
        self.run.truth.made({made.used: made.offsets[made.used]})

    def delete_with_a_kill(self) -> None:
        """The leader is killed once a broker has deleted a group; its successor deletes the rest, and records all."""
        due = list(self.made.unused.values())
        time.sleep(self.grace)
        with self.or_silent():
            leader = self.run.replicas.leader(_SECONDS)
            self.run.kill_at_delete(leader, due)
            self.run.start(1)
            self.run.replicas.another_leader(leader, _SECONDS)
            self.run.until_deleted(due, seconds=_SECONDS)
        self.must_stay([self.made.wanted])
        self.made.stayed.append(self.made.wanted)
        # Later the groups are there again, and a request without an answer counts if its group is gone.
        if problems := self.run.audit().problems:
            raise Broken("; ".join(problems))
        # In use from now on: whether it stayed until here is for the audit.
        if self.made.used in self.groups.listed():
            self.made.stayed.append(self.made.used)
            member = self.groups.member(self.made.used, self.run.topic)
            self.stack.callback(member.leave)
            self.run.truth.stays([self.made.used], "it has a member")

    def restore_by_object(self) -> None:
        """A GroupRestore brings back the offsets of each type of group, exactly, and the groups stay."""
        names = list(self.made.unused.values())
        spec = {"connectionRef": {"name": "main"}, "groups": names, "allowUnknownTopicIdentity": self.lacks_topic_ids}
        metadata = {"name": "back", "namespace": self.run.name}
        api = "grouphygiene.io/v1alpha1"
        self.run.kube.apply({"apiVersion": api, "kind": "GroupRestore", "metadata": metadata, "spec": spec})

        def status() -> dict[str, Any]:
            return dict(self.run.kube.get("GroupRestore", self.run.name, "back").get("status") or {})

        with self.or_silent():
            wait_for(lambda: "completionTime" in status(), lambda: f"the restore ends: {status()}"[:900], _SECONDS)
        for kind, name in self.made.unused.items():
            found = self.start_offsets(name) if kind == "Share" else self.groups.offsets(name)
            if dict(found) != dict(self.made.offsets[name]):
                raise Broken(f"{name} has {found} after a restore, not {self.made.offsets[name]}: {status()}"[:900])
        self.run.truth.stays(names, "it was restored")

    def delete_and_restore_by_command(self) -> None:
        """`delete` refuses what was used lately; with --force it deletes, and `restore` brings back all offsets."""
        name = self.made.commanded
        code, text = self.command("delete", name, "--yes", refused=True)
        if code == 0 or name not in self.groups.listed():
            raise Broken(f"`delete` of a group that was used a moment ago: exit code {code}: {text}")
        if self.commands_environment:
            code, text = self.command("delete", name, "--force", "--yes", refused=True)
            if code == 0 or "ClockSkew" not in text:
                raise Broken(f"`delete --force` by a wrong clock: exit code {code}: {text}")
            return
        self.command("delete", name, "--force", "--yes", tries=3)
        if name in self.groups.listed():
            raise Broken(f"`delete --force` says that {name} is deleted")
        self.command("restore", name, *(["--allow-unknown-topic-identity"] if self.lacks_topic_ids else []))
        found = self.groups.offsets(name)
        if found != dict(self.made.offsets[name]):
            raise Broken(f"{name} has {found} after `restore`, not {self.made.offsets[name]}")

    # A refusal

    def must_refuse(self, expected: Refuses) -> None:
        """Nothing is deleted, and status, log, `doctor` and `delete` name the cause."""
        self.ensure_leader()
        due = self.run.abandon(2) if self.world.moment is Moment.DELETED else self.made.marked
        if self.world.moment is Moment.MARKED:
            visit(self.groups.bootstrap, self.made.used, self.run.topic)
            time.sleep(self.grace)
        self.run.truth.stays(due, f"the operator must refuse: {expected.reason}")
        shown = False
        # What is marked now is due by then.
        until = time.monotonic() + self.grace + _DUE_SECONDS
        for done in itertools.count(1):
            self.run.run(seconds=_SECONDS)
            self.must_stay(due)
            shown = shown or self.is_shown(expected)
            enough = done >= _RUNS_AT_MOST and time.monotonic() > until
            if enough or (shown and done >= _RUNS):
                break
            time.sleep(LOOK_SECONDS)
        missing = [] if shown else [f"no status has {expected.reason} with {expected.cause!r}"]
        if not any(expected.names_cause(each.log()) for each in self.run.replicas.all):
            missing.append(f"the log does not say {expected.cause!r}")
        if expected.everywhere:
            missing += self.not_refused_by_commands(expected)
        if missing:
            kind = Silent if not shown and self.seems_well() else Broken
            raise kind(f"{'; '.join(missing)}; {self.summary()}")
        self.run.truth.free(due)

    def not_refused_by_commands(self, expected: Refuses) -> Iterator[str]:
        """How `doctor`, or `delete --force`, differs from a refusal that names the cause."""
        code, text = self.command("doctor", "-o", "json", refused=True)
        if code == 0 or not expected.names_cause(str(_failed(text))):
            yield f"doctor (exit code {code}) does not say {expected.cause!r}: {_failed(text)}"
        if expected.forced:
            return
        name = self.made.commanded
        code, text = self.command("delete", name, "--force", "--yes", refused=True)
        if code == 0 or name not in self.groups.listed():
            yield f"`delete --force` does not refuse (exit code {code}): {text[-300:]}"

    def is_shown(self, expected: Refuses) -> bool:
        """Whether a status of the policy or the connection has the reason, with a message that names the cause."""
        rows = [*self.run.status().get("conditions", []), *self.run.status().get("sample", [])]
        rows += self.connection_conditions()
        return any(
            row.get("reason") == expected.reason and expected.names_cause(row.get("message", "")) for row in rows
        )

    def connection_conditions(self) -> list[dict[str, str]]:
        """The conditions of the connection."""
        status = self.run.kube.get("KafkaConnection", self.run.name, "main").get("status") or {}
        return list(status.get("conditions", []))

    def seems_well(self) -> bool:
        """Whether no condition of the policy and the connection shows a problem."""
        rows = [*self.run.status().get("conditions", []), *self.connection_conditions()]
        problems = ("DeletionBlocked", "Stalled", "Reconciling")
        return not any(row["status"] == ("True" if row["type"] in problems else "False") for row in rows)

    def summary(self) -> str:
        """The statuses of policy and connection, for an error message."""
        rows = [
            f"{row['type']} {row['status']} {row['reason']}: {row['message']}" for row in self.connection_conditions()
        ]
        return f"{self.run.summary()} connection: {rows}"[:1200]

    @contextmanager
    def or_silent(self) -> Iterator[None]:
        """What does not happen must have a reason in a status; else it is Silent."""
        try:
            yield
        except NotReached as error:
            kind = Silent if self.seems_well() else Broken
            raise kind(f"{error}; {self.summary()}") from error

    def must_stay(self, names: Iterable[str]) -> None:
        gone = set(names) - self.groups.listed()
        if gone:
            raise Broken(f"deleted: {', '.join(sorted(gone))}")

    # The command line

    def command(self, *arguments: str, refused: bool = False, tries: int = 1) -> tuple[int, str]:
        """Run the command line, as an administrator; exit code, and its output. tries: see `_AGAIN`.

        With the connection, unless the clock of commands is wrong: then TLS would refuse the API server's certificate.
        Raises Broken for an exit code other than 0, unless `refused`.
        """
        if self.commands_environment:
            code, text = self.command_in_its_own_time(arguments)
        else:
            connection = ("--connection", "main", "-n", self.run.name, "--kubeconfig", str(self.run.server.kubeconfig))
            code, text = commands.run([*arguments, *connection, "--timeout", _TIMEOUT], _SECONDS)
        if code != 0 and tries > 1 and any(each in text for each in _AGAIN):
            return self.command(*arguments, refused=refused, tries=tries - 1)
        if code != 0 and not refused:
            raise Broken(f"{' '.join(arguments)}: exit code {code}: {text[-600:]}")
        return code, text

    def command_in_its_own_time(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run a command whose clock is wrong: a new program, since a library before libc sets its clock."""
        command = [sys.executable, "-m", "group_hygiene.cli", *arguments]
        command += ["--bootstrap-server", self.run.proxy.bootstrap_servers]
        command += ["--ledger-topic", self.run.ledger_topic] if arguments[0] != "doctor" else []
        command += ["--without-connection"] if "--yes" in arguments else []
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "operator")} | self.commands_environment
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
        return done.returncode, (done.stdout + done.stderr).strip()


def _failed(text: str) -> list[Mapping[str, Any]] | str:
    """The checks of doctor's JSON that are not Ok."""
    try:
        return [check for check in json.loads(text)["checks"] if check["result"] != "Ok"]
    except ValueError:
        return text[-300:]


@contextmanager
def begun(world: World, kafka: KafkaCluster, server: ApiServer) -> Iterator[Life]:
    """A life of this world on these brokers. At its end its change is undone, and its objects are deleted."""
    policy: dict[str, Any] = {
        "match": {
            # All but `commanded`.
            "groups": [f"{world.name}-{name}" for name in (*_PROTECTED, "old-*", "consumer", "share")],
            "types": ["Classic", "Consumer", "Share"],
            "unprotect": ["Share"],
        }
    }
    grace = min(_GRACE_SECONDS_AT_MOST, max(world.grace, _GRACE_SECONDS, 2 * os.getloadavg()[0]))
    setup = Setup(
        world.name,
        kafka,
        connection={
            "ledger": {"topic": f"hygiene-{world.name}", **world.ledger},
            "scan": {"timeout": _TIMEOUT},
            **_login(world),
        },
        policy=policy,
        server=server,
        without="clock" if world.own_clock else "",
        lease=_LEASE_SECONDS,
        grace=grace,
        interval=_INTERVAL_SECONDS,
        prepare=grant if world.cluster.user else None,
    )
    with ExitStack() as stack:
        run = stack.enter_context(Enforced(setup))
        run.auditor.late = _LEASE_SECONDS
        stack.callback(_forget, run)
        life = Life(world, kafka, run, stack, grace=grace)
        stack.callback(life.changed.close)
        yield life


def _login(world: World) -> dict[str, Any]:
    if not world.cluster.user:
        return {}
    sasl = {"mechanism": "PLAIN", "username": USER, "passwordSecretRef": {"name": "kafka", "key": "password"}}
    return {"sasl": sasl}


def _forget(run: Enforced) -> None:
    """Delete the objects of a world and the Lease of its dead leader: the API server is used again."""
    for process in run.replicas.all:
        process.end()
    for kind, name in (("GroupRestore", "back"), ("GroupPolicy", "p"), ("KafkaConnection", "main")):
        _ignoring_absent(
            run,
            f"/apis/grouphygiene.io/v1alpha1/namespaces/{run.name}/{kind.lower()}s/{name}".replace(
                "policys", "policies"
            ),
        )
    _ignoring_absent(run, "/apis/coordination.k8s.io/v1/namespaces/group-hygiene/leases/group-hygiene")


def _ignoring_absent(run: Enforced, path: str) -> None:
    try:
        run.kube.call("DELETE", path)
    except FaultsError as error:
        if " 404 " not in str(error):
            raise
