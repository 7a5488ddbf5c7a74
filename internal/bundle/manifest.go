package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/chandler-cni/chandler/internal/plugin"
)

// FormatVersion is the newest version of bundle.json that this package reads, and the one it writes.
// docs/format.md describes it.
const FormatVersion = 1

// Role is what part a plugin plays in a CNI configuration, as the reference set's own tree sorts them. Extra is
// everything that is not of the reference set; less is demanded of it.
type Role string

const (
	Main  Role = "main"
	IPAM  Role = "ipam"
	Meta  Role = "meta"
	Extra Role = "extra"
)

// Reference says whether the role is one of the reference set's.
func (r Role) Reference() bool { return r != Extra }

// Manifest is bundle.json: what a bundle holds. Plugins are in order of their names.
type Manifest struct {
	FormatVersion int      `json:"formatVersion"`
	Version       string   `json:"version"` // of the plugins, such as v1.9.1
	Arch          string   `json:"arch"`    // as GOARCH spells it
	Source        Source   `json:"source"`
	Plugins       []Plugin `json:"plugins"`
}

// Source is where a bundle's plugins came from. Only the fields of its kind are set.
type Source struct {
	Kind   string `json:"kind"`             // module, release, dir
	Form   string `json:"form,omitempty"`   // module: separate, multicall
	Module string `json:"module,omitempty"` // module: its path and version
	Sum    string `json:"sum,omitempty"`    // module: the h1 sum that go.sum holds it to
	Go     string `json:"go,omitempty"`     // module: the toolchain
	URL    string `json:"url,omitempty"`    // release: where the tarball was taken from
	SHA256 string `json:"sha256,omitempty"` // release: of the tarball
}

// Plugin is one executable of a bundle: bin/<Name>.
type Plugin struct {
	Name   string      `json:"name"`
	SHA256 string      `json:"sha256"` // lowercase hexadecimal
	Size   int64       `json:"size"`   // bytes
	Kind   plugin.Kind `json:"kind"`
	Role   Role        `json:"role"`
}

// NewerFormatError says that a manifest was written for a later reader than this one.
type NewerFormatError struct{ Version int }

func (e *NewerFormatError) Error() string {
	return fmt.Sprintf("format %d is newer than this program reads (%d)", e.Version, FormatVersion)
}

const maxPlugins = 256

var (
	validSHA256  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	validVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
	validArch    = regexp.MustCompile(`^[a-z0-9]{1,16}$`)
)

// CheckVersion reports why version cannot be a bundle's: it is printed as one word.
func CheckVersion(version string) error {
	if !validVersion.MatchString(version) {
		return fmt.Errorf("version %q: want letters, digits and ._+- only, at most 64", version)
	}
	return nil
}

// ParseManifest reads bundle.json. What it does not know it refuses: a field ignored here may be one that matters.
func ParseManifest(data []byte) (*Manifest, error) {
	// The version alone first, so that a newer manifest is called that and not a list of unknown fields.
	var head struct {
		FormatVersion int `json:"formatVersion"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if head.FormatVersion > FormatVersion {
		return nil, &NewerFormatError{head.FormatVersion}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	m := new(Manifest)
	if err := dec.Decode(m); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("parse: something follows the manifest")
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	return m, m.checkSpelling(data)
}

// checkSpelling holds the bytes to the one spelling of what was read, white space apart. encoding/json takes field names in
// any case, and of a field that is there twice the last: two readers could see two bundles under one digest.
func (m *Manifest) checkSpelling(data []byte) error {
	want, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var got bytes.Buffer
	if err := json.Compact(&got, data); err != nil {
		return err
	}
	if !bytes.Equal(got.Bytes(), want) {
		return errors.New("a field is there twice, missing, empty, or not in its place or spelling")
	}
	return nil
}

// encode is the one spelling of a manifest, so that its digest depends on nothing but what it says.
func (m *Manifest) encode() ([]byte, error) {
	slices.SortFunc(m.Plugins, func(a, b Plugin) int { return strings.Compare(a.Name, b.Name) })
	if err := m.check(); err != nil {
		return nil, err
	}
	data, err := json.MarshalIndent(m, "", "  ")
	return append(data, '\n'), err
}

func (m *Manifest) check() error {
	if m.FormatVersion != FormatVersion {
		return fmt.Errorf("format %d is unknown", m.FormatVersion)
	}
	if err := CheckVersion(m.Version); err != nil {
		return err
	}
	if !validArch.MatchString(m.Arch) {
		return fmt.Errorf("arch %q is not one", m.Arch)
	}
	switch m.Source.Kind {
	case "module", "release", "dir":
	default:
		return fmt.Errorf("source kind %q is unknown", m.Source.Kind)
	}
	if len(m.Plugins) > maxPlugins {
		return fmt.Errorf("%d plugins are more than %d", len(m.Plugins), maxPlugins)
	}
	byDigest := make(map[string]Plugin)
	for i, p := range m.Plugins {
		if err := p.check(); err != nil {
			return err
		}
		if i > 0 && m.Plugins[i-1].Name >= p.Name {
			return fmt.Errorf("plugin %s is out of order or named twice", p.Name)
		}
		if other, ok := byDigest[p.SHA256]; ok && (other.Size != p.Size || other.Kind != p.Kind) {
			return fmt.Errorf("plugins %s and %s have one digest and differ", other.Name, p.Name)
		}
		byDigest[p.SHA256] = p
	}
	return nil
}

func (p Plugin) check() error {
	if err := plugin.CheckName(p.Name); err != nil {
		return err
	}
	switch {
	case !validSHA256.MatchString(p.SHA256):
		return fmt.Errorf("plugin %s: sha256 %q is not one", p.Name, p.SHA256)
	case p.Size <= 0 || p.Size > plugin.MaxSize:
		return fmt.Errorf("plugin %s: size %d is not between 1 and %d", p.Name, p.Size, int64(plugin.MaxSize))
	case p.Kind != plugin.ELF && p.Kind != plugin.Script:
		return fmt.Errorf("plugin %s: kind %q is unknown", p.Name, p.Kind)
	}
	switch p.Role {
	case Main, IPAM, Meta, Extra:
		return nil
	}
	return fmt.Errorf("plugin %s: role %q is unknown", p.Name, p.Role)
}
