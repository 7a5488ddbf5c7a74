package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
)

// entry is one name in a layer. All of them belong to root.
type entry struct {
	path   string      // in the image, without the slash in front
	mode   fs.FileMode // the type (none for a file, fs.ModeDir, fs.ModeSymlink) and the permissions
	target string      // of a symbolic link
	same   string      // of a hard link: the path of the entry that holds the bytes
	data   []byte      // of a file, if source is empty
	source string      // of a file: where its bytes are on this machine
	size   int64       // of a file, in bytes; 0 for a hard link
}

func folder(path string, perm fs.FileMode) entry { return entry{path: path, mode: fs.ModeDir | perm} }

func file(path string, data []byte) entry {
	return entry{path: path, mode: 0o644, data: data, size: int64(len(data))}
}

// program is an executable that is at source on this machine.
func program(path, source string) (entry, error) {
	info, err := os.Stat(source)
	if err != nil {
		return entry{}, err
	}
	if !info.Mode().IsRegular() {
		return entry{}, &fs.PathError{Op: "read", Path: source, Err: errors.New("not a regular file")}
	}
	return entry{path: path, mode: 0o755, source: source, size: info.Size()}, nil
}

// tree is everything under a directory of this machine, at a path in the image. Names of one inode stay names of one
// inode. Permissions are 0755 for a directory and what perm says for a file, whatever they are here. A symbolic link, or
// anything else that is neither, is an error.
func tree(at, dir string, perm func(name string) fs.FileMode) ([]entry, error) {
	type inode struct{ dev, ino uint64 }
	type found struct {
		entry
		inode
	}
	dir, err := filepath.EvalSymlinks(dir) // the directory itself may be named by a link; nothing below it may be one
	if err != nil {
		return nil, err
	}
	var all []found
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := path.Join(at, filepath.ToSlash(rel))
		st, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case d.IsDir():
			all = append(all, found{entry: folder(name, 0o755)})
		case !info.Mode().IsRegular() || !ok:
			return &fs.PathError{Op: "read", Path: p, Err: errors.New("not a regular file")}
		default:
			e := entry{path: name, mode: perm(filepath.ToSlash(rel)), source: p, size: info.Size()}
			all = append(all, found{e, inode{uint64(st.Dev), st.Ino}})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The first in the order of a layer holds the bytes.
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.path, b.path) })
	first := make(map[inode]string)
	entries := make([]entry, len(all))
	for i, f := range all {
		if f.source != "" {
			if same, ok := first[f.inode]; ok {
				f.same, f.source, f.size = same, "", 0
			} else {
				first[f.inode] = f.path
			}
		}
		entries[i] = f.entry
	}
	return entries, nil
}

// layer is a compressed tar archive in memory, whose bytes depend on nothing but its entries and the one time they have.
type layer struct {
	name           string
	entries        []entry
	gz             []byte
	digest, diffID v1.Hash
	size           int64 // of the archive, in bytes
}

// newLayer makes a layer of the entries, in order of their paths, with the directories above each.
//
// The compressor is a pinned dependency and not the standard library's, whose output may change with the toolchain.
func newLayer(ctx context.Context, name string, entries []entry, at time.Time) (*layer, error) {
	entries, err := withFolders(entries)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	compressed, plain := sha256.New(), sha256.New()
	gz, err := gzip.NewWriterLevel(io.MultiWriter(&out, compressed), gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	size := &counter{}
	archive := tar.NewWriter(io.MultiWriter(gz, plain, size))
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := e.write(archive, at); err != nil {
			return nil, fmt.Errorf("archive /%s: %w", e.path, err)
		}
	}
	if err := errors.Join(archive.Close(), gz.Close()); err != nil {
		return nil, err
	}
	return &layer{name: name, entries: entries, gz: out.Bytes(), digest: sum(compressed), diffID: sum(plain), size: size.n}, nil
}

// withFolders puts the entries in order, each behind the directories above it.
func withFolders(entries []entry) ([]entry, error) {
	byPath := make(map[string]entry)
	for _, e := range entries {
		if !fs.ValidPath(e.path) || e.path == "." {
			return nil, fmt.Errorf("path %q is none in an image", e.path)
		}
		if other, ok := byPath[e.path]; ok && !(e.mode.IsDir() && other.mode == e.mode) {
			return nil, fmt.Errorf("/%s is there twice", e.path)
		}
		byPath[e.path] = e
	}
	for _, e := range entries {
		for dir := path.Dir(e.path); dir != "."; dir = path.Dir(dir) {
			above, ok := byPath[dir]
			if ok && !above.mode.IsDir() {
				return nil, fmt.Errorf("/%s is below /%s, which is no directory", e.path, dir)
			}
			if !ok {
				byPath[dir] = folder(dir, 0o755)
			}
		}
		if same, ok := byPath[e.same]; e.same != "" && (!ok || same.same != "" || !same.mode.IsRegular() || e.same > e.path) {
			return nil, fmt.Errorf("/%s is a link to /%s, which is no file before it", e.path, e.same)
		}
	}
	// A directory comes before what is in it, since its path is the beginning of theirs.
	return slices.SortedFunc(maps.Values(byPath), func(a, b entry) int { return cmp.Compare(a.path, b.path) }), nil
}

func (e entry) write(archive *tar.Writer, at time.Time) error {
	h := &tar.Header{Name: e.path, Mode: int64(e.mode.Perm()), ModTime: at, Typeflag: tar.TypeReg, Size: e.size}
	if e.mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, e.path+"/"
	case e.mode&fs.ModeSymlink != 0:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.target
	case e.same != "":
		h.Typeflag, h.Linkname = tar.TypeLink, e.same
	}
	if err := archive.WriteHeader(h); err != nil {
		return err
	}
	if e.source == "" {
		_, err := archive.Write(e.data)
		return err
	}
	f, err := os.Open(e.source)
	if err != nil {
		return err
	}
	defer f.Close()
	// A file that grew or shrank since it was looked at is an error: of the copy, or of the next header.
	if _, err := io.Copy(archive, f); err != nil {
		return err
	}
	return archive.Flush()
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func sum(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// The rest makes it a v1.Layer.

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layer) Size() (int64, error)                { return int64(len(l.gz)), nil }
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }

func (l *layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.gz)), nil
}

func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return gzip.NewReader(bytes.NewReader(l.gz))
}
