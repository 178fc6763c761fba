// Whether Argo CD shows objects as OutOfSync: its own diff of what Git has against what the API server has.
// stdin: {"pairs": [{"git": {...}, "live": {...}}]}; stdout: [true, ...], one for each pair.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/argoproj/argo-cd/gitops-engine/pkg/diff"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubernetes "k8s.io/apimachinery/pkg/util/json"
)

func main() {
	found, err := compare()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func compare() ([]bool, error) {
	var asked struct {
		Pairs []struct{ Git, Live json.RawMessage }
	}
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return nil, err
	}
	found := []bool{}
	for _, pair := range asked.Pairs {
		git, err := object(pair.Git)
		if err != nil {
			return nil, err
		}
		live, err := object(pair.Live)
		if err != nil {
			return nil, err
		}
		result, err := diff.Diff(git, live)
		if err != nil {
			return nil, err
		}
		found = append(found, result.Modified)
	}
	return found, nil
}

// object reads whole numbers as such, as a client of Kubernetes does.
func object(raw json.RawMessage) (*unstructured.Unstructured, error) {
	content := map[string]any{}
	err := kubernetes.Unmarshal(raw, &content)
	return &unstructured.Unstructured{Object: content}, err
}
