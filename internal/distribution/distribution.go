// Package distribution is what is known of node distributions: where their directories are, what they ship, and what
// to beware of. The chart reads the same file as this package does.
package distribution

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/chandler-cni/chandler/charts"
)

// Distribution is one kind of node. charts/multus/files/distributions.yaml says what each field means.
type Distribution struct {
	Name         string   `yaml:"name"`
	Title        string   `yaml:"title"`
	BinDir       string   `yaml:"binDir"`
	ConfDir      string   `yaml:"confDir"`
	Capabilities []string `yaml:"capabilities"`
	SELinuxType  string   `yaml:"seLinuxType"`
	Staging      bool     `yaml:"staging"`
	Policy       string   `yaml:"policy"`
	LinkTargets  string   `yaml:"linkTargets"`
	Ships        []string `yaml:"ships"`
	Form         string   `yaml:"form"`
	Caveat       string   `yaml:"caveat"`
	Sources      []string `yaml:"sources"`
}

//go:embed unsupported.yaml
var unsupported []byte

// Supported returns the distributions that the chart knows by name, in order of their names.
func Supported() ([]Distribution, error) {
	var byName map[string]Distribution
	if err := decode(charts.Distributions, &byName); err != nil {
		return nil, fmt.Errorf("read distributions: %w", err)
	}
	var all []Distribution
	for name, d := range byName {
		if d.Name != "" {
			return nil, fmt.Errorf("read distributions: %s: has a name besides its key", name)
		}
		d.Name = name
		if err := d.check(); err != nil {
			return nil, fmt.Errorf("read distributions: %s: %w", name, err)
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Distribution) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Unsupported returns those that are known and that nobody has tried here. Not every field of them is known.
func Unsupported() ([]Distribution, error) {
	var all []Distribution
	if err := decode(unsupported, &all); err != nil {
		return nil, fmt.Errorf("read unsupported distributions: %w", err)
	}
	for _, d := range all {
		if d.Name == "" || d.Title == "" || d.Caveat == "" {
			return nil, fmt.Errorf("read unsupported distributions: %q lacks a name, a title or a caveat", d.Name)
		}
	}
	return all, nil
}

// decode refuses what it does not know: a key misspelled here would be a default on somebody's nodes.
func decode(data []byte, into any) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	return dec.Decode(into)
}

var (
	validName       = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	validCapability = regexp.MustCompile(`^[A-Z][A-Z_]*$`)
)

// policies are those that make sense for all names of a directory; "never" would be staging turned off.
var policies = []string{"replace", "newer", "missing"}

func (d Distribution) check() error {
	switch {
	case !validName.MatchString(d.Name):
		return errors.New("name: want lower case letters, digits and single -")
	case d.Title == "" || d.Form == "" || d.Caveat == "" || len(d.Sources) == 0:
		return errors.New("lacks a title, a form, a caveat or a source")
	case !clean(d.BinDir):
		return fmt.Errorf("binDir: %q is not a clean absolute path", d.BinDir)
	case !clean(d.ConfDir):
		return fmt.Errorf("confDir: %q is not a clean absolute path", d.ConfDir)
	case d.LinkTargets != "" && (path.IsAbs(d.LinkTargets) || !clean(path.Join(d.BinDir, d.LinkTargets))):
		return fmt.Errorf("linkTargets: %q leads from binDir to no folder", d.LinkTargets)
	case !slices.Contains(policies, d.Policy):
		return fmt.Errorf("policy: %q is none of %s", d.Policy, strings.Join(policies, ", "))
	}
	for _, c := range d.Capabilities {
		if !validCapability.MatchString(c) || strings.HasPrefix(c, "CAP_") {
			return fmt.Errorf("capabilities: %q is not as Kubernetes spells one", c)
		}
	}
	return nil
}

func clean(p string) bool { return path.IsAbs(p) && p != "/" && path.Clean(p) == p }
