package source

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestM(t *testing.T) {
	s := time.Now()
	m, err := NewMultus(t.Context(), "../../upstream/multus", os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	t.Log(m.Version, m.Sum, m.Patches, time.Since(s))
	for _, a := range []string{"amd64", "arm64"} {
		s = time.Now()
		if err := m.Build(t.Context(), a, "/tmp/mout/"+a); err != nil {
			t.Fatal(err)
		}
		t.Log(a, time.Since(s))
		s = time.Now()
		if err := (Program{Dir: "../..", Package: "./cmd/chandler", Environ: os.Environ()}).Build(t.Context(), a, "/tmp/mout/c"+a); err != nil {
			t.Fatal(err)
		}
		t.Log(a, time.Since(s))
	}
	filepath.Join()
}
