"""The command `crds`: print the CRDs of this version, from the package."""

from __future__ import annotations

import click

_CRDS = ("KafkaConnection", "GroupPolicy", "GroupRestore", "GroupKeep")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(_CRDS, case_sensitive=False), metavar="[KIND]...")
def crds(names: tuple[str, ...]) -> int:
    """Print the CRDs of this version as YAML. All of them, or those of the named resources: KafkaConnection,
    GroupPolicy, GroupRestore, GroupKeep.

    Without Helm, apply them before you start or upgrade the operator to this version. The Helm chart installs and
    upgrades them itself, unless crds.enabled is false.

    \b
    Examples:
      group-hygiene crds | kubectl apply --server-side --force-conflicts -f -
      group-hygiene crds | kubectl diff --server-side --force-conflicts -f -
      group-hygiene crds GroupPolicy > grouppolicies.yaml

    Exit codes: 0 done, 1 an error.
    """
    from group_hygiene.spec.crds import crd_text

    texts = [crd_text(kind).removeprefix("---\n") for kind in _CRDS if not names or kind in names]
    click.echo("---\n".join(texts), nl=False)
    return 0
