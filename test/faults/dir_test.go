//go:build faults

package faults

import (
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
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

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

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
		t.kind, t.size, t.sum = "file", int64(len(data)), crc32.Checksum(data, castagnoli)
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

var originalName = regexp.MustCompile(`^[1-9][0-9]*-([0-9a-f]{64}|unread)$`)

// litter lists what lies in dir and does not belong there once a run has come to its end.
func litter(dir string, names []string) ([]string, error) {
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		parts := strings.Split(rel, "/")
		switch {
		case rel == "." || rel == ".chandler" && d.IsDir():
		case parts[0] != ".chandler":
			if !slices.Contains(names, parts[0]) {
				left = append(left, rel)
			}
			if d.IsDir() {
				return fs.SkipDir
			}
		case len(parts) == 2 && (parts[1] == "ledger.json" || d.IsDir() && slices.Contains([]string{"tmp", "originals", "staged"}, parts[1])):
		case parts[1] == "staged" && len(parts) == 3 && d.Type().IsRegular():
		case parts[1] == "originals" && len(parts) == 3 && d.IsDir():
		case parts[1] == "originals" && len(parts) == 4 && originalName.MatchString(parts[3]):
		default:
			left = append(left, rel)
		}
		return nil
	})
	return left, err
}

// kept lists what is kept of a name, under whatever name it is kept.
func kept(dir, name string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, ".chandler/originals", name, "*"))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func inode(path string) uint64 {
	var st syscall.Stat_t
	if syscall.Lstat(path, &st) != nil {
		return 0
	}
	return st.Ino
}
