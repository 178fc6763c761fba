// Reads a dashboard from stdin by Grafana's own types, where every field must be known and of its type, also those of
// the panels' options and of queries; writes to stdout what was understood.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	if err := check(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func check() error {
	plugins.RegisterDefaultPlugins()
	raw, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var read dashboard.Dashboard
	if err := read.UnmarshalJSONStrict(raw); err != nil {
		return err
	}
	if err := read.Validate(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(read)
}
