// What Flux makes of objects without healthCheckExprs: kstatus, of the version that the kustomize-controller has whose CRD
// is beside it.
// stdin: {"objects": [{...}]}; stdout: ["Current", ...], one for each object.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubernetes "k8s.io/apimachinery/pkg/util/json"
)

func main() {
	statuses, err := assess()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(statuses)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func assess() ([]string, error) {
	var asked struct {
		Objects []json.RawMessage `json:"objects"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return nil, err
	}
	statuses := []string{}
	for _, raw := range asked.Objects {
		content := map[string]any{}
		// Whole numbers as such, as a client of Kubernetes reads them.
		if err := kubernetes.Unmarshal(raw, &content); err != nil {
			return nil, err
		}
		result, err := status.Compute(&unstructured.Unstructured{Object: content})
		if err != nil {
			return nil, err
		}
		statuses = append(statuses, string(result.Status))
	}
	return statuses, nil
}
