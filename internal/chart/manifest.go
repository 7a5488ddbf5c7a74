// Package chart keeps the charts true to what they are made from: upstream's manifest, which charts/multus changes
// without editing it, and the values, which their READMEs describe.
package chart

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// ReliedOn is one thing in upstream's manifest that the chart's customisation relies on. charts/multus/files/relied-on.yaml
// is the list and says what each field means; the chart's templates walk it by the same rules.
type ReliedOn struct {
	What   string   `yaml:"what"`
	Object string   `yaml:"object"`
	Path   []any    `yaml:"path"`
	For    string   `yaml:"for"`
	Only   []string `yaml:"only"`
	Absent bool     `yaml:"absent"`
}

// ParseReliedOn reads the list.
func ParseReliedOn(data []byte) ([]ReliedOn, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var list []ReliedOn
	if err := dec.Decode(&list); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("names nothing")
	}
	return list, nil
}

// Manifest is a file of Kubernetes objects.
type Manifest struct {
	Objects []map[string]any
	byName  map[string]map[string]any // by KIND/NAME
}

// separator divides the documents of a manifest, as the templates do it.
var separator = regexp.MustCompile(`(?m)^---(?:[ \t].*)?$`)

// ParseManifest reads a manifest. A document that is no named object is an error, as it is in the templates.
func ParseManifest(data []byte) (*Manifest, error) {
	m := &Manifest{byName: make(map[string]map[string]any)}
	for i, text := range separator.Split(string(data), -1) {
		var object map[string]any
		if err := yaml.NewDecoder(strings.NewReader(text)).Decode(&object); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read document %d: %w", i, err)
		}
		if len(object) == 0 {
			continue
		}
		kind, _ := object["kind"].(string)
		metadata, _ := object["metadata"].(map[string]any)
		name, _ := metadata["name"].(string)
		if kind == "" || name == "" {
			return nil, fmt.Errorf("read document %d: no object with a kind and a name", i)
		}
		m.Objects = append(m.Objects, object)
		m.byName[kind+"/"+name] = object
	}
	if len(m.Objects) == 0 {
		return nil, errors.New("no objects")
	}
	return m, nil
}

// Check returns a finding for each thing on the list that is not as the chart needs it.
func (m *Manifest) Check(list []ReliedOn) []error {
	var found []error
	for _, want := range list {
		value, ok := any(nil), false
		if object, there := m.byName[want.Object]; there {
			value, ok = find(object, want.Path)
		}
		switch {
		case want.Absent && ok:
			found = append(found, fmt.Errorf("%s is new; the chart cannot have it (%s)", want.What, want.For))
		case want.Absent:
		case !ok:
			found = append(found, fmt.Errorf("%s is missing; the chart relies on it (%s)", want.What, want.For))
		case want.Only != nil:
			items, _ := value.([]any)
			for _, item := range items {
				entry, _ := item.(map[string]any)
				if name := fmt.Sprint(entry["name"]); !slices.Contains(want.Only, name) {
					found = append(found, fmt.Errorf("%s %s is new; the chart does not know it (%s)", want.What, name, want.For))
				}
			}
		}
	}
	return found
}

// find follows the steps of a ReliedOn's path.
func find(at any, path []any) (any, bool) {
	for _, step := range path {
		ok := false
		switch step := step.(type) {
		case map[string]any:
			list, _ := at.([]any)
			i := slices.IndexFunc(list, func(item any) bool { return matches(item, step) })
			if ok = i >= 0; ok {
				at = list[i]
			}
		default:
			key := fmt.Sprint(step)
			if key == "@json" {
				text, _ := at.(string)
				var object map[string]any
				ok = json.Unmarshal([]byte(text), &object) == nil
				at = object
			} else if object, is := at.(map[string]any); is {
				at, ok = object[key]
			}
		}
		if !ok {
			return nil, false
		}
	}
	return at, true
}

// matches says whether an item of a list has the given fields, or is the given scalar.
func matches(item any, want map[string]any) bool {
	for key, value := range want {
		if key == "@item" {
			if fmt.Sprint(item) != fmt.Sprint(value) {
				return false
			}
			continue
		}
		object, ok := item.(map[string]any)
		if !ok || fmt.Sprint(object[key]) != fmt.Sprint(value) {
			return false
		}
	}
	return true
}
