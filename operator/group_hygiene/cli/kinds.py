"""The command `crds`: the kinds that this version knows, as they came with the package."""

from __future__ import annotations

import click

_KINDS = ("KafkaConnection", "GroupPolicy", "GroupRestore")


@click.command()
@click.argument("kinds", nargs=-1, type=click.Choice(_KINDS, case_sensitive=False), metavar="[KIND]...")
def crds(kinds: tuple[str, ...]) -> int:
    """Print the CustomResourceDefinitions of this version as YAML: all, or those of KafkaConnection, GroupPolicy or
    GroupRestore.

    Apply them before the operator of this version is started, at each upgrade too: Helm does not upgrade them.

    \b
    Examples:
      group-hygiene crds | kubectl apply --server-side --force-conflicts -f -
      group-hygiene crds | kubectl diff --server-side --force-conflicts -f -
      group-hygiene crds GroupPolicy > grouppolicies.yaml

    Exit codes: 0 done, 1 an error.
    """
    from group_hygiene.cli.schemas import crd_text

    texts = [crd_text(kind).removeprefix("---\n") for kind in _KINDS if not kinds or kind in kinds]
    click.echo("---\n".join(texts), nl=False)
    return 0
