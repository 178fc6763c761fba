"""Programs that must be installed on this machine, and how to install them."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from testing.sandbox.errors import MissingPrerequisite


@dataclass(frozen=True)
class Program:
    """A program, its purpose in the sandbox, and its package names."""

    name: str
    purpose: str
    debian: str
    homebrew: str
    home_variable: str | None = None


_JRE = ("default-jre-headless", "openjdk@17 and set JAVA_HOME", "JAVA_HOME")
JAVA = Program("java", "Kafka runs on it; 17 or later", *_JRE)
KEYTOOL = Program("keytool", "makes Java trust stores; part of Java", *_JRE)
MAVEN = Program("mvn", "downloads Kafka", "maven", "maven")
GO = Program(
    "go",
    "1.21 or later builds kube-apiserver, etcd and promtool; KUBEBUILDER_ASSETS can name a folder with the first two",
    "golang-go",
    "go",
)
KUBECTL = Program("kubectl", "talks to the API server", "kubernetes-client", "kubernetes-cli")
OPENSSL = Program("openssl", "makes keys and certificates", "openssl", "openssl@3")


def find(program: Program) -> Path:
    """The program's path; raises MissingPrerequisite with one line that says how to install it."""
    home = os.environ.get(program.home_variable) if program.home_variable else None
    found = shutil.which(program.name, path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which(program.name)
    if found is None:
        raise MissingPrerequisite(
            f"{program.name} is missing ({program.purpose}); "
            f"install it with: apt install {program.debian} (Debian), brew install {program.homebrew} (macOS)"
        )
    return Path(found)
