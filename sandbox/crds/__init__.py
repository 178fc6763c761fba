"""CRDs of other products, from the packages that their projects publish. The products themselves are not run."""

from sandbox.crds.modules import ARGOCD, FLUX, PROMETHEUS, Module
from sandbox.crds.strimzi import strimzi

__all__ = ["ARGOCD", "FLUX", "PROMETHEUS", "Module", "strimzi"]
