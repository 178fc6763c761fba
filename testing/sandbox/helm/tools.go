//go:build tools

// Package tools pins helm, which the sandbox builds.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
