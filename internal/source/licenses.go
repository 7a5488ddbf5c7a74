package source

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
)

// licenseFile matches the files in a module's root that whoever passes the module's object code on has to pass on too.
var licenseFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-._].*)?$`)

// licenseKeeper is where licences go: a bundle's writer, or a directory of programs.
type licenseKeeper interface {
	License(name string, text []byte) error
}

// addLicenses keeps the licences of everything that programs are linked from: each module's, and Go's own, unless the
// toolchain was installed without it.
func addLicenses(w licenseKeeper, g *goCommand, linked map[string]module) error {
	for _, path := range slices.Sorted(maps.Keys(linked)) {
		m := linked[path]
		n, err := addLicensesOf(w, m.name(), m.Dir)
		if err != nil {
			return fmt.Errorf("keep licences of %s: %w", path, err)
		}
		if n == 0 {
			return fmt.Errorf("keep licences of %s: there is none in %s", path, m.Dir)
		}
	}
	_, err := addLicensesOf(w, g.version, g.root)
	return err
}

// addLicensesOf keeps the licences in dir under licenses/<name>/ and says how many there are.
func addLicensesOf(w licenseKeeper, name, dir string) (n int, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenseFile.MatchString(e.Name()) || path.Ext(e.Name()) == ".go" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return n, err
		}
		if err := w.License(path.Join(name, e.Name()), text); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}
