"""Reads policies and connections from YAML files, or reports all their errors at once; scans their clusters."""

from __future__ import annotations

import itertools
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from group_hygiene.cli.options import ChosenCluster
from group_hygiene.cli.output import Report, Table, printable, working
from group_hygiene.cli.target import Session, names_cluster, open_session, open_tables
from group_hygiene.controller.objects import connection_of
from group_hygiene.engine.context import Context, Memory, Observation
from group_hygiene.engine.pattern_notes import note_lines, pattern_notes
from group_hygiene.engine.plan import FAILURES
from group_hygiene.engine.recovery import LedgerNeed, open_journal
from group_hygiene.engine.restorable import parse_restore
from group_hygiene.engine.scan import observe
from group_hygiene.errors import HygieneError, SpecError, UsageError
from group_hygiene.kafka import groups as kafka_groups
from group_hygiene.ledger.contents import LedgerSettings
from group_hygiene.model import naming, reasons
from group_hygiene.model.evidence import Protections
from group_hygiene.model.groups import Snapshot
from group_hygiene.model.reasons import Refusal
from group_hygiene.spec.connection import ActivitySpec, Connection, Grant, admit, grant, parse_connection
from group_hygiene.spec.crds import API_VERSION, PLURALS, violations
from group_hygiene.spec.patterns import is_like_a_pattern
from group_hygiene.spec.policy import Policy, parse_keep, parse_policy

_SUFFIXES = (".yaml", ".yml", ".json")
_TAG = "tag:yaml.org,2002:"
# Far more than a List of all objects that a cluster can hold in one answer.
_VALUES_MAX = 1_000_000
_SHOWN = 3
_UNAPPLIED = {"uid": "", "namespace": ""}
_PARSERS: Mapping[str, Callable[[dict[str, Any]], object]] = {
    "GroupPolicy": parse_policy,
    "KafkaConnection": parse_connection,
    "GroupRestore": lambda obj: parse_restore(obj | {"metadata": _UNAPPLIED | obj["metadata"]}),
    "GroupKeep": lambda obj: parse_keep(obj | {"metadata": _UNAPPLIED | obj["metadata"]}),
}


class _Loader(yaml.SafeLoader):
    """Loads like kubectl: a duplicate key is an error, and dates and times of day are strings."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        # In YAML 1.1, 20:00 is a number of base 60.
        base_60 = tag in (f"{_TAG}int", f"{_TAG}float") and ":" in value
        return f"{_TAG}str" if base_60 or tag == f"{_TAG}timestamp" else tag

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[str]()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen and name != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {name!r}", key.start_mark)
            seen.add(name)
        return dict(super().construct_mapping(node, deep))


@dataclass(frozen=True, slots=True)
class Document:
    """One object, and its place in a file."""

    source: str
    content: dict[str, Any]
    node: yaml.Node

    def at(self, path: Sequence[str | int] = ()) -> str:
        """`file:line` of a field, or of its nearest parent that exists."""
        return f"{self.source}:{self.line(path)}"

    def line(self, path: Sequence[str | int]) -> int:
        node, line = self.node, self.node.start_mark.line
        for step in path:
            found: yaml.Node | None = None
            if isinstance(node, yaml.MappingNode):
                for key, value in node.value:
                    if key.value == step:
                        found, line = value, key.start_mark.line
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = node.value[step]
                line = found.start_mark.line
            if found is None:
                break
            node = found
        return line + 1


def read_documents(names: Sequence[str]) -> tuple[list[Document], list[str]]:
    """The documents of all files, of all YAML files in folders, and of stdin for `-`; each item of a List is one.

    And a message for each file that can't be read to its end, with file and line, but without content: it may be a
    secret.
    """
    documents: list[Document] = []
    problems: list[str] = []
    for name in names:
        try:
            files: Sequence[Path | None] = [None] if name == "-" else _files(name)
        except UsageError as error:
            problems.append(str(error))
            continue
        for file in files:
            try:
                text = _read("stdin", sys.stdin.buffer.read) if file is None else _read(str(file), file.read_bytes)
                documents.extend(_parse("stdin" if file is None else str(file), text))
            except UsageError as error:
                problems.append(str(error))
    return documents, problems


def _files(name: str) -> list[Path]:
    """The file of that name, or the YAML files in the folder of that name."""
    if not name:
        raise UsageError("a file must have a name: -f is empty")
    path = Path(name)
    try:
        # Unlike is_dir(), raises the cause if it can't be read.
        if not stat.S_ISDIR(path.stat().st_mode):
            return [path]
        files = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror}") from error
    if not files:
        raise UsageError(f"there is no YAML file in {name}")
    return files


def _read(source: str, read: Callable[[], bytes]) -> str:
    try:
        return read().decode("utf-8")
    except OSError as error:
        raise UsageError(f"{source} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{source} is not UTF-8 text") from error


def _parse(source: str, text: str) -> Iterator[Document]:
    """The documents before the first error, and UsageError for that."""
    try:
        yield from _documents(source, _Loader(text))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{source}{line}: is not valid YAML: {error.problem or 'it ends too early'}") from None
    except yaml.YAMLError:
        raise UsageError(f"{source}: is not valid YAML: it contains forbidden characters") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{source}: is not readable YAML") from None


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """The number of values of a node, with those that its aliases repeat: a small file may stand for a huge document.

    sizes: of other nodes, by their `id`. Raises ConstructorError for too many, and for an alias within its anchor.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) not in sizes:
        # While its own values are counted.
        sizes[id(node)] = _VALUES_MAX
        values = itertools.chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        sizes[id(node)] = 1 + sum(_size(value, sizes) for value in values)
    if sizes[id(node)] > _VALUES_MAX:
        problem = f"it has more than {_VALUES_MAX:,} values, with its aliases"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return sizes[id(node)]


def _documents(source: str, loader: _Loader) -> Iterator[Document]:
    while loader.check_node():
        node = loader.get_node()
        if node is None:
            continue
        _size(node, {})
        content = loader.construct_document(node)
        if content is None:
            continue
        document = Document(source, content, node)
        if not isinstance(content, dict):
            raise UsageError(f"{document.at()}: must be a mapping with apiVersion and kind")
        items = content.get("items")
        if content.get("kind") != "List" or not isinstance(items, list):
            yield document
            continue
        item_nodes = next(value for key, value in node.value if key.value == "items").value
        for item, item_node in zip(items, item_nodes, strict=True):
            if isinstance(item, dict):
                yield Document(source, item, item_node)


@dataclass
class Manifests:
    """The contents of the files. connections: (namespace, name) -> Connection. skipped: kinds of ignored objects.

    titles: kind, namespace and name of each object of our CRDs. named: the connections that valid objects name. notes:
    one for each GroupKeep and GroupRestore whose ids look like patterns.
    """

    policies: list[Policy] = field(default_factory=list)
    connections: dict[tuple[str, str], Connection] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    titles: list[str] = field(default_factory=list)
    named: set[tuple[str, str]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def admit(self) -> list[str]:
        """Each policy whose connection is in the files becomes as it runs; errors for those that may not."""
        policies: list[Policy] = []
        errors: list[str] = []
        for policy in self.policies:
            connection = self.connections.get(_reference(policy))
            # Labels of namespaces are not known here.
            is_open = connection is None or (policy.crosses_namespace and connection.selects_by_label)
            admitted, refused = ([policy], []) if connection is None or is_open else admitted_by(connection, [policy])
            policies += admitted
            errors += refused
        self.policies = policies
        return errors


def read_manifests(names: Sequence[str], namespace: str = "default", policy_needed: bool = True) -> Manifests:
    """The policies and connections of all files; `namespace` is the default for objects without one, as in kubectl.

    Raises UsageError with one line for each mistake in any of them, or if a policy is needed, and there is none.
    """
    manifests = Manifests()
    documents, unread = read_documents(names)
    mistakes: list[str] = []
    for document in documents:
        kind, version = document.content.get("kind"), document.content.get("apiVersion")
        if not isinstance(kind, str) or not isinstance(version, str):
            mistakes.append(f"{document.at()}: must have apiVersion and kind")
            continue
        if version.partition("/")[0] != API_VERSION.partition("/")[0]:
            manifests.skipped.add(kind)
            continue
        if version != API_VERSION or kind not in PLURALS:
            mistakes.append(
                f"{document.at(['kind'])}: {version} {kind} is not known: {API_VERSION} {', '.join(PLURALS)}"
            )
            continue
        obj, metadata = document.content, document.content.get("metadata")
        named = metadata if isinstance(metadata, dict) else {}
        if named and not named.get("namespace"):
            named = {**named, "namespace": namespace}
            obj = {**obj, "metadata": named}
        wrong = sorted(violations(obj), key=lambda violation: (document.line(violation.path), violation.field))
        title = f"{kind} {named.get('namespace') or 'default'}/{named.get('name') or ''}"
        mistakes += [f"{document.at(v.path)}: {title}: {f'{v.field}: ' if v.path else ''}{v.message}" for v in wrong]
        if title in manifests.titles:
            mistakes.append(f"{document.at()}: {title} is given twice")
        manifests.titles.append(title)
        if not wrong:
            _add(kind, title, obj, manifests)
    if unread or mistakes:
        raise UsageError(
            "\n".join([*unread, *(["the files are not valid:"] if mistakes else []), *map(naming.printable, mistakes)])
        )
    if policy_needed and not manifests.policies:
        raise UsageError(f"there is no GroupPolicy in {', '.join('stdin' if name == '-' else name for name in names)}")
    return manifests


def _add(kind: str, title: str, obj: dict[str, Any], manifests: Manifests) -> None:
    parsed = _PARSERS[kind](obj)
    if not isinstance(parsed, Connection):
        manifests.named.add(connection_of(obj))
    if isinstance(parsed, Policy):
        # Observations of a policy are stored by its uid, and an unapplied policy has none.
        manifests.policies.append(structs.replace(parsed, uid=parsed.uid or parsed.key))
    elif isinstance(parsed, Connection):
        manifests.connections[parsed.namespace, parsed.name] = parsed
    else:
        manifests.skipped.add(kind)
        if like := [name for name in obj["spec"].get("groups") or () if is_like_a_pattern(name)]:
            shown = naming.printable(naming.truncated_list(like, _SHOWN))
            manifests.notes.append(f"{title}: spec.groups has exact ids, and no patterns like {shown}")


@dataclass(frozen=True, slots=True)
class Scan:
    """Policies of one connection, and the observation of one scan of its cluster, which began then."""

    connection: str
    policies: Sequence[Policy]
    observation: Observation
    begun: datetime

    @property
    def snapshot(self) -> Snapshot:
        return self.observation.snapshot


@dataclass(frozen=True, slots=True)
class Scans:
    """One scan for each connection whose cluster could be read; and notes and errors on all of them."""

    every: Sequence[Scan]
    notes: list[str]
    errors: list[str]


def validated(target: ChosenCluster, files: Sequence[str]) -> Report:
    """The objects of the files. Raises UsageError if one is not valid, or if there is none."""
    manifests = read_manifests(files, target.namespace, policy_needed=False)
    if not manifests.titles:
        raise UsageError(f"there is no object of {API_VERSION} in the files")
    if misnamed := _misnamed(manifests):
        raise UsageError("\n".join(["the files are not valid:", *misnamed.values()]))
    keys = sorted(manifests.named - set(manifests.connections))
    notes = [f"KafkaConnection {'/'.join(key)} is in none of the files: it is not validated" for key in keys]
    notes += manifests.notes
    notes += [f"{kind}: ignored, not of {API_VERSION}" for kind in sorted(manifests.skipped - set(PLURALS))]
    document = {"valid": manifests.titles, "notes": notes, "errors": []}
    count = len(manifests.titles)
    text = "1 object is valid" if count == 1 else f"{count:,} objects are valid"
    return Report(document, manifests.titles, [Table((), (), [text])], notes)


def scan_clusters(
    target: ChosenCluster,
    files: Sequence[str],
    activity: ActivitySpec | None = None,
    narrowed: Callable[[Policy], Policy] = lambda policy: policy,
    full: bool = False,
) -> Scans:
    """Scan the cluster of each connection once, without earlier scans, and assume that `unchangedFor` is over.

    If a cluster can't be reached, that is an error for its policies; the others are scanned. `narrowed`: returns the
    policy to check in place of each.
    """
    manifests = read_manifests(files, target.namespace)
    unplannable = _unplannable(target, manifests)
    chosen = _by_connection(target, manifests, unplannable)
    notes, errors = _first_notes(target, manifests), list(unplannable.values())
    every: list[Scan] = []
    for key, policies in chosen.items():
        document = manifests.connections.get(key)
        if target.connection is None and document is None:
            where = f"KafkaConnection {'/'.join(key)} is in none of the files"
            notes.append(f"{where}: its protect and limits are not known here")
        try:
            with open_session(target, document, claims=True) as session, working("reading groups"):
                admitted, refused = admitted_by(session.connection, policies)
                errors += refused
                notes += [f"GroupPolicy {policy.key}: {text}" for policy in admitted if (text := policy.stricter_note)]
                memory = Memory(cluster_id=session.cluster_id)
                ledger = LedgerSettings(installation=None, writer="", topic=session.connection.ledger.topic)
                journal = open_journal(memory, session.client, ledger, LedgerNeed.SHOW, (), session.deadline())
                if journal.problem is not None:
                    notes.append(f"requests to keep a group are not known here: {journal.problem.message}")
                    # A plan is about the policies: the operator may have permissions that this user does not have.
                    journal.problem = None
                context = Context(
                    client=session.client,
                    connection=session.connection,
                    memory=memory,
                    clock=session.clock,
                    journal=journal,
                    claims=session.claims,
                    tables=open_tables(session, activity),
                    assume_unchanged=True,
                )
                begun = session.clock.now()
                observation = observe(context, [narrowed(policy) for policy in admitted], full, whole=True)
                pattern_lines = [] if full else _pattern_notes(session, admitted, observation)
        except HygieneError as error:
            errors.append(f"GroupPolicy {', '.join(policy.key for policy in policies)}: {error}")
            continue
        scan = Scan("/".join(key), admitted, observation, begun)
        notes += _scan_notes(scan, session.api is not None)
        notes += pattern_lines
        errors += _scan_errors(scan)
        every.append(scan)
    return Scans(every, list(dict.fromkeys(notes)), errors)


def admitted_by(connection: Connection, policies: Sequence[Policy]) -> tuple[list[Policy], list[str]]:
    """The policies that the connection admits, as they run (see `admit`); and errors for the others."""
    admitted: list[Policy] = []
    errors: list[str] = []
    for policy in policies:
        try:
            # Labels of namespaces are not known here: access by labels counts as refused.
            given = grant(connection, policy.namespace, None) if policy.crosses_namespace else Grant(None)
            admitted.append(admit(connection, policy, given))
        except SpecError as error:
            errors.append(f"GroupPolicy {policy.key}: {error.reason}: {error}")
    return admitted, errors


def _unplannable(target: ChosenCluster, manifests: Manifests) -> dict[str, str]:
    """Errors by policy: its KafkaConnection, or the spec.access of one in another namespace, is not known here."""
    errors = _misnamed(manifests) if target.connection is None else {}
    asked, advice = (target.namespace, target.connection), "add the KafkaConnection to the files, or give --connection"
    for policy in manifests.policies:
        if policy.crosses_namespace and _reference(policy) not in (asked, *manifests.connections):
            access = f"spec.access of KafkaConnection {policy.connection_key} is not known here: {advice}"
            errors[policy.key] = f"GroupPolicy {policy.key}: {reasons.CROSS_NAMESPACE}: {access}"
    return errors


def _by_connection(
    target: ChosenCluster, manifests: Manifests, unplannable: Collection[str]
) -> dict[tuple[str, str], list[Policy]]:
    """The policies that would run, by their KafkaConnection; with --connection, only those of that connection.

    Raises UsageError if the policies refer to several connections but the options specify one cluster, which would be
    the wrong one for some of them.
    """
    chosen: dict[tuple[str, str], list[Policy]] = {}
    for policy in manifests.policies:
        if not policy.suspend and policy.key not in unplannable:
            chosen.setdefault(_reference(policy), []).append(policy)
    named = ", ".join("/".join(key) for key in sorted(chosen))
    if target.connection is not None:
        asked = target.namespace, target.connection
        if chosen and asked not in chosen:
            raise UsageError(
                f"no GroupPolicy in the files refers to KafkaConnection {'/'.join(asked)}, only to {named}"
            )
        return {key: policies for key, policies in chosen.items() if key == asked}
    if len(chosen) > 1 and names_cluster(target):
        raise UsageError(
            f"the files contain GroupPolicies of {len(chosen)} KafkaConnections ({named}), but the options specify one "
            "cluster (--bootstrap-server, GROUP_HYGIENE_BOOTSTRAP_SERVER, or bootstrap.servers of --command-config): "
            "give the policies of one connection with -f, or choose one with --connection"
        )
    return chosen


def _reference(policy: Policy) -> tuple[str, str]:
    return policy.connection_namespace, policy.connection_name


def _misnamed(manifests: Manifests) -> dict[str, str]:
    """Errors by policy: the files have KafkaConnections, but not the one of its namespace to which it refers."""
    known = ", ".join("/".join(each) for each in sorted(manifests.connections))
    return {
        policy.key: f"GroupPolicy {policy.key}: spec.connectionRef: KafkaConnection {policy.connection_key} "
        f"is in none of the files, which have {known}"
        for policy in manifests.policies
        if known and not policy.crosses_namespace and _reference(policy) not in manifests.connections
    }


def _first_notes(target: ChosenCluster, manifests: Manifests) -> list[str]:
    """Notes that need no scan of a cluster."""
    notes = [f"{kind}: ignored, not a GroupPolicy or KafkaConnection" for kind in sorted(manifests.skipped)]
    for policy in manifests.policies:
        if policy.suspend:
            notes.append(f"GroupPolicy {policy.key} is suspended: it would do nothing")
        elif target.connection is not None and _reference(policy) != (target.namespace, target.connection):
            notes.append(f"GroupPolicy {policy.key}: ignored, refers to KafkaConnection {policy.connection_key}")
    return notes


def _scan_notes(scan: Scan, in_kubernetes: bool) -> list[str]:
    """Notes on matches that are uncertain, and on slow reads of old brokers."""
    notes = list(scan.snapshot.notes)
    matched = any(verdict.matches for verdicts in scan.observation.verdicts.values() for verdict in verdicts.values())
    if matched and not in_kubernetes:
        notes.append("groups that a ScaledObject or KafkaConnector names are not known here: --connection reads them")
    if scan.observation.topics is not None and scan.observation.topics.reason == reasons.TOPICS_ATTESTED:
        notes.append(scan.observation.topics.message)
    return notes


def _pattern_notes(session: Session, policies: Sequence[Policy], observation: Observation) -> list[str]:
    """Notes on patterns that select no group, or fewer than they seem to; none if not all groups are known."""
    groups: Collection[str] | None = observation.all_groups
    if groups is None:
        listing = kafka_groups.list_groups(session.client, observation.snapshot.cluster, session.deadline())
        groups = None if kafka_groups.unanswered(listing) else listing.groups
    if groups is None or not observation.snapshot.complete:
        return []
    return note_lines(pattern_notes(session.connection, policies, groups))


def _scan_errors(scan: Scan) -> list[str]:
    """Errors on missing groups, on protection sources that could not be read, and on groups without a verdict."""
    errors = [f"groups may be missing: {problem}" for problem in scan.snapshot.incomplete]
    everything = scan.observation.verdicts.values()
    skipped = {verdict.refusal.reason for verdicts in everything for verdict in verdicts.values() if verdict.refusal}
    errors += protection_errors(scan.observation.protections, skipped)
    coverage = scan.snapshot.coverage
    if coverage is not None and coverage.problem is not None and coverage.problem.reason in skipped:
        problem = coverage.problem
        errors.append(f"groups are skipped for lack of evidence: {problem.reason}: {problem.message}")
    for key, verdicts in scan.observation.verdicts.items():
        for name, verdict in sorted(verdicts.items()):
            if verdict.refusal is not None and verdict.refusal.reason in FAILURES:
                errors.append(
                    f"GroupPolicy {key}: group {printable(name)}: {verdict.refusal.reason}: {verdict.refusal.message}"
                )
    return errors


def protection_errors(protections: Protections, skipped: Collection[str]) -> list[str]:
    """Errors on protection sources that could not be read, which therefore protect groups that may be unused.

    skipped: the reasons of all groups that are skipped.
    """
    errors = []
    if isinstance(protections.claimed, Refusal) and reasons.CLAIMED in skipped:
        errors.append(
            "every group is skipped, as not all objects that may name groups could be read: "
            f"{protections.claimed.message}"
        )
    if protections.streams is None and reasons.STREAMS in skipped:
        errors.append("every group that may be a Kafka Streams application is skipped: topics could not be listed")
    if protections.mirrored is None and reasons.MIRROR_MAKER in skipped:
        errors.append(
            "every group that MirrorMaker 2 may write is skipped: its checkpoints could not be read: "
            "needs READ on each topic *.checkpoints.internal, and time for large ones (mirrorMaker.checkpointTopics)"
        )
    return errors
