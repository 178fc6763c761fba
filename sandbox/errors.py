"""What can go wrong in the sandbox.

SandboxError
├── MissingPrerequisite   a program that must be installed first; its text is one line that says how
├── BuildFailed           a download or build ended with an error
└── StartFailed           a server ended or did not answer in time; its text shows the end of the log
    └── PortTaken         ... because somebody else took its port; worth another try with other ports
"""


class SandboxError(Exception):
    """The root of all errors that the sandbox raises on purpose."""


class MissingPrerequisite(SandboxError):
    """A program is not installed. The text is one line: what is missing and how to install it."""


class BuildFailed(SandboxError):
    """A download or build ended with an error."""


class StartFailed(SandboxError):
    """A server ended or did not answer in time."""


class PortTaken(StartFailed):
    """A server could not listen because its port was taken between choosing and listening."""
