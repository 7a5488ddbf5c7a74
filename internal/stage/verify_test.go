package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// Verify says what is not right, and changes nothing.
func TestVerify(t *testing.T) {
	names := []string{"absent", "bytes", "directory", "fifo", "link", "mode", "ok", "size", "warned"}
	bin := t.TempDir()
	var files []file
	for _, n := range names[:len(names)-1] {
		files = append(files, ref(n, "v1"))
	}
	files = append(files, extra("warned", plugintest.Script("exit 3")))
	b := packed(t, "v1", files...)
	must(t, os.Mkdir(filepath.Join(bin, "other"), 0o755))
	stage(t, b, Options{BinDir: bin})
	path := func(n string) string { return filepath.Join(bin, n) }
	for _, n := range []string{"absent", "directory", "fifo", "link"} {
		must(t, os.Remove(path(n)))
	}
	data := append([]byte(nil), ref("bytes", "v1").data...)
	data[len(data)-1]++
	write(t, path("bytes"), string(data), 0o755)
	put(t, path("directory"), hostdir.Folder)
	put(t, path("fifo"), hostdir.Fifo)
	must(t, os.Symlink("ok", path("link")))
	must(t, os.Chmod(path("mode"), 0o644))
	must(t, os.Truncate(path("size"), 3))
	same := unchanged(t, bin, true)
	v, err := Verify(t.Context(), b, Options{BinDir: bin, ShownAs: "/opt/cni/bin"})
	must(t, err)
	same()
	want := map[string]string{
		"absent": "absent", "bytes": "other bytes: sha256:" + sum(data), "directory": "is a directory", "fifo": "is a fifo",
		"link": "is a symlink to ok", "mode": "mode 0644, not 0755", "ok": "",
		"size":   fmt.Sprintf("3 bytes, not %d", len(ref("size", "v1").data)),
		"warned": "does not answer VERSION: exit status 3",
	}
	if v.OK() || len(v.Plugins) != len(names) || v.BinDir != "/opt/cni/bin" || v.Version != "v1" || v.Bundle != b.Digest {
		t.Errorf("%+v", v)
	}
	for _, c := range v.Plugins {
		if c.OK != (c.Name == "ok" || c.Name == "warned") || c.Cause != want[c.Name] {
			t.Errorf("%s: ok %t, %q, want %q", c.Name, c.OK, c.Cause, want[c.Name])
		}
	}
	stage(t, b, Options{BinDir: bin})
	for _, n := range []string{"directory", "fifo"} {
		must(t, os.RemoveAll(path(n)))
	}
	stage(t, b, Options{BinDir: bin})
	if v, err := Verify(t.Context(), b, Options{BinDir: bin}); err != nil || !v.OK() {
		t.Errorf("%+v, %v", v, err)
	}
}

// What has the right digest and does not run is wrong, unless the probe is left out.
func TestVerifyRuns(t *testing.T) {
	bin := t.TempDir()
	b := packed(t, "v1", file{"p", bundle.Main, plugintest.Answering(nodeArch, "", 4, "")})
	stage(t, b, Options{BinDir: bin, NoProbe: true})
	v, err := Verify(t.Context(), b, Options{BinDir: bin})
	if err != nil || v.OK() || !strings.Contains(v.Plugins[0].Cause, "exit status 4") {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := Verify(t.Context(), b, Options{BinDir: bin, NoProbe: true}); err != nil || !v.OK() {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestVerifyErrors(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "bin")
	b := packed(t, "v1", ref("bridge", "v1"))
	var binDir *BinDirError
	if _, err := Verify(t.Context(), b, Options{BinDir: bin, Create: true}); !errors.As(err, &binDir) {
		t.Errorf("%v", err)
	}
	if _, err := os.Lstat(bin); err == nil {
		t.Error("made the bin dir")
	}
	must(t, os.Mkdir(bin, 0o755))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Verify(ctx, b, Options{BinDir: bin}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestVerifyUnreadable(t *testing.T) {
	if !unprivileged(t) {
		return
	}
	bin := t.TempDir()
	b := packed(t, "v1", ref("bridge", "v1"))
	stage(t, b, Options{BinDir: bin})
	must(t, os.Chmod(filepath.Join(bin, "bridge"), 0o111))
	v, err := Verify(t.Context(), b, Options{BinDir: bin})
	if err != nil || v.OK() || v.Plugins[0].Cause != "open: permission denied" {
		t.Errorf("%+v, %v", v, err)
	}
}
