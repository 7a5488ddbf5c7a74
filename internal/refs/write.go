package refs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"
	"time"
)

// stagingName is the directory at the root in which the new files, and copies of the old ones, wait, each under its path.
// It keeps a second rewrite out, too. The copies are in oldName only when all of them are whole.
const (
	stagingName = ".chandler-refs"
	newName     = stagingName + "/new"
	copyName    = stagingName + "/copies"
	oldName     = stagingName + "/old"
	doneName    = stagingName + "/done"
)

// ErrStaging says that another rewrite of the tree is at work, or one was cut off and left its files.
var ErrStaging = errors.New("is there already: another rewrite is at work, or one was cut off")

var (
	errChanged  = errors.New("was changed meanwhile")
	errReadOnly = errors.New("is read-only")
)

// Write brings the files of a planned Change to the tree: all or none. Each new file lies whole beside the tree's before
// the first takes its place, in one step and with the old one's mode and owner. If one cannot, or has been changed since it
// was read, or ctx ends, those before it are put back with the times that they had. A process that is killed half way
// leaves what the next one refuses as ErrStaging.
func (t *Tree) Write(ctx context.Context, c *Change) error {
	if len(c.Files) == 0 {
		return nil
	}
	if err := t.root.Mkdir(stagingName, 0o700); errors.Is(err, fs.ErrExist) {
		return &FileError{File: stagingName, Err: ErrStaging}
	} else if err != nil {
		return fmt.Errorf("make room for new files: %w", err)
	}
	err := t.prepareAll(ctx, c.Files)
	if err == nil {
		var kept bool
		if kept, err = t.publishAll(ctx, c.Files); kept {
			return err
		}
	}
	if rest := t.root.RemoveAll(stagingName); rest != nil {
		if err == nil {
			rest = fmt.Errorf("every file is rewritten, but %s could not be removed: %w", stagingName, rest)
		}
		err = errors.Join(err, rest)
	}
	return err
}

// prepareAll writes the new files, and copies of the old ones that can be put back.
func (t *Tree) prepareAll(ctx context.Context, files []ChangedFile) error {
	for _, f := range files {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := t.prepare(f); err != nil {
			return &FileError{File: f.File, Err: cause(err)}
		}
	}
	if err := t.root.Rename(copyName, oldName); err != nil {
		return fmt.Errorf("keep old files: %w", err)
	}
	return nil
}

// publishAll puts the new files in their places, or else the old ones back. kept says that one could not be, so that its
// copy is all there is.
func (t *Tree) publishAll(ctx context.Context, files []ChangedFile) (kept bool, err error) {
	for i, f := range files {
		if err = ctx.Err(); err == nil {
			if err = t.publish(f); err == nil {
				continue
			}
			err = &FileError{File: f.File, Err: cause(err)}
		}
		for _, f := range slices.Backward(files[:i]) {
			if failed := t.putBack(f); failed != nil {
				kept = true
				err = errors.Join(err, &FileError{File: f.File, Err: fmt.Errorf("put back: %w", cause(failed))})
			}
		}
		return kept, err
	}
	// What is cut off from here on is done: half of the old files would be no tree to go back to.
	return false, t.root.Rename(oldName, doneName)
}

// prepare writes the new file, and a copy of the old one that can be put back.
func (t *Tree) prepare(f ChangedFile) error {
	info, err := t.unchanged(f.File, f.Old)
	switch {
	case err != nil:
		return err
	case info.Mode().Perm()&0o222 == 0:
		return errReadOnly
	}
	if err := t.writeStaged(path.Join(newName, f.File), f.New, info, time.Time{}); err != nil {
		return err
	}
	return t.writeStaged(path.Join(copyName, f.File), f.Old, info, info.ModTime())
}

// publish puts the new file in its place, if the old one is still what was read.
func (t *Tree) publish(f ChangedFile) error {
	if _, err := t.unchanged(f.File, f.Old); err != nil {
		return err
	}
	return t.rename(path.Join(newName, f.File), f.File)
}

// putBack puts the old file back, if the new one is still what was written.
func (t *Tree) putBack(f ChangedFile) error {
	if _, err := t.unchanged(f.File, f.New); err != nil {
		return err
	}
	return t.root.Rename(path.Join(oldName, f.File), f.File)
}

// unchanged holds a file to the bytes that it should have.
func (t *Tree) unchanged(name string, want []byte) (fs.FileInfo, error) {
	info, err := t.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errChanged
	}
	got, err := t.read(name)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(got, want) {
		return nil, errChanged
	}
	return info, nil
}

// writeStaged makes a file with the mode and owner that info says and, unless it is zero, a time.
func (t *Tree) writeStaged(name string, data []byte, info fs.FileInfo, at time.Time) (err error) {
	if err := t.root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	f, err := t.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
		if err := t.root.Chtimes(name, at, at); err != nil {
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
	if err := f.Chown(int(want.Uid), int(want.Gid)); err != nil {
		return fmt.Errorf("keep owner %d:%d: %w", want.Uid, want.Gid, cause(err))
	}
	return nil
}
