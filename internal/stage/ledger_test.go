package stage

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/chandler-cni/chandler/internal/hostdir"
)

func readLedger(t *testing.T, bin string) *ledger {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(bin, storeName, ledgerName))
	must(t, err)
	l, err := parseLedger(data)
	must(t, err)
	return l
}

// The ledger says what was staged, and what stood there when staging first came.
func TestLedger(t *testing.T) {
	bin := t.TempDir()
	write(t, filepath.Join(bin, "portmap"), "theirs", 0o755)
	must(t, os.Symlink("/nowhere", filepath.Join(bin, "link")))
	put(t, filepath.Join(bin, "directory"), hostdir.Folder)
	begin := time.Now().Add(-time.Second)
	for _, version := range []string{"v1", "v2"} {
		b := packed(t, version, set(version, "bridge", "directory", "link", "portmap")...)
		stage(t, b, Options{BinDir: bin})
		l := readLedger(t, bin)
		if len(l.Plugins) != 3 || l.FormatVersion != ledgerFormat {
			t.Errorf("%+v", l)
		}
		for name, before := range map[string]State{"bridge": Absent, "link": Symlink, "portmap": Different} {
			e := l.Plugins[name]
			if e.SHA256 != sum(ref(name, version).data) || e.Version != version || e.Bundle != b.Digest || e.Before != before ||
				e.Staged.Before(begin) || time.Since(e.Staged) > time.Minute {
				t.Errorf("%s %s: %+v", version, name, e)
			}
		}
	}
	// What another bundle does not hold stays recorded.
	stage(t, packed(t, "v3", ref("vlan", "v3")), Options{BinDir: bin})
	if l := readLedger(t, bin); len(l.Plugins) != 4 || l.Plugins["bridge"].Version != "v2" {
		t.Errorf("%+v", l)
	}
	info, err := os.Lstat(filepath.Join(bin, storeName, ledgerName))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// Whatever has become of the ledger, staging goes on, and says what it could not do.
func TestLedgerThatCannotBeUsed(t *testing.T) {
	const anew = "the ledger could not be read and was begun anew: "
	huge := `{"formatVersion":1,"plugins":{"x":{"version":"` + strings.Repeat("x", maxLedger) + `"}}}`
	for name, test := range map[string]struct {
		put   func(t *testing.T, path string)
		warn  string
		stays bool // as it is
	}{
		"newer":          {text(`{"formatVersion":2,"plugins":[1,2],"more":{}}`), "this run is not recorded: the ledger's format 2 is newer than this chandler writes (1)", true},
		"empty":          {text(""), anew + "parse: ", false},
		"no JSON":        {text("\x00\x00\x00"), anew + "parse: ", false},
		"cut":            {text(`{"formatVersion":1,"plugins":{"br`), anew + "parse: ", false},
		"older":          {text(`{"formatVersion":0}`), anew + "format 0 is unknown", false},
		"no version":     {text(`{}`), anew + "format 0 is unknown", false},
		"unknown field":  {text(`{"formatVersion":1,"plugins":{},"x":1}`), anew + "parse: ", false},
		"followed":       {text(`{"formatVersion":1,"plugins":{}} x`), anew + "parse: ", false},
		"huge":           {text(huge), anew, false},
		"no plugins":     {text(`{"formatVersion":1}`), "", false},
		"null plugins":   {text(`{"formatVersion":1,"plugins":null}`), "", false},
		"a directory":    {func(t *testing.T, path string) { put(t, path, hostdir.Folder) }, "this run is not recorded: ", true},
		"a link":         {func(t *testing.T, path string) { put(t, path, hostdir.Symlink) }, anew, false},
		"a fifo":         {func(t *testing.T, path string) { put(t, path, hostdir.Fifo) }, anew, false},
		"cannot be made": {func(t *testing.T, path string) { failFor(t, &syncFile, "."+ledgerName, syscall.ENOSPC) }, "this run is not recorded: ", false},
		"cannot be closed": {func(t *testing.T, path string) { failFor(t, &closeFile, "."+ledgerName, syscall.EIO) },
			"this run is not recorded: ", false},
	} {
		t.Run(name, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, storeName, ledgerName)
			must(t, os.Mkdir(filepath.Dir(path), 0o700))
			var same func()
			t.Run("run", func(t *testing.T) {
				test.put(t, path)
				if test.stays {
					same = unchanged(t, path, true)
				}
				r := stage(t, packed(t, "v1", set("v1", "bridge", "vlan")...), Options{BinDir: bin})
				want(t, r, "bridge:new vlan:new")
				if test.warn == "" {
					wantWarnings(t, r)
				} else {
					wantWarnings(t, r, test.warn)
				}
			})
			inPlace(t, bin, set("v1", "bridge", "vlan")...)
			if test.stays {
				same()
				return
			}
			r := stage(t, packed(t, "v2", set("v2", "bridge", "vlan")...), Options{BinDir: bin})
			want(t, r, "bridge:replaced vlan:replaced")
			wantWarnings(t, r)
			if l := readLedger(t, bin); len(l.Plugins) != 2 || l.Plugins["bridge"].Version != "v2" {
				t.Errorf("%+v", l)
			}
		})
	}
}

func text(s string) func(t *testing.T, path string) {
	return func(t *testing.T, path string) { write(t, path, s, 0o600) }
}

// A plugin may be called as the ledger is.
func TestPluginNamedLikeTheLedger(t *testing.T) {
	bin := t.TempDir()
	put(t, filepath.Join(bin, "ledger.json"), hostdir.Folder)
	failing := file{"ledger.json", "main", nil}
	failing.data = ref("ledger.json", "v1").data
	r := stage(t, packed(t, "v1", ref("bridge", "v1"), failing), Options{BinDir: bin})
	want(t, r, "bridge:new ledger.json:failed")
	wantWarnings(t, r)
	must(t, os.RemoveAll(filepath.Join(bin, "ledger.json")))
	t.Run("left in the run's folder", func(t *testing.T) {
		real := publish
		swapVar(t, &publish, func(d, from *hostdir.Dir, name, to string) error {
			if to == "ledger.json" {
				return syscall.EIO
			}
			return real(d, from, name, to)
		})
		must(t, os.Remove(filepath.Join(bin, "bridge")))
		r := stage(t, packed(t, "v1", ref("bridge", "v1"), failing), Options{BinDir: bin})
		want(t, r, "bridge:new ledger.json:failed")
		wantWarnings(t, r)
	})
}

func FuzzLedger(f *testing.F) {
	f.Add([]byte(`{"formatVersion":1,"plugins":{"bridge":{"sha256":"x","version":"v1","bundle":"b","staged":"2026-01-02T03:04:05Z","before":"absent"}}}`))
	f.Add([]byte(`{"formatVersion":2}`))
	f.Add([]byte(`{"formatVersion":1,"plugins":null}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := parseLedger(data)
		var newer *newerLedgerError
		if err != nil {
			if errors.As(err, &newer) && newer.version <= ledgerFormat {
				t.Errorf("%d is not newer", newer.version)
			}
			return
		}
		out, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseLedger(out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if diff := cmp.Diff(l, again); diff != "" {
			t.Error(diff)
		}
	})
}

// A ledger that may not outlast a power cut is told of.
func TestLedgerThatIsNotSynced(t *testing.T) {
	bin := t.TempDir()
	real := syncDir
	swapVar(t, &syncDir, func(d *hostdir.Dir) error {
		if _, err := os.Lstat(filepath.Join(bin, storeName, ledgerName)); err == nil && filepath.Base(d.Path()) == storeName {
			return &fs.PathError{Op: "sync", Path: d.Path(), Err: syscall.EIO}
		}
		return real(d)
	})
	r := stage(t, packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
	want(t, r, "bridge:new")
	wantWarnings(t, r, "this run is not recorded: sync")
}
