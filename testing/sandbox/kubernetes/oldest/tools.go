//go:build tools

// Package tools pins the oldest control plane that the CRDs are applied to.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
)
