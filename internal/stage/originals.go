package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
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

// Originals lists what is kept, by name and number. It changes nothing. Errors are *BinDirError, *UnknownNamesError or the
// context's.
func Originals(ctx context.Context, o RestoreOptions) ([]Original, error) {
	o.DryRun = true
	var list []Original
	err := withOriginals(ctx, o, nil, func(s *store, slot *hostdir.Dir, name string, kept []original) error {
		for _, k := range kept {
			about, err := k.describe(slot, name)
			if errors.Is(err, fs.ErrNotExist) {
				continue // put back, or pushed out, meanwhile
			}
			if err != nil {
				return err
			}
			list = append(list, about)
		}
		return ctx.Err()
	})
	return list, err
}

// Purge drops what is kept, for good, and returns what it dropped, also with an error. What is staged stays, and can then not
// be restored. It takes the bin dir's lock. Errors are those of Originals.
func Purge(ctx context.Context, o RestoreOptions) (dropped []Original, warnings []string, err error) {
	warn := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	err = withOriginals(ctx, o, warn, func(s *store, slot *hostdir.Dir, name string, kept []original) error {
		if len(kept) == 0 {
			return nil
		}
		// Before its originals: a name under which somebody's file stood must not pass for one under which nothing did.
		if err := s.unmarkAbsent(name); err != nil {
			return err
		}
		var errs []error
		for _, k := range kept {
			about, err := k.describe(slot, name)
			if err == nil {
				err = slot.Remove(k.file)
			}
			if err == nil {
				dropped = append(dropped, about)
			}
			errs = append(errs, err)
		}
		if err := errors.Join(append(errs, syncDir(slot), ctx.Err())...); err != nil {
			return err
		}
		s.originals.RemoveDir(name) // what is in it and no original stays
		return nil
	})
	return dropped, warnings, err
}

// withOriginals calls do with the originals of each name, and its folder. A dry run neither waits for the lock nor clears up.
func withOriginals(ctx context.Context, o RestoreOptions, warn func(string, ...any),
	do func(s *store, slot *hostdir.Dir, name string, kept []original) error) error {
	target := o.target()
	fail := func(err error) error {
		var binDir *BinDirError
		if err == nil || ctx.Err() != nil || errors.As(err, &binDir) {
			return err
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
	s, err := openStore(dir, !o.DryRun)
	defer s.close()
	if err != nil {
		return fail(err)
	}
	if !o.DryRun {
		s.clear(ctx, warn)
	}
	names, err := s.names()
	if err != nil {
		return fail(err)
	}
	if names, err = chosen(names, o.Only); err != nil {
		return err
	}
	// One name's failure stops no other's.
	var first error
	for _, name := range names {
		t := &takeback{name: name}
		kept, err := t.openSlot(ctx, s)
		if err == nil {
			err = do(s, t.slot, name, kept)
		}
		if first == nil {
			first = err
		}
	}
	return fail(first)
}

func (k original) describe(slot *hostdir.Dir, name string) (Original, error) {
	e, err := slot.Stat(k.file)
	if err != nil {
		return Original{}, err
	}
	about := Original{
		Name: name, Number: k.n, Kind: e.Kind, Size: e.Size, SHA256: k.digest, Kept: e.Changed.UTC().Truncate(time.Second),
		Path: path.Join(storeName, originalsName, name, k.file),
	}
	if e.Kind == hostdir.Symlink {
		about.Target, err = slot.Readlink(k.file)
		return about, err
	}
	d, _ := describe(slot.OpenFile(k.file)) // for telling only
	about.Build = d.Build()
	return about, nil
}
