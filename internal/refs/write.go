package refs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"syscall"
	"time"
)

// stagingName is the directory at the root in which the new files, and copies of the old ones, wait. It keeps a second
// rewrite out, too.
const stagingName = ".chandler-refs"

// ErrStaging says that another rewrite of the tree is at work, or one was cut off and left its files.
var ErrStaging = errors.New("is there already: another rewrite is at work, or one was cut off and its old files are in it")

var (
	errChanged  = errors.New("was changed meanwhile")
	errReadOnly = errors.New("is read-only")
)

// Write brings the files of a planned Change to the tree: all or none. Each new file lies whole beside the tree's before
// the first takes its place, in one step and with the old one's mode, owner and no other time than now; if one cannot, or
// has been changed since it was read, those before it are put back with the times that they had. A process that is killed
// half way leaves ErrStaging behind.
func (t *Tree) Write(ctx context.Context, c *Change) (err error) {
	if len(c.Files) == 0 {
		return nil
	}
	if err := t.root.Mkdir(stagingName, 0o700); errors.Is(err, fs.ErrExist) {
		return &FileError{File: stagingName, Err: ErrStaging}
	} else if err != nil {
		return fmt.Errorf("make room for new files: %w", err)
	}
	w := &writer{Tree: t}
	keep := false // an old file could not be put back: its copy is all there is
	defer func() {
		if !keep {
			err = errors.Join(err, t.root.RemoveAll(stagingName))
		}
	}()
	for i, f := range c.Files {
		if err := w.prepare(ctx, i, f); err != nil {
			return &FileError{File: f.File, Err: cause(err)}
		}
	}
	for i, f := range c.Files {
		err := ctx.Err()
		if err == nil {
			err = w.publish(i, f)
		}
		if err == nil {
			continue
		}
		errs := []error{&FileError{File: f.File, Err: cause(err)}}
		for i--; i >= 0; i-- {
			if err := w.putBack(i, c.Files[i]); err != nil {
				keep = true
				errs = append(errs, &FileError{File: c.Files[i].File, Err: fmt.Errorf("put back: %w", cause(err))})
			}
		}
		return errors.Join(errs...)
	}
	return nil
}

type writer struct{ *Tree }

func newName(i int) string { return path.Join(stagingName, "new-"+strconv.Itoa(i)) }
func oldName(i int) string { return path.Join(stagingName, "old-"+strconv.Itoa(i)) }

// prepare writes the new file, and a copy of the old one that can be put back.
func (w *writer) prepare(ctx context.Context, i int, f ChangedFile) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	info, err := w.unchanged(f.File, f.Old)
	switch {
	case err != nil:
		return err
	case info.Mode().Perm()&0o222 == 0:
		return errReadOnly
	}
	if err := w.write(newName(i), f.New, info, time.Time{}); err != nil {
		return err
	}
	return w.write(oldName(i), f.Old, info, info.ModTime())
}

// publish puts the new file in its place, if the old one is still what was read.
func (w *writer) publish(i int, f ChangedFile) error {
	if _, err := w.unchanged(f.File, f.Old); err != nil {
		return err
	}
	return w.rename(newName(i), f.File)
}

// putBack puts the old file back, if the new one is still what was written.
func (w *writer) putBack(i int, f ChangedFile) error {
	if _, err := w.unchanged(f.File, f.New); err != nil {
		return err
	}
	return w.root.Rename(oldName(i), f.File)
}

// unchanged holds a file to the bytes that it should have.
func (w *writer) unchanged(name string, want []byte) (fs.FileInfo, error) {
	info, err := w.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errChanged
	}
	got, err := w.read(name)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(got, want) {
		return nil, errChanged
	}
	return info, nil
}

// write makes a file with the mode and owner that info says and, unless it is zero, a time.
func (w *writer) write(name string, data []byte, info fs.FileInfo, at time.Time) (err error) {
	f, err := w.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := keepOwner(f, info); err != nil {
		return err
	}
	if err := f.Chmod(info.Mode().Perm()); err != nil {
		return err
	}
	if !at.IsZero() {
		if err := w.root.Chtimes(name, at, at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// keepOwner gives f the owner that info says.
func keepOwner(f *os.File, info fs.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	want, ok1 := info.Sys().(*syscall.Stat_t)
	have, ok2 := now.Sys().(*syscall.Stat_t)
	if !ok1 || !ok2 || want.Uid == have.Uid && want.Gid == have.Gid {
		return nil
	}
	return f.Chown(int(want.Uid), int(want.Gid))
}
