//go:build tools

// Package tools pins actionlint, which the sandbox builds.
package tools

import _ "github.com/rhysd/actionlint/cmd/actionlint"
