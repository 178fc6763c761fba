"""The command `version`."""

from __future__ import annotations

import platform

import click

from group_hygiene import __version__
from group_hygiene.cli.options import short_output_option


@click.command()
@short_output_option
def version(output: str) -> int:
    """Show the version of this program. With the API version of its CRDs, and that of Python.

    It connects to nothing; `doctor` compares the CRDs of a Kubernetes cluster with those of this version. `--version`
    prints its version alone.

    \b
    Examples:
      group-hygiene version
      group-hygiene version -o json

    Exit codes: 0 done, 1 an error.
    """
    from group_hygiene.cli import output as out
    from group_hygiene.spec.crds import API_VERSION

    found = {"version": __version__, "apiVersion": API_VERSION, "pythonVersion": platform.python_version()}
    columns = (out.Column("COMPONENT"), out.Column("VERSION"))
    rows = list(zip(("group-hygiene", "CRDs", "Python"), found.values(), strict=True))
    return out.show(out.Report(found, (), [out.Table(columns, rows)]), output)
