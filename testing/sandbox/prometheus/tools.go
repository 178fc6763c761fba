//go:build tools

// Package tools pins promtool, which the sandbox builds.
package tools

import _ "github.com/prometheus/prometheus/cmd/promtool"
