// Package pins reads upstream/pins.yaml: the versions of other projects' software that this one has chosen, each with
// the digest that proves it.
package pins

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Folder is the folder of a checkout that holds the pins; FileName is their file in it, and PluginsDir the folder of the Go
// module that pins the same plugins for the build from source.
const (
	Folder     = "upstream"
	FileName   = "pins.yaml"
	PluginsDir = "plugins"
)

// maxFile bounds the pins file, in bytes.
const maxFile = 1 << 20

// Pins is the whole file.
type Pins struct {
	Plugins Plugins `json:"plugins"`
}

// Plugins is the choice of the CNI reference plugins.
type Plugins struct {
	Module       string     `json:"module"`  // path of the Go module
	Version      string     `json:"version"` // of the module and the release, such as v1.9.1
	Staged       []Staged   `json:"staged"`
	LeftOut      []LeftOut  `json:"leftOut"`
	Release      Release    `json:"release"`
	ComparedWith []Compared `json:"comparedWith"`
}

// Staged is a plugin that is brought to nodes.
type Staged struct {
	Name string      `json:"name"`
	Role bundle.Role `json:"role"` // never bundle.Extra
}

// LeftOut is a plugin of the reference set that is not brought to nodes.
type LeftOut struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Release is what upstream published of this version.
type Release struct {
	SHA256 map[string]string `json:"sha256"` // of the Linux tarball, by GOARCH; lowercase hexadecimal
}

// Compared is a release of another product that brings files of the same names to the same directory.
type Compared struct {
	Product string   `json:"product"`
	Release string   `json:"release"`
	Carries string   `json:"carries"` // the version of the reference plugins in it
	Writes  []string `json:"writes"`  // the names it writes
}

// Package is the Go package that s is built from.
func (p *Plugins) Package(s Staged) string {
	return path.Join(p.Module, "plugins", string(s.Role), s.Name)
}

// Load reads and checks the pins file at path. Every finding of the check is one line that names the file and the field.
func Load(path string) (*Pins, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read pins: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read pins: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read pins: %s: more than %d bytes", path, maxFile)
	}
	p, findings := parse(data)
	for i, err := range findings {
		findings[i] = fmt.Errorf("%s: %w", path, err)
	}
	return p, errors.Join(findings...)
}

// parse returns the pins, or what is wrong with them.
func parse(data []byte) (*Pins, []error) {
	if err := oneDocument(data); err != nil {
		return nil, []error{err}
	}
	p := new(Pins)
	if err := yaml.UnmarshalStrict(data, p); err != nil {
		return nil, []error{err}
	}
	var c checker
	c.plugins(&p.Plugins)
	if c.found != nil {
		return nil, c.found
	}
	return p, nil
}

// oneDocument refuses what the parser would pass over in silence: everything after the first document.
func oneDocument(data []byte) error {
	content := false
	for line := range bytes.Lines(data) {
		switch {
		case bytes.HasPrefix(line, []byte("---")) && content, bytes.HasPrefix(line, []byte("...")):
			return errors.New("more than one YAML document")
		case len(bytes.TrimSpace(line)) > 0 && line[0] != '#':
			content = true
		}
	}
	return nil
}

var (
	// The module's own versions: what follows the patch level is a pre-release.
	validVersion = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?$`)
	validModule  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*\.[a-z]+(/[A-Za-z0-9][A-Za-z0-9._-]*)+$`)
	validSHA256  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	validProduct = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$`)
)

// checker collects what is wrong, so that one reading shows all of it.
type checker struct{ found []error }

func (c *checker) failf(field, format string, args ...any) {
	c.found = append(c.found, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
}

func (c *checker) plugins(p *Plugins) {
	if !validModule.MatchString(p.Module) {
		c.failf("plugins.module", "%q is not the path of a module", p.Module)
	}
	c.version("plugins.version", p.Version)

	where := make(map[string]string) // the field that named a plugin first
	name := func(field, name string) {
		if err := plugin.CheckName(name); err != nil {
			c.failf(field, "%w", err)
		} else if first, ok := where[name]; ok {
			c.failf(field, "%s is in %s already", name, first)
		} else {
			where[name] = field
		}
	}
	if len(p.Staged) == 0 {
		c.failf("plugins.staged", "is empty")
	}
	for i, s := range p.Staged {
		field := fmt.Sprintf("plugins.staged[%d]", i)
		name(field+".name", s.Name)
		switch s.Role {
		case bundle.Main, bundle.IPAM, bundle.Meta:
		default:
			c.failf(field+".role", "%q is none of main, ipam, meta", s.Role)
		}
	}
	for i, l := range p.LeftOut {
		field := fmt.Sprintf("plugins.leftOut[%d]", i)
		name(field+".name", l.Name)
		if strings.TrimSpace(l.Reason) == "" {
			c.failf(field+".reason", "is empty")
		}
	}
	if len(p.Release.SHA256) == 0 {
		c.failf("plugins.release.sha256", "is empty")
	}
	for _, arch := range slices.Sorted(maps.Keys(p.Release.SHA256)) {
		sum := p.Release.SHA256[arch]
		field := fmt.Sprintf("plugins.release.sha256[%q]", arch)
		if !slices.Contains(plugin.Arches(), arch) {
			c.failf(field, "is not an architecture")
		}
		if !validSHA256.MatchString(sum) {
			c.failf(field, "%q is not 64 lowercase hexadecimal digits", sum)
		}
	}
	for i, other := range p.ComparedWith {
		c.compared(fmt.Sprintf("plugins.comparedWith[%d]", i), other)
	}
}

func (c *checker) compared(field string, other Compared) {
	if !validProduct.MatchString(other.Product) {
		c.failf(field+".product", "%q is not a product's name", other.Product)
	}
	if err := bundle.CheckVersion(other.Release); err != nil {
		c.failf(field+".release", "%w", err)
	}
	c.version(field+".carries", other.Carries)
	if len(other.Writes) == 0 {
		c.failf(field+".writes", "is empty")
	}
	for i, name := range other.Writes {
		if err := plugin.CheckName(name); err != nil {
			c.failf(fmt.Sprintf("%s.writes[%d]", field, i), "%w", err)
		} else if slices.Contains(other.Writes[:i], name) {
			c.failf(fmt.Sprintf("%s.writes[%d]", field, i), "%s is named twice", name)
		}
	}
}

func (c *checker) version(field, version string) {
	if !validVersion.MatchString(version) {
		c.failf(field, "%q is not a version such as v1.9.1", version)
	}
}
