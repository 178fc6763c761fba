"""The project's own manifests on an API server of the sandbox, as a user applies them."""

from pathlib import Path

from sandbox.kubernetes import ApiServer

_ROOT = Path(__file__).parents[1]
CRDS = _ROOT / "crds"
OVERLAYS = _ROOT / "deploy" / "kustomize" / "overlays"


def install(server: ApiServer, overlay: str = "cluster-wide") -> None:
    """The kinds, and the operator's account, roles and Deployment (of which no pod is made here)."""
    server.kubectl("apply", "-f", str(CRDS))
    server.wait_established("-f", str(CRDS))
    server.kubectl("apply", "-k", str(OVERLAYS / overlay))
