"""The errors of the sandbox.

SandboxError
├── MissingPrerequisite   a program must be installed first; the text is one line that says how
├── BuildFailed           a download or build failed
├── NotBasic              a test of `make test` uses what only `make test-extra` prepares
├── NotReached            an awaited condition did not become true in time
└── StartFailed           a server ended or did not answer in time; the text has the end of the log
    └── PortTaken         ... because another program took its port; a retry with other ports may help
"""


class SandboxError(Exception):
    """The root of all errors that the sandbox raises on purpose."""


class MissingPrerequisite(SandboxError):
    """A program is not installed. The text is one line: what is missing and how to install it."""


class BuildFailed(SandboxError):
    """A download or build ended with an error."""


class NotBasic(SandboxError):
    """A test of `make test` uses a program or jars that only `make test-extra` prepares."""


class NotReached(SandboxError):
    """An awaited condition did not become true in time."""


class StartFailed(SandboxError):
    """A server ended or did not answer in time."""


class PortTaken(StartFailed):
    """A server could not listen because its port was taken between choosing and listening."""
