"""What is in a cluster: every object of every kind that can be listed, to compare before and after."""

from __future__ import annotations

from testing.sandbox.node.given import Cluster

# They come and go by themselves.
_PASSING = {"events", "events.events.k8s.io"}
_LINE = '{range .items[*]}{.kind}{"/"}{.metadata.namespace}{"/"}{.metadata.name}{" "}{.metadata.uid}{"\\n"}{end}'


def objects(cluster: Cluster) -> dict[str, str]:
    """By kind/namespace/name (the namespace is empty where there is none), the uid of each."""
    kinds = set(cluster.kubectl("api-resources", "--verbs=list", "-o=name").stdout.split()) - _PASSING
    listed = cluster.kubectl("get", ",".join(sorted(kinds)), "-A", f"-o=jsonpath={_LINE}", "--ignore-not-found")
    pairs = (line.partition(" ") for line in listed.stdout.splitlines())
    return {name: uid for name, _, uid in pairs}
