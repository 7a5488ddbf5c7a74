package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Readme is the README of the chart in dir: its description, what README.in says of it, and a table of its values with the
// comments that values.yaml gives them. A value without a comment is an error: it would be one that nobody can use.
func Readme(dir string) ([]byte, error) {
	meta, err := os.ReadFile(filepath.Join(dir, "Chart.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	var chart struct{ Name, Description string }
	if err := yaml.Unmarshal(meta, &chart); err != nil {
		return nil, fmt.Errorf("read Chart.yaml: %w", err)
	}
	intro, err := os.ReadFile(filepath.Join(dir, "README.in"))
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	values, err := describe(data)
	if err != nil {
		return nil, fmt.Errorf("read values.yaml: %w", err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- Made by chandlerctl chart docs from Chart.yaml, README.in and values.yaml; change those. -->\n\n")
	fmt.Fprintf(&b, "# Chart %s\n\n%s.\n\n%s\n## Values\n\n| value | default | what it is |\n|---|---|---|\n", chart.Name, chart.Description, intro)
	for _, v := range values {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.Name, v.Default, strings.ReplaceAll(v.Text, "|", `\|`))
	}
	return b.Bytes(), nil
}

// Value is one of a chart's values.
type Value struct {
	Name    string // such as image.tag
	Default string // as JSON
	Text    string // the comment above it
}

// describe lists the values of a values.yaml in their order. A map with keys is not a value itself, but its comment, if it
// has one, comes before that of its first.
func describe(data []byte) ([]Value, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("not a map")
	}
	return describeMap(doc.Content[0], "", "")
}

func describeMap(node *yaml.Node, prefix, lead string) ([]Value, error) {
	var all []Value
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := prefix + key.Value
		text := join(lead, comment(key.HeadComment))
		lead = ""
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 {
			under, err := describeMap(value, name+".", text)
			if err != nil {
				return nil, err
			}
			all = append(all, under...)
			continue
		}
		if comment(key.HeadComment) == "" {
			return nil, fmt.Errorf("line %d: %s has no comment", key.Line, name)
		}
		var plain any
		if err := value.Decode(&plain); err != nil {
			return nil, fmt.Errorf("line %d: %w", value.Line, err)
		}
		shown, err := json.Marshal(plain)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", value.Line, err)
		}
		all = append(all, Value{name, string(shown), text})
	}
	return all, nil
}

// comment is a comment's text in one line.
func comment(c string) string {
	var words []string
	for line := range strings.Lines(c) {
		words = append(words, strings.Fields(strings.TrimLeft(line, "# "))...)
	}
	return strings.Join(words, " ")
}

func join(a, b string) string { return strings.TrimSpace(a + " " + b) }
