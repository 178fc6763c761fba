//go:build tools

// Package tools pins the S3 store that the sandbox builds.
package tools

import (
	_ "github.com/versity/versitygw/cmd/versitygw"
)
