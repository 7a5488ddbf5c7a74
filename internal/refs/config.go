package refs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"go.yaml.in/yaml/v3"
)

// ConfigName is the file at the root of a tree that describes it.
const ConfigName = "refs.yaml"

// Config describes a tree. The zero Config is a tree of no declared files, and of nobody's own.
type Config struct {
	// Files are searched for references as text. Paths below the root, with slashes.
	Files []string `yaml:"files"`
	// FirstParty are the registries and owners whose images are this tree's own: ghcr.io/acme is the owner of
	// ghcr.io/acme/app and not of ghcr.io/acme-labs/app.
	FirstParty []string `yaml:"firstParty"`
	// Ignore are globs of files below the root, or of images' names, that are neither held to the rules nor rewritten, and
	// nothing below what they match is. ** is any number of folders.
	Ignore []string `yaml:"ignore"`
}

// ReadConfig reads the Config in the file at path, or, if path is empty, in the ConfigName of the tree at root, where it
// may be missing. An unknown field is refused, and so is all that Open would refuse.
func ReadConfig(root, path string) (Config, error) {
	optional := path == ""
	if optional {
		path = filepath.Join(root, ConfigName)
	}
	data, err := os.ReadFile(path)
	if optional && errors.Is(err, fs.ErrNotExist) {
		return Config{}, nil
	}
	if err != nil {
		return Config{}, err
	}
	var c Config
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && err != io.EOF {
		var unfit *yaml.TypeError
		if errors.As(err, &unfit) { // it speaks of Go's types
			err = errors.New(strings.ReplaceAll(strings.Join(unfit.Errors, "; "), " in type refs.Config", ""))
		}
		return Config{}, fmt.Errorf("read %s: %w", path, err)
	}
	if err := d.Decode(new(yaml.Node)); err != io.EOF {
		return Config{}, fmt.Errorf("read %s: more than one document", path)
	}
	if err := c.check(); err != nil {
		return Config{}, fmt.Errorf("read %s: %w", path, err)
	}
	return c, nil
}

func (c Config) check() error {
	for i, name := range c.Files {
		switch {
		case !filepath.IsLocal(filepath.FromSlash(name)) || path.Clean(name) != name || name == ".":
			return fmt.Errorf("files: %q is not a path below the root", name)
		case slices.Contains(c.Files[:i], name):
			return fmt.Errorf("files: %q is there twice", name)
		}
	}
	for _, p := range c.FirstParty {
		if err := CheckPrefix(p); err != nil {
			return fmt.Errorf("firstParty: %w", err)
		}
	}
	for _, glob := range c.Ignore {
		if glob == "" || !doublestar.ValidatePattern(glob) {
			return fmt.Errorf("ignore: %q is not a glob", glob)
		}
	}
	return nil
}

// CheckPrefix refuses a prefix of images' names that no name could have.
func CheckPrefix(prefix string) error {
	registry, owner, _ := strings.Cut(strings.TrimRight(prefix, "/"), "/")
	if registry != "localhost" && !strings.ContainsAny(registry, ".:") {
		return fmt.Errorf("%q does not begin with a registry, as docker.io/%s does", prefix, strings.Trim(prefix, "/"))
	}
	if owner == "" {
		owner = "x"
	}
	if got, path, ok := parseName(registry + "/" + owner); !ok || got != registry || path != owner && path != "library/"+owner {
		return fmt.Errorf("%q is not the beginning of an image's name", prefix)
	}
	return nil
}

// ignores reports whether a glob of the Config matches one of the names, or what is above it.
func (c Config) ignores(names ...string) bool {
	for _, glob := range c.Ignore {
		for _, name := range names {
			for i := 0; i <= len(name); i++ {
				if (i == len(name) || name[i] == '/') && doublestar.MatchUnvalidated(glob, name[:i]) {
					return true
				}
			}
		}
	}
	return false
}

// owner is whose an image is, as far as the tree's rules go.
type owner int

const (
	unknown    owner = iota // no name, or one that is filled in later
	firstParty              // the tree's own
	thirdParty              // anybody else's
	ignored                 // matched by a glob
)

func (c Config) owner(r Reference) owner {
	switch {
	case c.ignores(r.File, r.Name()):
		return ignored
	case r.Incomplete:
		return unknown
	case owned(r.Name(), c.FirstParty):
		return firstParty
	}
	return thirdParty
}
