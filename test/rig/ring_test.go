package rig

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// What a ring needs of Debian is what `make packages` installs.
func TestPackagesAreListed(t *testing.T) {
	text, err := os.ReadFile("../packages.txt")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(text)) {
		listed = append(listed, strings.Fields(line + " #")[0])
	}
	for tool, pkg := range packages {
		if pkg != "" && !slices.Contains(listed, pkg) {
			t.Errorf("test/packages.txt has no %s, for %s", pkg, tool)
		}
	}
}
