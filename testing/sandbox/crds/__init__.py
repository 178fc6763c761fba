"""CRDs of other products, from the packages that their projects publish. The products themselves are not run."""

from testing.sandbox.crds.modules import ARGOCD, FLUX, PROMETHEUS, Module
from testing.sandbox.crds.strimzi import strimzi

__all__ = ["ARGOCD", "FLUX", "PROMETHEUS", "Module", "strimzi"]
