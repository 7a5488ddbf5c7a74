// Package refs is the one place that knows where an image reference can live in a packages tree, <root>/<group>/<package>/.
// It lists every reference, holds them to the tree's rules, and moves a version's tag in place.
//
// docs/image-references.md describes the places for people. Nothing is read or written through a symbolic link.
package refs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Shape is how a reference is written down.
type Shape string

// The shapes. The first five are found in values.yaml.
const (
	ShapeScalar  Shape = "scalar"     // repo[:tag]@sha256:digest
	ShapeDigest  Shape = "map-digest" // repository or image, and digest; registry and tag may be there
	ShapeTag     Shape = "map-tag"    // repository or image, and tag: <tag>@sha256:digest; registry may be there
	ShapeGlobal  Shape = "global"     // global.registry.address, and global.images.<name> as one of the two above
	ShapeOCI     Shape = "oci"        // platformSourceUrl: oci://<repo>, and platformSourceRef: digest=sha256:digest
	ShapeTagFile Shape = "tag-file"   // images/*.tag
	ShapeText    Shape = "text"       // in a declared file
)

// Reference is one image reference. One that is shared through a YAML anchor stands once, where the anchor is.
type Reference struct {
	File   string `json:"file"`   // below the root, with slashes
	Line   int    `json:"line"`   // of the digest, or of the tag where there is none; from 1
	Column int    `json:"column"` // the same, in bytes from 1
	Shape  Shape  `json:"shape"`

	// Registry and Repository are the full name, docker.io and library/ filled in. Of an incomplete reference Registry is
	// empty, and Repository what stands where the name should be.
	Registry   string `json:"registry"`
	Repository string `json:"repository"`
	Tag        string `json:"tag"`
	Digest     string `json:"digest"` // as written: it may be malformed
	Incomplete bool   `json:"incomplete"`

	tag, digest span   // in the file's bytes; none where the text is not there as it is
	also        []span // other places that spell the same digest
	plain       bool   // the tag is a plain YAML scalar by itself: its text decides its type
}

// Name is the image without tag and digest.
func (r Reference) Name() string {
	if r.Registry == "" {
		return r.Repository
	}
	return r.Registry + "/" + r.Repository
}

// String is the reference as a registry's client takes it, where it is complete.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// span is a range of a file's bytes. The zero span is none: no reference starts a file and is empty.
type span struct{ start, end int }

func (s span) none() bool { return s == span{} }

// FileError says that a file cannot be read for what it should be. File is below the root; Line may be 0.
type FileError struct {
	File string
	Line int
	Err  error
}

func (e *FileError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err)
	}
	return e.File + ": " + e.Err.Error()
}

func (e *FileError) Unwrap() error { return e.Err }

var (
	errNoReference = errors.New("holds no reference")
	errMissing     = errors.New("is declared and missing")
	errLink        = errors.New("is a symbolic link, and links are not followed")
	errNotRegular  = errors.New("is not a regular file")
	errSize        = fmt.Errorf("is larger than %d MiB", maxFile>>20)
)

// maxFile is how much of a file, or of what a gzip file holds, is read into memory. What is larger is an error: it is
// never passed over.
const maxFile = 64 << 20

// Tree is a packages tree. Its methods may be called one after the other, not at once.
type Tree struct {
	config Config
	root   *os.Root
	rename func(from, to string) error // of root; tests make it fail
}

// Open opens the tree in the directory at path. Without files: in config, only the places that need no declaring are known.
func Open(path string, config Config) (*Tree, error) {
	if err := config.check(); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &Tree{config: config, root: root, rename: root.Rename}, nil
}

// Close closes the tree.
func (t *Tree) Close() error { return t.root.Close() }

// List returns every reference in ascending order of file and position. An error joins a *FileError for each file that
// should have been readable and was not; the references of the others, and what could be read of these, are returned
// with it.
func (t *Tree) List(ctx context.Context) ([]Reference, error) {
	all := []Reference{}
	err := t.each(ctx, func(f *file) { all = append(all, f.refs...) })
	return all, err
}

// place is a file that references live in.
type place struct {
	path     string
	kind     kind
	declared bool
}

type kind int

const (
	kindText    kind = iota // declared, and nothing else
	kindValues              // <group>/<package>/values.yaml
	kindTagFile             // <group>/<package>/images/*.tag
)

// file is what was read of a place.
type file struct {
	place
	*scanner // its references are in the order of their positions
}

// each reads every place and hands it to visit in order. It goes on past what cannot be read, and returns it as List does.
func (t *Tree) each(ctx context.Context, visit func(*file)) error {
	places, errs := t.places(ctx)
	type read struct {
		file *file
		err  error
	}
	// Files are parsed on every processor; no more of them are at hand than that.
	workers := runtime.GOMAXPROCS(0)
	running := make(chan struct{}, workers)
	next := make(chan chan read, workers)
	go func() {
		defer close(next)
		for _, p := range places {
			if ctx.Err() != nil {
				return
			}
			done := make(chan read, 1)
			next <- done
			running <- struct{}{}
			go func() {
				defer func() { <-running }()
				src, err := t.read(p.path)
				if err != nil {
					done <- read{err: &FileError{File: p.path, Err: cause(err)}}
					return
				}
				done <- read{file: scan(p, src)}
			}()
		}
	}()
	for done := range next {
		r := <-done
		if r.err != nil {
			errs = append(errs, r.err)
			continue
		}
		for _, err := range r.file.errs {
			errs = append(errs, err)
		}
		visit(r.file)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errs...)
}

// scan finds the references in the bytes of a place.
func scan(p place, src []byte) *file { return scanWith(p, src, valuesShapes) }

func scanWith(p place, src []byte, shapes []valuesShape) *file {
	var s *scanner
	switch p.kind {
	case kindValues:
		s = scanValues(src, shapes)
	case kindTagFile:
		s = scanTagFile(src)
	default:
		s = newScanner(src)
	}
	if p.declared {
		s.scanText()
	}
	for _, err := range s.errs {
		err.File = p.path
	}
	for _, list := range [][]Reference{s.refs, s.bare} {
		for i := range list {
			list[i].File = p.path
		}
		slices.SortStableFunc(list, func(a, b Reference) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
	}
	return &file{p, s}
}

// places lists the files that references live in, in ascending order, without reading them.
func (t *Tree) places(ctx context.Context) ([]place, []error) {
	var places []place
	var errs []error
	fail := func(name string, err error) { errs = append(errs, &FileError{File: name, Err: cause(err)}) }
	// folders are the directories in dir. A link to one is refused: what it holds would be hidden.
	folders := func(dir string) (names []string) {
		entries, err := fs.ReadDir(t.root.FS(), dir)
		if err != nil {
			fail(dir, err)
		}
		for _, e := range entries {
			name := path.Join(dir, e.Name())
			switch {
			case outOfTree(name):
			case e.IsDir():
				names = append(names, name)
			case e.Type()&fs.ModeSymlink != 0 && t.toDir(name) && !t.config.ignores(name):
				fail(name, errLink)
			}
		}
		return names
	}
	add := func(name string, e fs.DirEntry, kind kind) {
		switch {
		case e.Type().IsRegular():
			places = append(places, place{path: name, kind: kind})
		case e.Type()&fs.ModeSymlink == 0:
			fail(name, errNotRegular)
		case !t.config.ignores(name):
			fail(name, errLink)
		}
	}
	for _, group := range folders(".") {
		for _, pkg := range folders(group) {
			if ctx.Err() != nil {
				return nil, []error{ctx.Err()}
			}
			entries, err := fs.ReadDir(t.root.FS(), pkg)
			if err != nil {
				fail(pkg, err)
			}
			for _, e := range entries {
				name := path.Join(pkg, e.Name())
				switch {
				case e.Name() == valuesName:
					add(name, e, kindValues)
				case e.Name() != imagesName:
				case e.Type()&fs.ModeSymlink != 0 && t.toDir(name) && !t.config.ignores(name):
					fail(name, errLink)
				case e.IsDir():
					images, err := fs.ReadDir(t.root.FS(), name)
					if err != nil {
						fail(name, err)
					}
					for _, e := range images {
						if path.Ext(e.Name()) == tagFileExt {
							add(path.Join(name, e.Name()), e, kindTagFile)
						}
					}
				}
			}
		}
	}
	for _, name := range t.config.Files {
		if err := t.checkDeclared(name); err != nil {
			fail(name, err)
			continue
		}
		if i := slices.IndexFunc(places, func(p place) bool { return p.path == name }); i >= 0 {
			places[i].declared = true
		} else {
			places = append(places, place{path: name, declared: true})
		}
	}
	slices.SortFunc(places, func(a, b place) int { return strings.Compare(a.path, b.path) })
	return places, errs
}

const (
	valuesName = "values.yaml"
	imagesName = "images"
	tagFileExt = ".tag"
)

// outOfTree reports whether a directory is no part of the tree: a repository's own, or a rewrite's.
func outOfTree(name string) bool { return path.Base(name) == ".git" || name == stagingName }

// toDir reports whether the link at name leads to a directory, in the tree or out of it.
func (t *Tree) toDir(name string) bool {
	info, err := os.Stat(path.Join(t.root.Name(), name))
	return err == nil && info.IsDir()
}

// checkDeclared refuses a declared file that is not regular, or is reached through a link: under two names it would be
// listed, and edited, twice.
func (t *Tree) checkDeclared(name string) error {
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		info, err := t.root.Lstat(name[:i])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return errMissing
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			return errLink
		case i == len(name) && !info.Mode().IsRegular():
			return errNotRegular
		}
	}
	return nil
}

// read returns the bytes of a regular file.
func (t *Tree) read(name string) ([]byte, error) {
	f, err := t.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errNotRegular
	}
	return readAll(f, info.Size())
}

// cause drops the path from a path error: a FileError names it below the root.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
