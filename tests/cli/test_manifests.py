"""Policies in files, held against the CRDs without an API server: every mistake is found, with its line."""

from __future__ import annotations

import filecmp
import importlib.resources
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import tests.kube.test_crds as server
from group_hygiene.cli.manifests import read_manifests
from group_hygiene.errors import UsageError
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
GOOD = """\
apiVersion: grouphygiene.io/v1alpha1
kind: GroupPolicy
metadata: {name: unused, namespace: kafka}
spec:
  connectionRef: {name: main}
  match: {groups: ["a-*"]}
  when: {unchangedFor: 72h}
  action: Delete
"""
KEEP = """\
apiVersion: grouphygiene.io/v1alpha1
kind: GroupKeep
metadata: {name: k, namespace: kafka}
spec:
  connectionRef: {name: main}
  groups: ["a-*", "pay-{uuid}", billing]
  reason: report
"""


def table(test: Any) -> list[Any]:
    """The cases of a parametrized test."""
    (mark,) = [mark for mark in test.pytestmark if mark.name == "parametrize"]
    return list(mark.args[1])


def refused(tmp_path: Path, *objects: Any) -> str:
    """What is said against the objects; empty = nothing."""
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    try:
        read_manifests([str(file)])
    except UsageError as error:
        return str(error)
    return ""


# Sentences of the API server about the structure; those about rules are the CRD's own.
_OF_STRUCTURE = re.compile(r"of type|should have|must have at most \d+ items|than or equal|at least 1$")


def agrees(said: str, complaint: str) -> bool:
    """Whether it names the same field, and says the same if a rule is broken. complaint: an expression."""
    field, _, text = complaint.partition(": ") if ": " in complaint else ("", "", complaint)
    if not text.startswith((".*", "must")) or _OF_STRUCTURE.search(text):
        text = ""
    return re.search(f"{field}: .*{text.removeprefix('.* ')}", said) is not None


@pytest.mark.parametrize(("spec", "complaint"), table(server.test_policy_is_refused))
def test_policy_that_the_api_server_refuses_is_refused(tmp_path: Path, spec: Any, complaint: str) -> None:
    """Every policy of the tests of the CRD, with one complaint each: one mistake gets one sentence."""
    said = refused(tmp_path, server.a_policy(spec))
    assert said.count("\n") == 1, said
    assert agrees(said, complaint)


@pytest.mark.parametrize(("spec", "complaint"), table(server.test_connection_is_refused))
def test_connection_that_the_api_server_refuses_is_refused(tmp_path: Path, spec: Any, complaint: str) -> None:
    """Every connection of the tests of the CRD, with one complaint each."""
    said = refused(tmp_path, server.a_policy({}), server.a_connection(spec))
    assert said.count("\n") == 1, said
    assert agrees(said, complaint)


@pytest.mark.parametrize(
    "candidate",
    [
        *(
            pytest.param(server.a_policy(case.values[0]), id=f"policy-{case.id}")
            for case in table(server.test_policy_is_accepted)
        ),
        *(
            pytest.param(server.a_connection(case.values[0]), id=f"connection-{case.id}")
            for case in table(server.test_connection_is_accepted)
        ),
    ],
)
def test_what_the_api_server_accepts_is_accepted(tmp_path: Path, candidate: Any) -> None:
    """Every good object of the tests of the CRDs."""
    assert refused(tmp_path, server.a_policy({}, name="another"), candidate) == ""


@pytest.mark.parametrize("file", [pytest.param(path, id=path.stem) for path in server.EXAMPLES])
def test_examples_are_accepted(file: Path) -> None:
    """Everything under examples/, but that connections alone are nothing to plan."""
    if "kind: GroupPolicy" in file.read_text():
        assert read_manifests([str(file)]).policies
    else:
        with pytest.raises(UsageError, match="there is no GroupPolicy in"):
            read_manifests([str(file)])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            GOOD + "  mod: Enforce\n",
            ":9: GroupPolicy kafka/unused: spec.mod: unknown field; did you mean mode?\n",
            id="unknown-field",
        ),
        pytest.param(
            GOOD + "  alert: {groupsAtLeast: 2}\n",
            ":9: GroupPolicy kafka/unused: spec.alert: unknown field; did you mean notify?\n",
            id="former-name",
        ),
        pytest.param(
            GOOD + "  maxPercent: 5\n",
            ":9: GroupPolicy kafka/unused: spec.maxPercent: unknown field; did you mean spec.delete.maxPercent?\n",
            id="field-of-another-place",
        ),
        pytest.param(
            GOOD + "  xyz: 5\n", ":9: GroupPolicy kafka/unused: spec.xyz: unknown field\n", id="unknown-field-like-none"
        ),
        pytest.param(
            GOOD.replace("72h", "3w"), ":7: GroupPolicy kafka/unused: spec.when.unchangedFor: must be a dur", id="rule"
        ),
        pytest.param(
            GOOD.replace("  action: Delete\n", ""), ":4: GroupPolicy kafka/unused: spec.action: must be", id="missing"
        ),
        pytest.param(
            GOOD.replace("Delete", "Remove"), ":8: GroupPolicy kafka/unused: spec.action: must be one of", id="enum"
        ),
        pytest.param(
            GOOD.replace("name: unused", "labls: {}"), ":3: GroupPolicy kafka/: metadata.labls: unknown", id="metadata"
        ),
        pytest.param(GOOD + "  action: Alert\n", ":9: is not valid YAML: duplicate key 'action'", id="key-twice"),
        pytest.param(GOOD + "---\n" + GOOD, ":10: GroupPolicy kafka/unused is given twice", id="object-twice"),
        pytest.param("a: [", "is not valid YAML", id="not-yaml"),
        pytest.param("- 1\n", ":1: must be a mapping", id="no-mapping"),
        pytest.param("a: 1\n", ":1: must have apiVersion and kind", id="no-kind"),
        pytest.param(
            GOOD.replace("GroupPolicy", "GroupPolcy"), ":2: grouphygiene.io/v1alpha1 GroupPolcy is not known", id="kind"
        ),
        pytest.param(
            GOOD.replace("alpha1", "beta1"), ":2: grouphygiene.io/v1beta1 GroupPolicy is not known", id="version"
        ),
        pytest.param("", "there is no GroupPolicy in stdin", id="empty"),
        pytest.param(
            GOOD.replace("name: unused", 'name: "x\\n::error::y"'),
            ": GroupPolicy kafka/x\\n::error::y: ",
            id="name-of-two-lines",
        ),
        pytest.param(
            "a: &a {b: *a}\n", ":1: is not valid YAML: it has more than 1,000,000 values", id="alias-of-itself"
        ),
        pytest.param(
            "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
            ": is not valid YAML: it has more than 1,000,000 values, with its aliases",
            id="aliases-of-aliases",
        ),
        pytest.param(
            "m0: &m0 {a: 1}\n"
            + "".join(f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}\n" for n in range(1, 10)),
            ": is not valid YAML: it has more than 1,000,000 values, with its aliases",
            id="merges-of-merges",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(run: Run, text: str, says: str) -> None:
    """Found before any cluster is asked, said without a traceback, exit code 1."""
    answer = run("plan", "-f", "-", stdin=text)
    assert (answer.code, answer.out) == (1, "")
    assert says in answer.err


def test_all_mistakes_are_named(run: Run) -> None:
    """Each with its line, in their order."""
    text = GOOD.replace("72h", "3w").replace("Delete", "Remove") + "  mod: Enforce\n  interval: 1\n"
    _, *lines = run("plan", "-f", "-", stdin=text).err.splitlines()
    assert [re.sub(r"^ *\S+:(\d+): GroupPolicy kafka/unused: (\S+): .*", r"\1 \2", line) for line in lines] == [
        "7 spec.when.unchangedFor",
        "8 spec.action",
        "9 spec.mod",
        "10 spec.interval",
    ]


_ZONE = "must be a name of the IANA time zone database, like Europe/Berlin"
CONNECTION = """\
apiVersion: grouphygiene.io/v1alpha1
kind: KafkaConnection
metadata: {name: main, namespace: kafka}
spec:
  bootstrapServers: ["a:1"]
"""
MISNAMED = (
    "  GroupPolicy kafka/unused: spec.connectionRef: KafkaConnection kafka/mian is in none of the files, "
    "which have kafka/main\n"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            GOOD.replace("72h", "0s, idleFor: 0s") + "  interval: 1s\n",
            [
                "7: spec.when.idleFor: must be at least 1s",
                "7: spec.when.unchangedFor: must be at least 1s",
                "9: spec.interval: must be from 5s to 24h",
            ],
            id="durations",
        ),
        pytest.param(
            GOOD
            + """\
  delete:
    windows:
      - {from: 20:00, to: 23:00, timeZone: +02:00}
      - {from: 20:00, to: 25:00}
      - {from: 20:00, to: 23:00, days: []}
      - {from: 20:00, to: 23:00, timeZone: Europe/Atlantis}
""",
            [
                f"11: spec.delete.windows[0].timeZone: {_ZONE}",
                "12: spec.delete.windows[1].to: must be a time of day from 00:00 to 23:59, like 22:00",
                "13: spec.delete.windows[2].days: must not be empty",
                f"14: spec.delete.windows[3].timeZone: {_ZONE}",
            ],
            id="windows",
        ),
        pytest.param(
            GOOD
            + """\
  delete:
    gracePeriod: 999d
""",
            [
                "10: spec.delete.gracePeriod: must be from 1s to 720h",
            ],
            id="grace-period",
        ),
        pytest.param(
            GOOD.replace("{unchangedFor: 72h}", "{committedOffsets: Absent}") + "  interval: 1s\n",
            [
                "7: spec.when: must hold idleFor or unchangedFor with action Delete: "
                "an Empty group may still be in use",
                "9: spec.interval: must be from 5s to 24h",
            ],
            id="a-field-and-a-rule-on-others",
        ),
        pytest.param(
            GOOD.replace("72h", "0s"), ["7: spec.when.unchangedFor: must be at least 1s"], id="no-rule-on-a-wrong-field"
        ),
        pytest.param(
            CONNECTION + "  tls: {certificateSecretRef: {name: a, key: b}}\n  scan: {timeout: 0s}\n",
            [
                "6: spec.tls: certificateSecretRef and privateKeySecretRef must be given together",
                "7: spec.scan.timeout: must be from 1s to 10m",
            ],
            id="connection",
        ),
        pytest.param(
            CONNECTION.replace("KafkaConnection", "GroupRestore").replace(
                'bootstrapServers: ["a:1"]', "connectionRef: {name: main}"
            ),
            ["4: spec: must have either groups or policyRef"],
            id="restore",
        ),
    ],
)
def test_mistakes_that_the_parser_finds_have_their_lines(run: Run, text: str, says: list[str]) -> None:
    """All of them at once, and none that only follows from another."""
    _, *lines = run("plan", "-f", "-", stdin=text).err.splitlines()
    assert [re.sub(r"^ *stdin:(\d+): \w+ kafka/\w+: ", r"\1: ", line) for line in lines] == says


def test_a_file_that_is_not_yaml_hides_no_mistake(run: Run, tmp_path: Path) -> None:
    """Neither those of other files, nor those of its documents before."""
    (tmp_path / "a.yaml").write_text(GOOD.replace("72h", "3w") + "---\na: [")
    answer = run("plan", "-f", tmp_path / "none.yaml", "-f", tmp_path / "a.yaml", "-f", "-", stdin=GOOD + "  mod: x\n")
    assert answer.code == 1
    for text in ("none.yaml can't be read", "a.yaml:10: is not valid YAML", "a.yaml:7: ", "stdin:9: "):
        assert text in answer.err


def test_a_connection_file_is_validated_alike(run: Run, tmp_path: Path) -> None:
    """Each mistake with its line, before any cluster is asked."""
    file = tmp_path / "connection.yaml"
    file.write_text(CONNECTION.replace('"a:1"', '"a:1", b') + "  scan: {timeout: 0s}\n")
    answer = run("doctor", "--connection-file", file)
    assert answer.code == 1
    assert f"{file}:5: KafkaConnection kafka/main: spec.bootstrapServers[1]: must be one host:port" in answer.err
    assert f"{file}:6: KafkaConnection kafka/main: spec.scan.timeout: must be from 1s to 10m" in answer.err


@pytest.mark.parametrize(
    ("text", "code", "out", "err"),
    [
        pytest.param(GOOD + "---\n" + CONNECTION, 0, "2 objects are valid\n", "", id="policy-and-connection"),
        pytest.param(CONNECTION, 0, "1 object is valid\n", "", id="connection-alone"),
        pytest.param(
            GOOD.replace("name: main", "name: mian") + "---\n" + CONNECTION,
            1,
            "",
            f"Error: the files are not valid:\n{MISNAMED}",
            id="connection-of-another-name",
        ),
        pytest.param(
            GOOD,
            0,
            "1 object is valid\n",
            "Note: KafkaConnection kafka/main is in none of the files: it is not validated\n",
            id="connection-elsewhere",
        ),
        pytest.param(
            GOOD.replace("name: main", "namespace: other, name: main") + "---\n" + CONNECTION,
            0,
            "2 objects are valid\n",
            "Note: KafkaConnection other/main is in none of the files: it is not validated\n",
            id="connection-of-another-namespace",
        ),
        pytest.param(
            KEEP + "---\n" + KEEP.replace("Keep", "Restore").replace("  reason: report\n", ""),
            0,
            "2 objects are valid\n",
            "Note: KafkaConnection kafka/main is in none of the files: it is not validated\n"
            "Note: GroupKeep kafka/k: spec.groups has exact ids, and no patterns like a-*, pay-{uuid}\n"
            "Note: GroupRestore kafka/k: spec.groups has exact ids, and no patterns like a-*, pay-{uuid}\n",
            id="keep-and-restore",
        ),
        pytest.param(
            KEEP.replace('"a-*", "pay-{uuid}", ', "") + "---\n" + CONNECTION,
            0,
            "2 objects are valid\n",
            "",
            id="keep-and-connection",
        ),
        pytest.param(
            CONNECTION + "---\napiVersion: apps/v1\nkind: Deployment\n",
            0,
            "1 object is valid\n",
            "Note: Deployment: ignored, not of grouphygiene.io/v1alpha1\n",
            id="of-another-product",
        ),
        pytest.param(
            CONNECTION + "  scan: {timeout: 0s}\n",
            1,
            "",
            "Error: the files are not valid:\n"
            "  stdin:6: KafkaConnection kafka/main: spec.scan.timeout: must be from 1s to 10m\n",
            id="mistake",
        ),
        pytest.param("", 1, "", "Error: there is no object of grouphygiene.io/v1alpha1 in the files\n", id="empty"),
    ],
)
def test_files_are_validated_without_a_broker(run: Run, text: str, code: int, out: str, err: str) -> None:
    """Of any of the kinds; no option names a cluster."""
    assert run("plan", "--validate-only", "-f", "-", stdin=text) == (code, out, err)


def test_plan_names_the_connections_of_the_files(run: Run) -> None:
    """Where a policy refers to one with a similar name."""
    answer = run("plan", "-f", "-", stdin=GOOD.replace("name: main", "name: mian") + "---\n" + CONNECTION)
    assert answer.code == 1
    assert answer.err == f"Error: {MISNAMED.lstrip()}"


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder that everybody may enter; and we are nobody, as root may read everything."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("what", ["folder", "file-in-a-folder", "in-a-locked-folder"])
def test_what_may_not_be_read_is_named(run: Run, unprivileged: Path, what: str) -> None:
    """One sentence, no traceback, exit code 1."""
    folder = unprivileged / "policies"
    folder.mkdir()
    (folder / "a.yaml").write_text(GOOD)
    (folder / "a.yaml").chmod(0o644 if what != "file-in-a-folder" else 0)
    folder.chmod(0o755 if what == "file-in-a-folder" else 0)
    name = folder / "a.yaml" if what == "in-a-locked-folder" else folder
    os.seteuid(65534)
    try:
        answer = run("plan", "-f", name)
    finally:
        os.seteuid(0)
    unreadable = folder / "a.yaml" if what == "file-in-a-folder" else name
    assert (answer.code, answer.out, answer.err) == (1, "", f"Error: {unreadable} can't be read: Permission denied\n")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("absent.yaml", "absent.yaml can't be read: No such file or directory", id="absent"),
        pytest.param(
            "links", "links/broken.yaml can't be read: No such file or directory", id="broken-link-in-a-folder"
        ),
        pytest.param("links/broken.yaml", "links/broken.yaml can't be read: No such file", id="broken-link"),
        pytest.param("links/round.yml", "round.yml can't be read: Too many levels of symbolic links", id="round"),
        pytest.param("n" * 300, "can't be read: File name too long", id="too-long"),
        pytest.param("folders", "folders/a.yaml can't be read: Is a directory", id="folder-called-like-a-file"),
        pytest.param("nothing", "there is no YAML file in", id="no-file-in-it"),
        pytest.param("binary.yaml", "binary.yaml is not UTF-8 text", id="binary"),
    ],
)
def test_files_that_are_none(run: Run, tmp_path: Path, name: str, says: str) -> None:
    """One sentence, no traceback, exit code 1."""
    for folder in ("links", "folders/a.yaml", "nothing"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "links" / "broken.yaml").symlink_to("nowhere")
    (tmp_path / "links" / "round.yml").symlink_to("round.yml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    answer = run("plan", "-f", tmp_path / name)
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("Error: ")
    assert says in answer.err


@pytest.mark.parametrize(
    ("name", "says"),
    [pytest.param("-", "stdin is not UTF-8 text", id="stdin"), pytest.param("", "-f is empty", id="no-name")],
)
def test_input_that_is_none(run: Run, name: str, says: str) -> None:
    """Also what is no text, and a variable of a script that was empty."""
    answer = run("plan", "-f", name, stdin=b"\xff\xfe")
    assert answer.code == 1
    assert says in answer.err


def test_all_mistakes_are_said_at_once(run: Run) -> None:
    """Nobody should have to run it five times."""
    answer = run(
        "plan", "-f", "-", stdin=GOOD.replace("72h", "3w") + "  mod: x\n---\n" + GOOD.replace("Delete", "Remove")
    )
    assert answer.err.count("stdin:") == 4


def test_lists_are_taken_apart_with_their_lines(run: Run) -> None:
    """`kubectl get -o yaml` makes a List."""
    items = "".join("  " + line + "\n" for line in GOOD.replace("72h", "3w").splitlines())
    answer = run("plan", "-f", "-", stdin="apiVersion: v1\nkind: List\nitems:\n-" + items[1:])
    assert ":10: GroupPolicy kafka/unused: spec.when.unchangedFor: " in answer.err


def test_a_secret_in_the_wrong_place_is_not_repeated(run: Run) -> None:
    """A password where the name of a Secret belongs must not end up in the log of a build."""
    sasl = "{mechanism: PLAIN, username: u, password: hunter2, token: hunter2}"
    spec = f"spec: {{bootstrapServers: ['a:1'], sasl: {sasl}}}\n"
    kind = "apiVersion: grouphygiene.io/v1alpha1\nkind: KafkaConnection\nmetadata: {name: main}\n"
    for text in (kind + spec, kind + spec + "hunter2: [", kind + spec + "  : hunter2"):
        answer = run("plan", "-f", "-", stdin=text)
        assert answer.code == 1
        assert "hunter2" not in (answer.out + answer.err).replace("key 'hunter2'", "")


@pytest.mark.parametrize(("obj", "field"), server.NULLS)
def test_nulls_are_refused_as_by_the_api_server(tmp_path: Path, obj: Any, field: str) -> None:
    """`tls:` with nothing after it may be a mistake: what is left out is a connection without TLS."""
    said = refused(tmp_path, server.a_policy({}, name="another"), obj)
    assert (said.count("\n"), f": {field}: must be " in said) == ((1, True) if field else (0, False)), said


def test_dates_and_times_are_texts(tmp_path: Path) -> None:
    """A group may be called like a date, and kubectl takes it for a text."""
    file = tmp_path / "policy.yaml"
    file.write_text(GOOD.replace('["a-*"]', "[2024-01-01]"))
    (policy,) = read_manifests([str(file)]).policies
    assert policy.match.groups.sources == ("2024-01-01",)


@pytest.mark.parametrize("value", ["20:00", "08:30", "1:2:3", "1:30.5"])
def test_numbers_of_base_60_are_texts(tmp_path: Path, value: str) -> None:
    """As kubectl reads them: YAML 1.1 has such numbers, and YAML 1.2 none."""
    file = tmp_path / "policy.yaml"
    file.write_text(GOOD.replace('["a-*"]', f"[{value}]"))
    (policy,) = read_manifests([str(file)]).policies
    assert policy.match.groups.sources == (value,)


def test_the_package_has_the_crds_that_are_applied() -> None:
    """crds/ is the one source: the package holds a link to it, and a build holds its files."""
    packaged = importlib.resources.files("group_hygiene") / "crds"
    names = sorted(path.name for path in (ROOT / "crds").glob("*.yaml"))
    assert sorted(entry.name for entry in packaged.iterdir()) == names
    assert filecmp.cmpfiles(ROOT / "crds", str(packaged), names, shallow=False) == (names, [], [])


@pytest.mark.parametrize(
    "when",
    [
        pytest.param({"from": "22:00", "to": "23:00", "timeZone": "Europe/Secret"}, id="time-zone"),
        pytest.param({"from": "Secret", "to": "23:00"}, id="time-of-day"),
    ],
)
def test_no_value_is_logged(tmp_path: Path, when: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The library logs what a function of ours raises; a user may have written a password in the wrong place."""
    text = refused(tmp_path, server.a_policy(server.DELETE | {"delete": {"windows": [when]}}))
    assert text.count("\n") == 1
    assert "Secret" not in text + caplog.text
    assert caplog.records == []
