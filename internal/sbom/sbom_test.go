package sbom

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"

	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

func program(content []byte, paths ...string) Program {
	return Program{Paths: paths, SHA256: strings.Repeat("0", 64), Size: int64(len(content)), File: bytes.NewReader(content)}
}

func decode(t *testing.T, data []byte) (cdx.BOM, map[string]cdx.Component) {
	t.Helper()
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(data), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	byRef := make(map[string]cdx.Component)
	for _, c := range *bom.Components {
		if _, ok := byRef[c.BOMRef]; ok {
			t.Errorf("%s is there twice", c.BOMRef)
		}
		byRef[c.BOMRef] = c
	}
	return bom, byRef
}

func TestMake(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	programs := []Program{program(self, "bin/this", "bin/too"), program(plugintest.Script(""), "bin/hook"), program([]byte("text"), "bin/none")}
	data, err := Make(Subject{Kind: Bundle, Name: "cni-plugins", Version: "v1", Platform: "linux/" + runtime.GOARCH}, programs)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Make(Subject{Kind: Bundle, Name: "cni-plugins", Version: "v1", Platform: "linux/" + runtime.GOARCH}, programs)
	if err != nil || !bytes.Equal(data, again) {
		t.Errorf("two documents of one content differ: %v", err)
	}
	bom, byRef := decode(t, data)
	if bom.SerialNumber != "" || bom.Metadata.Timestamp != "" || bom.Metadata.Component.BOMRef != "bundle" {
		t.Errorf("%q, %+v", bom.SerialNumber, bom.Metadata)
	}
	for _, d := range *bom.Dependencies {
		if d.Dependencies == nil {
			continue
		}
		for _, ref := range *d.Dependencies {
			if _, ok := byRef[ref]; !ok {
				t.Errorf("%s depends on %s, which is not described", d.Ref, ref)
			}
		}
	}
	if at := byRef["file:bin/this"].Evidence; at == nil || len(*at.Occurrences) != 2 {
		t.Errorf("a program of two names is at %+v", at)
	}
	for _, ref := range []string{"file:bin/hook", "file:bin/none", "pkg:golang/stdlib@" + strings.TrimPrefix(runtime.Version(), "go")} {
		if byRef[ref].Name == "" {
			t.Errorf("%s is not described", ref)
		}
	}
}

func TestMakeForAnImage(t *testing.T) {
	created := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	data, err := Make(Subject{Kind: Image, Name: "multus", Version: "v4.3.0", Created: created}, []Program{program(plugintest.Script(""), "/usr/bin/hook")})
	if err != nil {
		t.Fatal(err)
	}
	bom, _ := decode(t, data)
	if c := bom.Metadata.Component; c.Type != cdx.ComponentTypeContainer || bom.Metadata.Timestamp != "2026-07-01T00:00:00Z" {
		t.Errorf("%+v", bom.Metadata)
	}
}

func TestPatchedModule(t *testing.T) {
	doc := &document{patches: []Patch{{[]byte("--- a/f\n")}}, libraries: make(map[string]cdx.Component)}
	plain := doc.addLibrary(&debug.Module{Path: "example.com/m", Version: "v1.0.0+incompatible", Sum: "h1:x"})
	if c := doc.libraries[plain]; plain != "pkg:golang/example.com/m@v1.0.0%2Bincompatible" || c.Pedigree != nil || (*c.Properties)[0].Value != "h1:x" {
		t.Errorf("%s is %+v", plain, c)
	}
	changed := doc.addLibrary(&debug.Module{Path: "example.com/n", Version: "v2.0.0", Replace: &debug.Module{Path: "./n", Version: "(devel)"}})
	if c := doc.libraries[changed]; c.Version != "v2.0.0" || c.Pedigree == nil || (*c.Pedigree.Patches)[0].Diff.Text.Content != "--- a/f\n" {
		t.Errorf("%s is %+v", changed, c)
	}
}

type brokenFile struct{}

var errDisk = errors.New("input/output error")

func (brokenFile) ReadAt(p []byte, _ int64) (int, error) { return iotest.ErrReader(errDisk).Read(p) }

func TestMakeReadError(t *testing.T) {
	if _, err := Make(Subject{Kind: Bundle}, []Program{{Paths: []string{"bin/x"}, Size: 10, File: brokenFile{}}}); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "bin/x") {
		t.Error(err)
	}
}
