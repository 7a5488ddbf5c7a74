//go:build faults

package faults

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/chandler-cni/chandler/test/rig"
)

// thing is what stands under a name, as far as a user of it can tell.
type thing struct {
	kind   string // absent, file, symlink, directory, special
	mode   uint32
	uid    uint32
	size   int64
	sum    uint32
	target string
}

var absent = thing{kind: "absent"}

func look(path string) (thing, error) {
	info, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return absent, nil
	}
	if err != nil {
		return thing{}, err
	}
	st := info.Sys().(*syscall.Stat_t)
	t := thing{kind: "special", mode: st.Mode & 0o7777, uid: st.Uid}
	switch {
	case info.Mode().IsRegular():
		data, err := os.ReadFile(path)
		if err != nil {
			return thing{}, err
		}
		t.kind, t.size, t.sum = "file", int64(len(data)), rig.Sum(data)
	case info.Mode()&fs.ModeSymlink != 0:
		t.kind, t.mode = "symlink", 0
		if t.target, err = os.Readlink(path); err != nil {
			return thing{}, err
		}
	case info.IsDir():
		t.kind = "directory"
	}
	return t, nil
}

func (t thing) String() string {
	switch t.kind {
	case "file":
		return fmt.Sprintf("a file of %d bytes (%08x), mode %04o, uid %d", t.size, t.sum, t.mode, t.uid)
	case "symlink":
		return "a link to " + t.target
	}
	return t.kind
}

// staged is what a bundle's plugin is once it is in place.
func staged(bundle, name string) (thing, error) {
	t, err := look(filepath.Join(bundle, "bin", name))
	t.mode, t.uid = 0o755, 0
	return t, err
}

// template is a directory tree that is made anew before each run.
type template struct {
	entries []templateEntry
}

type templateEntry struct {
	path   string
	info   fs.FileInfo
	data   []byte
	target string
	link   string // another name of the file
}

// remember reads a tree.
func remember(root string) (*template, error) {
	t := new(template)
	inodes := make(map[uint64]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		e := templateEntry{path: rel}
		if e.info, err = d.Info(); err != nil {
			return err
		}
		switch {
		case e.info.Mode().IsRegular():
			ino := e.info.Sys().(*syscall.Stat_t).Ino
			if e.link = inodes[ino]; e.link == "" {
				inodes[ino] = rel
				e.data, err = os.ReadFile(path)
			}
		case e.info.Mode()&fs.ModeSymlink != 0:
			e.target, err = os.Readlink(path)
		}
		t.entries = append(t.entries, e)
		return err
	})
	return t, err
}

// make makes the tree at root, in place of what is there.
func (t *template) make(root string) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	for _, e := range t.entries {
		path := filepath.Join(root, e.path)
		st := e.info.Sys().(*syscall.Stat_t)
		var err error
		switch {
		case e.link != "":
			err = os.Link(filepath.Join(root, e.link), path)
		case e.info.IsDir():
			err = os.Mkdir(path, 0o700)
		case e.target != "":
			err = os.Symlink(e.target, path)
		default:
			err = os.WriteFile(path, e.data, 0o600)
		}
		if err == nil && e.link == "" {
			err = os.Lchown(path, int(st.Uid), int(st.Gid))
		}
		if err == nil && e.target == "" && e.link == "" {
			err = syscall.Chmod(path, st.Mode&0o7777)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// kept lists what is kept of a name, under whatever name it is kept.
func kept(dir, name string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, ".chandler/originals", name, "*"))
}

func inode(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Lstat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
