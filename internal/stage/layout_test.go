package stage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

var linkedNames = []string{"bridge", "portmap", "vlan"}

// multicall is a bundle of one executable under several names.
func multicall(t *testing.T, version string) *bundle.Bundle {
	t.Helper()
	data := plugintest.Answering(nodeArch, plugintest.Answer, 0, version)
	var files []file
	for _, name := range linkedNames {
		files = append(files, file{name, bundle.Main, data})
	}
	return packed(t, version, files...)
}

// inodes says how many files the names are.
func inodes(t *testing.T, bin string) int {
	t.Helper()
	dir, err := hostdir.Open(bin)
	must(t, err)
	defer dir.Close()
	seen := make(map[uint64]bool)
	for _, name := range linkedNames {
		e, err := dir.Stat(name)
		must(t, err)
		seen[e.Ino] = true
	}
	return len(seen)
}

func TestLayouts(t *testing.T) {
	bin := t.TempDir()
	v1, v2 := multicall(t, "v1"), multicall(t, "v2")
	step := func(what string, b *bundle.Bundle, layout Layout, actions string, files int) {
		t.Helper()
		r := stage(t, b, Options{BinDir: bin, Layout: layout})
		want(t, r, actions)
		if got := inodes(t, bin); got != files {
			t.Errorf("%s: %d files, not %d", what, got, files)
		}
		for _, name := range linkedNames {
			if kept := originals(t, bin, name); len(kept) != 0 {
				t.Errorf("%s: kept %v of our own", what, kept)
			}
		}
	}
	const (
		fresh     = "bridge:new portmap:new vlan:new"
		unchanged = "bridge:unchanged portmap:unchanged vlan:unchanged"
		replaced  = "bridge:replaced portmap:replaced vlan:replaced"
		changed   = "bridge:unchanged portmap:replaced vlan:replaced"
	)
	step("fresh", v1, Linked, fresh, 1)
	step("again", v1, Linked, unchanged, 1)
	step("update", v2, Linked, replaced, 1)
	step("to separate", v2, Separate, changed, 3)
	step("again", v2, "", unchanged, 3)
	step("to linked", v2, Linked, changed, 1)

	// A name that went gets the file that is in place.
	must(t, os.Remove(filepath.Join(bin, "portmap")))
	step("one gone", v2, Linked, "bridge:unchanged portmap:new vlan:unchanged", 1)
	must(t, os.Remove(filepath.Join(bin, "bridge")))
	step("the first gone", v2, Linked, "bridge:new portmap:unchanged vlan:unchanged", 1)
}

// A foreign writer that writes into one name of a linked bin dir writes into all: verify says so, and staging heals all.
func TestLinkedStruckInPlace(t *testing.T) {
	b := multicall(t, "v1")
	for _, struck := range linkedNames {
		t.Run(struck, func(t *testing.T) {
			bin := t.TempDir()
			stage(t, b, Options{BinDir: bin, Layout: Linked})
			write(t, filepath.Join(bin, struck), "#!/bin/sh\nexit 7\n", 0o755)
			v, err := Verify(t.Context(), b, Options{BinDir: bin})
			must(t, err)
			for _, c := range v.Plugins {
				if c.OK {
					t.Errorf("%s is called right", c.Name)
				}
			}
			r := stage(t, b, Options{BinDir: bin, Layout: Linked})
			want(t, r, "bridge:replaced portmap:replaced vlan:replaced")
			if inodes(t, bin) != 1 {
				t.Error("not linked")
			}
			if v, err = Verify(t.Context(), b, Options{BinDir: bin}); err != nil || !v.OK() {
				t.Errorf("not healed: %+v, %v", v, err)
			}
		})
	}
}

// Under the separate layout the same writer damages one name alone.
func TestSeparateStruckInPlace(t *testing.T) {
	bin, b := t.TempDir(), multicall(t, "v1")
	stage(t, b, Options{BinDir: bin})
	write(t, filepath.Join(bin, "portmap"), "#!/bin/sh\nexit 7\n", 0o755)
	want(t, stage(t, b, Options{BinDir: bin}), "bridge:unchanged portmap:replaced vlan:unchanged")
}

// The file in place may change between the plan and the link: what was not compared is not linked.
func TestLinkOnlyWhatWasCompared(t *testing.T) {
	bin, b := t.TempDir(), multicall(t, "v1")
	stage(t, b, Options{BinDir: bin, Layout: Linked})
	must(t, os.Remove(filepath.Join(bin, "vlan")))
	dir, err := hostdir.Open(bin)
	must(t, err)
	defer dir.Close()
	items, err := plan(t.Context(), b, dir, Linked)
	must(t, err)
	write(t, filepath.Join(bin, "other"), "#!/bin/sh\n", 0o755)
	must(t, os.Rename(filepath.Join(bin, "other"), filepath.Join(bin, "bridge")))

	s, err := openStore(t.Context(), dir, true)
	must(t, err)
	defer s.close()
	r := &run{ctx: t.Context(), b: b, o: Options{BinDir: bin, Layout: Linked}, dir: dir, store: s, report: &Report{}}
	for _, it := range items {
		r.work = append(r.work, &piece{Item: it})
	}
	must(t, r.apply())
	for _, p := range r.work {
		if p.Plugin.Name == "vlan" && (p.Err == nil || !strings.Contains(p.Err.Error(), "replaced by another program")) {
			t.Errorf("vlan: %v", p.Err)
		}
	}
	if _, err := os.Lstat(filepath.Join(bin, "vlan")); err == nil {
		t.Error("vlan was linked to what nobody checked")
	}
}
