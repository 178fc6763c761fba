"""deploy/images/build.sh with an engine and a debootstrap that only record their calls."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from group_hygiene import __version__
from tests.dockerfile import IMAGES, ROOT, instructions

_ENGINE = """#!/usr/bin/env bash
echo "$*" >> "$CALLS"
case "$1 $2" in
  "image inspect") [[ "$*" == *Size* ]] && echo 1000000 || grep -qxF "$3" "$STORE" ;;
  "pull -q") grep -qxF "$3" "$REGISTRY" || { echo "no such host: registry of $3" >&2; exit 125; } ;;
  "import -") cat > "$CALLS.tar"; echo "$3" >> "$STORE" ;;
esac
"""
_DEBOOTSTRAP = """#!/usr/bin/env bash
echo "debootstrap $*" >> "$CALLS"
root=${@: -1}
mkdir -p "$root"/etc/{apt,dpkg/dpkg.cfg.d} "$root"/var/{cache/apt,lib/apt/lists,log} "$root"/usr/share/doc/bash
touch "$root"/usr/share/doc/bash/{copyright,README}
echo "deb http://deb.debian.org/debian bookworm main" > "$root/etc/apt/sources.list"
echo "the host of the build" | tee "$root/etc/hostname" > "$root/etc/resolv.conf"
"""
_SLIM = "debian:bookworm-slim"
_MADE = "localhost/debian-packages:bookworm-slim"
_CHROOT = """#!/usr/bin/env bash
echo "chroot $*" >> "$CALLS"
"""


class Build:
    """A run of build.sh for the operator's image."""

    def __init__(self, folder: Path, stored: list[str], pulled: list[str], **variables: str) -> None:
        self._calls, programs = folder / "calls", folder / "programs"
        self._calls.touch()
        (folder / "store").write_text("\n".join([*stored, ""]))
        (folder / "registry").write_text("\n".join([*pulled, ""]))
        programs.mkdir()
        for name, text in (("podman", _ENGINE), ("debootstrap", _DEBOOTSTRAP), ("chroot", _CHROOT)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        files = {"CALLS": "calls", "STORE": "store", "REGISTRY": "registry", "TMPDIR": ""}
        environment = {name: str(folder / file) for name, file in files.items()}
        environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "ENGINE": "podman", "TAG": "1", **variables}
        done = subprocess.run(
            [IMAGES / "build.sh", "operator"], env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        self.exit_code, self.output, self.error = done.returncode, done.stdout, done.stderr
        self.calls = self._calls.read_text().splitlines()
        self.options = next((call for call in self.calls if call.startswith("build ")), "")

    def files_of_base(self) -> dict[str, str]:
        """The texts of the files of the base that it made."""
        texts = {}
        with tarfile.open(f"{self._calls}.tar") as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is not None:
                    texts[member.name] = content.read().decode()
        return texts


@pytest.mark.parametrize(
    ("stored", "pulled", "variables", "base"),
    [
        pytest.param([_SLIM], [_SLIM], {}, _SLIM, id="a-stored-base-is-pulled-again"),
        pytest.param([_SLIM], [], {}, _SLIM, id="a-stored-base-without-a-registry"),
        pytest.param([], [], {}, _MADE, id="no-base-at-all"),
        pytest.param([_MADE], [], {}, _MADE, id="the-made-base-is-used-again"),
        pytest.param([], ["mirror/debian:12"], {"BASE": "mirror/debian:12"}, "mirror/debian:12", id="a-mirror"),
        pytest.param(["mine:1", _MADE], [], {"BASE": "mine:1"}, "mine:1", id="a-base-of-the-local-store"),
    ],
)
def test_which_base_it_uses(
    tmp_path: Path, stored: list[str], pulled: list[str], variables: dict[str, str], base: str
) -> None:
    """It asks the registry each time, says which base it uses, and makes one only if none was asked for by name."""
    build = Build(tmp_path, stored, pulled, **variables)
    assert (build.exit_code, build.error) == (0, "")
    assert build.calls[0] == f"pull -q {variables.get('BASE', _SLIM)}"
    assert f"--build-arg BASE={base} " in build.options
    assert re.findall(r"^base: (\S+?),?(?: |$)", build.output, re.MULTILINE) == [base]
    assert any(call.startswith("debootstrap") for call in build.calls) == (base == _MADE and not stored)


@pytest.mark.parametrize("stored", [[], [_SLIM], [_MADE]])
def test_a_base_that_was_asked_for_is_never_replaced(tmp_path: Path, stored: list[str]) -> None:
    """If the mirror does not give it, the build ends with the engine's error."""
    build = Build(tmp_path, stored, [], BASE="mirror/debian:12")
    assert build.exit_code == 1
    assert "no such host: registry of mirror/debian:12" in build.error
    assert build.options == ""


def test_the_made_base_has_security_updates_and_nothing_of_this_machine(tmp_path: Path) -> None:
    """Its sources name all suites of Debian's official image; debootstrap checks signatures."""
    build = Build(tmp_path, [], [])
    files = build.files_of_base()
    suites = [line.split()[1:] for line in files["./etc/apt/sources.list"].splitlines()]
    assert suites == [
        ["http://deb.debian.org/debian", "bookworm", "main"],
        ["http://deb.debian.org/debian", "bookworm-updates", "main"],
        ["http://deb.debian.org/debian-security", "bookworm-security", "main"],
    ]
    assert any(call.startswith("chroot ") and "apt-get upgrade" in call for call in build.calls)
    excluded = "./etc/dpkg/dpkg.cfg.d/slim"
    assert files.keys() == {"./etc/apt/sources.list", excluded, "./usr/share/doc/bash/copyright"}
    assert {"path-exclude /usr/share/locale/*", "path-include /usr/share/doc/*/copyright"} <= set(
        files[excluded].splitlines()
    )
    assert any("--force-check-gpg" in call for call in build.calls)


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.Dockerfile")), ids=lambda file: file.name)
def test_each_day_takes_updates(tmp_path: Path, file: Path) -> None:
    """The date is an argument of each stage that installs packages, so no older layer of the cache is used; and
    packages of the base are upgraded too."""
    assert f"--build-arg UPDATES={datetime.now(UTC):%Y-%m-%d} " in Build(tmp_path, [], [_SLIM]).options
    stage: list[str] = []
    for name, rest in instructions(file):
        stage = [] if name == "FROM" else [*stage, f"{name} {rest}"]
        if " packages " in rest:
            assert "ARG UPDATES=" in stage
    assert re.search(r"apt-get update .*\n +apt-get upgrade .*\n +apt-get install ", (IMAGES / "steps.sh").read_text())


def test_the_label_tells_the_sources_apart(tmp_path: Path) -> None:
    """It is what --source prints, changes with each file of the sources, and with nothing that Python writes."""
    build = Build(tmp_path, [], [_SLIM])
    (label,) = re.findall(r"--label group-hygiene\.source=(\d+) ", build.options)
    assert _source(ROOT) == label
    copy = tmp_path / "copy"
    let_in = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in let_in:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-R", str(ROOT / name), str(copy / name)], check=True)
    assert _source(copy) == label
    written = copy / "operator" / "group_hygiene" / "__pycache__" / "x.pyc"
    written.parent.mkdir(exist_ok=True)
    written.write_text("x")
    assert _source(copy) == label
    for name in let_in:
        file = next(file for file in [copy / name, *(copy / name).rglob("*")] if file.is_file() and file != written)
        content = file.read_bytes()
        file.write_bytes(content + b"#")
        assert _source(copy) != label
        file.write_bytes(content)


def _source(root: Path) -> str:
    script = root / "deploy" / "images" / "build.sh"
    return subprocess.run([script, "--source"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.Dockerfile")), ids=lambda file: file.name)
def test_labels_say_where_an_image_comes_from(tmp_path: Path, file: Path) -> None:
    """Version, commit, repository and site, by build arguments; they are last, so that a commit costs no layer."""
    found = instructions(file)
    last = max(index for index, (name, _) in enumerate(found) if name in ("RUN", "COPY"))
    (labels,) = [rest for name, rest in found[last:] if name == "LABEL"]
    given = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="\$\{(\w+)\}"', labels))
    assert given == {"version": "VERSION", "revision": "REVISION", "source": "SOURCE_URL", "url": "HOME_URL"}
    assert {f"{name}=" for name in given.values()} == {rest for name, rest in found[last:] if name == "ARG"}
    urls = {"SOURCE_URL": "https://git.example.com/a/b", "HOME_URL": "https://docs.example.com"}
    options = Build(tmp_path, [], [_SLIM], TAG="mine", **urls).options
    arguments = dict(re.findall(r"--build-arg (\w+)=(\S*)", options))
    assert arguments.items() >= {**urls, "VERSION": __version__}.items()
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", arguments["REVISION"])


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.Dockerfile")), ids=lambda file: file.name)
def test_a_release_gives_the_same_arguments(file: Path) -> None:
    """Each argument without a default has a value in release.yml, but for the date of updates, as it uses no cache."""
    (step,) = [
        step
        for step in yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["images"][
            "steps"
        ]
        if "build-args" in step.get("with", {})
    ]
    given = {line.partition("=")[0] for line in step["with"]["build-args"].splitlines()}
    needed = {rest.removesuffix("=") for name, rest in instructions(file) if name == "ARG" and rest.endswith("=")}
    assert given == needed - {"UPDATES"}
    assert step["with"]["no-cache"] is True


def test_files_are_relative_to_the_caller(tmp_path: Path) -> None:
    """Not to the checkout, to which the script changes."""
    build = Build(tmp_path, [], [_SLIM], CA="./ca.pem", PIP_CONFIG="/etc/pip.conf")
    assert f"--secret id=ca,src={tmp_path}/./ca.pem " in build.options
    assert "--secret id=pip,src=/etc/pip.conf " in build.options


def test_a_missing_engine_is_named(tmp_path: Path) -> None:
    """And not only an exit code."""
    for name in ("bash", "cksum", "cut", "dirname", "env", "find", "sed", "sort", "xargs"):
        (tmp_path / name).symlink_to(Path("/usr/bin") / name)
    done = subprocess.run(
        [IMAGES / "build.sh"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("neither podman nor docker is there")


def test_it_runs_with_an_old_bash() -> None:
    """macOS has bash 3.2, which knows no associative arrays."""
    assert "declare -A" not in (IMAGES / "build.sh").read_text()
