package stage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

// Two names of one file may claim two digests: each claim is checked, also where the second name is in place already.
func TestOneFileOfTwoDigestsIsDamage(t *testing.T) {
	data := ref("bridge", "v1").data
	dir, bin := pack(t, "v1", extra("aa", data), extra("bb", data)), t.TempDir()
	path := filepath.Join(dir, "bundle.json")
	text, err := os.ReadFile(path)
	must(t, err)
	lie := strings.Repeat("f", 64)
	i := strings.LastIndex(string(text), sum(data))
	must(t, os.WriteFile(path, []byte(string(text[:i])+lie+string(text[i+len(lie):])), 0o644))
	must(t, os.Remove(filepath.Join(dir, "bin/bb")))
	must(t, os.Link(filepath.Join(dir, "bin/aa"), filepath.Join(dir, "bin/bb")))
	write(t, filepath.Join(bin, "bb"), string(data), 0o755)

	same := unchanged(t, bin, true)
	r := Run(t.Context(), openAt(t, dir), Options{BinDir: bin})
	if r.Outcome != Refused || !errors.Is(r.Err, bundle.ErrDigest) {
		t.Errorf("%s", r.Text())
	}
	same()
}

// Not to run a plugin is not to take one for another machine.
func TestNoProbeChecksTheMachine(t *testing.T) {
	other := "arm64"
	if nodeArch == other {
		other = "amd64"
	}
	out := filepath.Join(t.TempDir(), "bundle")
	w, err := bundle.Create(out, "v1", other, bundle.Source{Kind: "dir"})
	must(t, err)
	defer w.Close()
	_, err = w.Add("bridge", bundle.Main, strings.NewReader(string(plugintest.ELF(other, ""))))
	must(t, err)
	_, err = w.Commit()
	must(t, err)
	bin := t.TempDir()
	r := stage(t, openAt(t, out), Options{BinDir: bin, NoProbe: true})
	want(t, r, "bridge:failed")
	if cause := result(t, r, "bridge").Cause; cause != fmt.Sprintf("built for %s, not for %s", other, nodeArch) {
		t.Errorf("cause %q", cause)
	}
}

// The bin dir of a mistaken command line may be the bundle itself.
func TestBinDirIsTheBundle(t *testing.T) {
	dir := pack(t, "v1", set("v1", "bridge")...)
	for _, bin := range []string{dir, filepath.Join(dir, "bin")} {
		same := unchanged(t, dir, true)
		r := Run(t.Context(), openAt(t, dir), Options{BinDir: bin})
		if r.Outcome != Refused || !errors.Is(r.Err, ErrIsBundle) {
			t.Errorf("%s", r.Text())
		}
		same()
	}
}

// A file of our own that cannot be read, and is kept for that, pushes out nobody's original.
func TestUnreadOriginalsPushOutNobodys(t *testing.T) {
	bin := t.TempDir()
	path, b := filepath.Join(bin, "bridge"), packed(t, "v1", ref("bridge", "v1"))
	for i := range keepOriginals {
		write(t, filepath.Join(bin, "new"), fmt.Sprint("foreign ", i), 0o755)
		must(t, os.Rename(filepath.Join(bin, "new"), path))
		stage(t, b, Options{BinDir: bin})
	}
	before := originals(t, bin, "bridge")
	slot := filepath.Join(bin, storeName, originalsName, "bridge")
	dir, err := hostdir.Open(bin)
	must(t, err)
	defer dir.Close()
	s, err := openStore(t.Context(), dir, true)
	must(t, err)
	defer s.close()
	d, err := s.slot("bridge")
	must(t, err)
	// Larger than any plugin, so that it is not read: the same as one that cannot be.
	huge := filepath.Join(slot, swapName(sum([]byte("x")), "DEAD"))
	must(t, os.WriteFile(huge, nil, 0o755))
	must(t, os.Truncate(huge, 1<<40))
	if _, err := s.settle(t.Context(), d, "bridge", filepath.Base(huge), keep); err != nil {
		t.Fatal(err)
	}
	after := originals(t, bin, "bridge")
	if len(after) != len(before)+1 || strings.Join(after[:len(before)], " ") != strings.Join(before, " ") {
		t.Errorf("kept %q, before %q", after, before)
	}
}

// What lies in the folder is trusted, so each directory of it has to be ours.
func TestDirectoriesOfSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	for _, sub := range []string{stagedName, tmpName, originalsName, originalsName + "/bridge"} {
		t.Run(sub, func(t *testing.T) {
			bin := t.TempDir()
			path := filepath.Join(bin, "bridge")
			write(t, path, "precious", 0o755)
			theirs := filepath.Join(bin, storeName, sub)
			must(t, os.MkdirAll(theirs, 0o700))
			if sub == stagedName {
				write(t, filepath.Join(theirs, mark("bridge", sum([]byte("precious")))), "", 0o600)
			}
			must(t, os.Chown(theirs, 12345, 12345))
			was := ident(t, path)
			r := Run(t.Context(), packed(t, "v1", ref("bridge", "v1")), Options{BinDir: bin})
			want(t, r, "bridge:failed")
			var owner *OwnerError
			if !errors.As(result(t, r, "bridge").Err, &owner) {
				t.Errorf("%v", result(t, r, "bridge").Err)
			}
			if got := ident(t, path); got != was {
				t.Errorf("%s, was %s", got, was)
			}
		})
	}
}

// When the bin dir was replaced under our hands, the report still tells what was done in the old one.
func TestReplacedBinDirTellsWhatWasDone(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "bin")
	must(t, os.Mkdir(bin, 0o755))
	afterPlan(t, func() {
		must(t, os.Rename(bin, bin+".old"))
		must(t, syscall.Symlink("bin", bin)) // a loop: neither absent nor a directory
	})
	r := Run(t.Context(), packed(t, "v1", set("v1", "bridge", "vlan")...), Options{BinDir: bin})
	if !errors.Is(r.Err, ErrReplaced) || len(r.Plugins) != 2 || r.Complete() {
		t.Errorf("%+v", r)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}
