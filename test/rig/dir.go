package rig

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Place copies plugins of a bundle into dir, all if none are named, as another installer would have.
func Place(t testing.TB, bundle, dir string, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = Names(t, bundle)
	}
	for _, name := range names {
		Write(t, filepath.Join(dir, name), Read(t, filepath.Join(bundle, "bin", name)), 0o755)
	}
}

// WrongAs says how what stands under name in dir is not a whole executable of the bundle's; empty if it is.
func WrongAs(bundle, dir, name string) string {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error()
	}
	if info.Mode() != 0o755 {
		return fmt.Sprintf("%s: mode %v, not 0755", name, info.Mode())
	}
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 0 {
		return fmt.Sprintf("%s: owner %d", name, uid)
	}
	same, err := SameFiles(path, filepath.Join(bundle, "bin", name))
	if err != nil {
		return err.Error()
	}
	if !same {
		return fmt.Sprintf("%s: other bytes, %d of them", name, info.Size())
	}
	return ""
}

// Holds fails unless dir has each of the names, or all of the bundle's, as whole executables of the bundle's.
func Holds(t testing.TB, bundle, dir string, names ...string) {
	t.Helper()
	if len(names) == 0 {
		names = Names(t, bundle)
	}
	for _, name := range names {
		if w := WrongAs(bundle, dir, name); w != "" {
			t.Fatalf("not as the bundle's: %s", w)
		}
	}
}

// Whole fails unless each name of the bundles in dir is a whole executable of one of them. With mayMiss it may also be absent.
func Whole(t testing.TB, dir string, mayMiss bool, bundles ...string) {
	t.Helper()
	for _, name := range Names(t, bundles[0]) {
		if mayMiss && !Exists(filepath.Join(dir, name)) {
			continue
		}
		var wrong []string
		for _, b := range bundles {
			if w := WrongAs(b, dir, name); w != "" {
				wrong = append(wrong, w)
			}
		}
		if len(wrong) == len(bundles) {
			t.Fatalf("neither old nor new: %v", wrong)
		}
	}
}

// Clean fails if anything lies in dir but the bundle's plugins and chandler's folder with what it keeps, or the names in also.
func Clean(t testing.TB, bundle, dir string, also ...string) {
	t.Helper()
	left, err := Litter(dir, append(Names(t, bundle), also...))
	Must(t, err)
	if len(left) > 0 {
		t.Fatalf("left in the directory: %v", left)
	}
}

// OriginalName is what an original is called once everything is settled.
var OriginalName = regexp.MustCompile(`^[1-9][0-9]*-([0-9a-f]{64}|unread)$`)

// Litter lists what lies in dir and is neither one of the names nor what chandler means to leave in its folder.
func Litter(dir string, names []string) ([]string, error) {
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
		case parts[1] == "originals" && len(parts) == 4 && OriginalName.MatchString(parts[3]):
		default:
			left = append(left, rel)
		}
		return nil
	})
	return left, err
}

// Originals are the paths of what is kept of a name, under whatever name it is kept, oldest first: at most nine of them in the tests.
func Originals(t testing.TB, dir, name string) []string {
	t.Helper()
	return Glob(t, dir, ".chandler/originals", name, "*")
}

// Identity is what makes a file the very same one: its inode, its times, its mode, its owner, its bytes or its target.
type Identity struct {
	Kind, Content string
	Attr          string // user.ring, which the tests set
	Ino           uint64
	Mode, UID     uint32
	Mtime         int64
}

// Identify is IdentityOf where something has to stand.
func Identify(t testing.TB, path string) Identity {
	t.Helper()
	id, err := IdentityOf(path)
	Must(t, err)
	return id
}

// IdentityOf fails with fs.ErrNotExist where nothing stands.
func IdentityOf(path string) (Identity, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return Identity{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	id := Identity{Ino: st.Ino, Mode: st.Mode, UID: st.Uid, Mtime: st.Mtim.Nano()}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		if err != nil {
			return id, err
		}
		id.Kind, id.Content = "file", fmt.Sprint(st.Size, Sum(data))
		value := make([]byte, 64)
		if n, err := unix.Getxattr(path, "user.ring", value); err == nil {
			id.Attr = string(value[:n])
		}
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		if err != nil {
			return id, err
		}
		id.Kind, id.Content = "symlink", target
	case unix.S_IFDIR:
		entries, err := os.ReadDir(path)
		if err != nil {
			return id, err
		}
		for _, e := range entries {
			id.Content += e.Name() + "\n"
		}
		id.Kind = "directory"
	default:
		id.Kind, id.Content = "special", fmt.Sprint(st.Rdev)
	}
	return id, nil
}

// Kept fails unless the very file is all that is kept of a name.
func Kept(t testing.TB, dir, name string, was Identity) {
	t.Helper()
	if kept := Originals(t, dir, name); len(kept) != 1 || Identify(t, kept[0]) != was {
		t.Fatalf("%s: kept %v, want the very file that was there, alone", name, kept)
	}
}

// Tree is every name below a directory with what it stands for, times of change included, so that nothing can be done below it
// without a trace.
func Tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		found[rel] = fmt.Sprint(st.Ino, st.Mode, st.Uid, st.Nlink, st.Size, st.Mtim.Nano(), st.Ctim.Nano())
		return nil
	}))
	return found
}

// Unchanged fails if anything in a tree is another, or is new.
func Unchanged(t testing.TB, before, after map[string]string) {
	t.Helper()
	for name, was := range before {
		if after[name] != was {
			t.Errorf("%s changed: %s, was %s", name, after[name], was)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok {
			t.Errorf("%s is new", name)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}
