// Parses each query of a JSON list from stdin by Prometheus' own parser; writes for each the metrics and labels that it
// names, or its error.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

type selector struct {
	Metric string   `json:"metric"`
	Labels []string `json:"labels"`
}

type parsed struct {
	Error     string     `json:"error"`
	Selectors []selector `json:"selectors"`
	Grouping  []string   `json:"grouping"`
}

func main() {
	var queries []string
	if err := json.NewDecoder(os.Stdin).Decode(&queries); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	answers := []parsed{}
	for _, query := range queries {
		answers = append(answers, parse(query))
	}
	if err := json.NewEncoder(os.Stdout).Encode(answers); err != nil {
		os.Exit(1)
	}
}

func parse(query string) parsed {
	answer := parsed{Selectors: []selector{}, Grouping: []string{}}
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		answer.Error = err.Error()
		return answer
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		switch found := node.(type) {
		case *parser.VectorSelector:
			named := selector{Metric: found.Name, Labels: []string{}}
			for _, matcher := range found.LabelMatchers {
				if matcher.Name != "__name__" {
					named.Labels = append(named.Labels, matcher.Name)
				}
			}
			answer.Selectors = append(answer.Selectors, named)
		case *parser.AggregateExpr:
			answer.Grouping = append(answer.Grouping, found.Grouping...)
		case *parser.BinaryExpr:
			if found.VectorMatching != nil {
				answer.Grouping = append(answer.Grouping, found.VectorMatching.MatchingLabels...)
				answer.Grouping = append(answer.Grouping, found.VectorMatching.Include...)
			}
		}
		return nil
	})
	return answer
}
