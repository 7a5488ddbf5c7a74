package refs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
)

// found is a file of the whole tree, as the searches see it.
type found struct {
	path   string
	src    []byte // what the file holds; of a gzip file, what that holds
	packed bool
}

// name is the file's name in messages.
func (f found) name() string {
	if f.packed {
		return f.path + " (unpacked)"
	}
	return f.path
}

// search hands every regular file of the tree that no glob ignores and skip does not pass over to visit, in order, and to
// fail what cannot be searched. edited are the bytes that a file is to have, where they differ.
func (t *Tree) search(ctx context.Context, skip func(string) bool, edited map[string][]byte, visit func(found), fail func(name string, err error)) error {
	return fs.WalkDir(t.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case d != nil && d.IsDir() && (outOfTree(name) || t.config.ignores(name)):
			return fs.SkipDir
		case t.config.ignores(name) || skip(name):
			return nil
		case err != nil:
			fail(name, cause(err))
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			// Where it stays in the tree, what it leads to is searched in its own place.
			if _, err := t.root.Stat(name); err != nil {
				if _, err := os.Stat(path.Join(t.root.Name(), name)); err == nil {
					fail(name, errOutside)
				}
			}
			return nil
		case !d.Type().IsRegular():
			return nil
		}
		src, ok := edited[name]
		if !ok {
			if src, err = t.read(name); err != nil {
				fail(name, cause(err))
				return nil
			}
		}
		content, packed, err := unpack(src)
		if err != nil {
			fail(name, err)
			return nil
		}
		visit(found{name, content, packed})
		return nil
	})
}

var errOutside = errors.New("is a symbolic link out of the tree, and is not looked into")

// vendored reports whether a path is below a package's charts/.
func vendored(name string) bool {
	parts := strings.Split(name, "/")
	for i := 2; i < len(parts)-1; i++ {
		if parts[i] == "charts" {
			return true
		}
	}
	return false
}

// prose reports whether a file speaks of images without pulling them, or is written by a tool.
func prose(name string) bool {
	base := strings.ToLower(path.Base(name))
	switch path.Ext(base) {
	case ".md", ".markdown", ".mdx", ".lock":
		return true
	}
	return base == "go.sum" || strings.Contains(base, "-lock.") || strings.Contains(base, ".lock.")
}
