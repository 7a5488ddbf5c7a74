package image

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"

	"github.com/chandler-cni/chandler/internal/sbom"
)

// sbom is a document of the image's executables and what they are linked from. What was built here by changing a module
// carries the changes.
func (p Platform) sbom(spec Spec, entries []entry) ([]byte, error) {
	changes, err := p.patches()
	if err != nil {
		return nil, err
	}
	var patches []sbom.Patch
	for _, c := range changes {
		patches = append(patches, sbom.Patch{Text: c.text})
	}
	var programs []sbom.Program
	for _, e := range entries {
		if e.mode.Perm()&0o111 == 0 || !e.mode.IsRegular() {
			continue
		}
		if e.same != "" { // a further name of one that came before
			for i := range programs {
				if programs[i].Paths[0] == "/"+e.same {
					programs[i].Paths = append(programs[i].Paths, "/"+e.path)
				}
			}
			continue
		}
		f, err := os.Open(e.source)
		if err != nil {
			return nil, err
		}
		defer f.Close() // a few dozen
		h := sha256.New()
		size, err := io.Copy(h, f)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", e.source, err)
		}
		programs = append(programs, sbom.Program{Paths: []string{"/" + e.path}, SHA256: hex.EncodeToString(h.Sum(nil)), Size: size, File: f})
	}
	subject := sbom.Subject{Kind: sbom.Image, Name: "multus", Version: spec.Version, Platform: "linux/" + p.Arch, Created: spec.Created}
	return sbom.Make(subject, programs, patches...)
}
