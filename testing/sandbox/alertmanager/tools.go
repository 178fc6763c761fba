//go:build tools

// Package tools pins the Alertmanager that the sandbox builds.
package tools

import (
	_ "github.com/prometheus/alertmanager/cmd/alertmanager"
)
