"""A real Kubernetes API server: kube-apiserver and etcd, built from the go.mod in this folder."""

from testing.sandbox.kubernetes.apiserver import ApiServer

__all__ = ["ApiServer"]
