package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/chandler-cni/chandler/internal/hostdir"
)

// Original is a file that staging replaced and has kept.
type Original struct {
	Name   string       `json:"name"`
	Number int          `json:"number"` // the newest of a name has the highest
	Kind   hostdir.Kind `json:"kind"`   // file or symlink
	Target string       `json:"target,omitempty"`
	Size   int64        `json:"size"`   // bytes
	SHA256 string       `json:"sha256"` // when it was replaced; "unread" if it could not be read then
	Build  string       `json:"build,omitempty"`
	Kept   time.Time    `json:"kept"` // since when: the inode's last change
	Path   string       `json:"path"` // below the bin dir
}

// OriginalError says that one original, or what is known of one name's, could not be listed or dropped.
type OriginalError struct {
	Name string // of the plugin
	Path string // below the bin dir: of the original, or of what is in the way
	Err  error
}

func (e *OriginalError) Error() string { return fmt.Sprintf("%s: %s: %s", e.Name, e.Path, e.Cause()) }
func (e *OriginalError) Unwrap() error { return e.Err }

// Cause is why, without the path.
func (e *OriginalError) Cause() string { return errnoText(e.Err) }

// OriginalErrors are all that could not be listed or dropped, in the order of their names. All others were.
type OriginalErrors []*OriginalError

func (e OriginalErrors) Error() string {
	var lines []string
	for _, one := range e {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

func (e OriginalErrors) Unwrap() []error {
	var errs []error
	for _, one := range e {
		errs = append(errs, one)
	}
	return errs
}

// removeOriginal is what tests make fail.
var removeOriginal = (*hostdir.Dir).Remove

// Originals lists what is kept, by name and number. It changes nothing. Errors are *BinDirError, *UnknownNamesError or the
// context's, with which nothing is listed, or OriginalErrors.
func Originals(ctx context.Context, o RestoreOptions) ([]Original, error) {
	o.DryRun = true
	var list []Original
	err := withOriginals(ctx, o, nil, func(s *store, slot *hostdir.Dir, name string, kept []original) (failed OriginalErrors) {
		for _, k := range kept {
			about, err := k.describe(slot, name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // put back, or pushed out, meanwhile
			}
			if err != nil {
				failed = append(failed, &OriginalError{name, k.path(name), err})
				continue
			}
			list = append(list, about)
		}
		return failed
	})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return list, err
}

// Purge drops what is kept, for good, and returns what it dropped, also with an error. What is staged stays, and can then not
// be restored. It takes the bin dir's lock. Errors are those of Originals, or OriginalErrors and the context's joined.
func Purge(ctx context.Context, o RestoreOptions) (dropped []Original, warnings []string, err error) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	err = withOriginals(ctx, o, warn, func(s *store, slot *hostdir.Dir, name string, kept []original) (failed OriginalErrors) {
		if len(kept) == 0 {
			return nil
		}
		fail := func(path string, err error) { failed = append(failed, &OriginalError{name, path, err}) }
		// Before its originals: a name under which somebody's file stood must not pass for one under which nothing did.
		if err := s.unmarkAbsent(name); err != nil {
			fail(path.Join(storeName, stagedName, mark(name, absentMark)), err)
			return failed
		}
		for _, k := range kept {
			about, err := k.describe(slot, name)
			if err == nil {
				err = removeOriginal(slot, k.file)
			}
			if errors.Is(err, fs.ErrNotExist) {
				continue // pushed out meanwhile
			}
			if err != nil {
				fail(k.path(name), err)
				continue
			}
			dropped = append(dropped, about)
		}
		if err := syncDir(slot); err != nil {
			fail(slotPath(name), err)
		}
		if len(failed) == 0 {
			s.originals.RemoveDir(name) // what is in it and no original stays
		}
		return failed
	})
	return dropped, warnings, err
}

// withOriginals calls do with the originals of each name, and its folder, until ctx ends. A dry run neither waits for the lock nor
// clears up.
func withOriginals(ctx context.Context, o RestoreOptions, warn func(string, ...any),
	do func(s *store, slot *hostdir.Dir, name string, kept []original) OriginalErrors) error {
	target := o.target()
	fail := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &BinDirError{target.shown(), err}
	}
	dir, err := openBinDir(target)
	if err != nil {
		return err
	}
	defer dir.Close()
	if !o.DryRun {
		if err := lockOrRefuse(ctx, dir, target, warn); err != nil {
			return err
		}
	}
	s, err := openStore(ctx, dir, !o.DryRun)
	defer s.close()
	if err != nil {
		return fail(err)
	}
	if !o.DryRun {
		s.heal(warn)
		s.clear(ctx, warn)
	}
	names, err := s.names()
	if err != nil {
		return fail(err)
	}
	if names, err = chosen(names, nil, o.Only); err != nil {
		return err
	}
	// One name's failure stops no other's.
	var failed OriginalErrors
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		t := &takeback{name: name}
		kept, err := t.openSlot(ctx, s)
		switch {
		case err == nil:
			failed = append(failed, do(s, t.slot, name, kept)...)
		case ctx.Err() == nil:
			failed = append(failed, &OriginalError{name, slotPath(name), err})
		}
	}
	if !o.DryRun && !s.accompanied() {
		// A folder that holds nothing any more need not wait for a restoring.
		if empty, err := s.empty(nil); err == nil && empty {
			if err := s.dismantle(); err != nil {
				warn("%s", located(dir, err))
			}
		}
	}
	if len(failed) == 0 {
		return ctx.Err()
	}
	return errors.Join(failed, ctx.Err())
}

// slotPath is where the originals of a name lie, below the bin dir.
func slotPath(name string) string { return path.Join(storeName, originalsName, name) }

func (k original) path(name string) string { return path.Join(slotPath(name), k.file) }

func (k original) describe(slot *hostdir.Dir, name string) (Original, error) {
	e, err := slot.Stat(k.file)
	if err != nil {
		return Original{}, err
	}
	about := Original{
		Name: name, Number: k.n, Kind: e.Kind, Size: e.Size, SHA256: k.digest, Kept: e.Changed.UTC().Truncate(time.Second), Path: k.path(name),
	}
	if e.Kind == hostdir.Symlink {
		about.Target, err = slot.Readlink(k.file)
		return about, err
	}
	d, _ := describe(slot.OpenFile(k.file)) // for telling only
	about.Build = d.Build()
	return about, nil
}
