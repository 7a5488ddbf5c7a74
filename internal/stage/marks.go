package stage

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// The marks in the folder's staged tell what is ours: <name>@<digest> says that staging has published this digest under this name,
// <name>@absent that nothing stood there when it did.

func mark(name, what string) string { return name + "@" + what }

// markedName is the name that a mark speaks of; empty if it is no mark.
func markedName(m string) string {
	if at := strings.LastIndexByte(m, '@'); at > 0 && plugin.CheckName(m[:at]) == nil {
		return m[:at]
	}
	return ""
}

// marksOf returns the marks of made that speak of the plugin name.
func marksOf(made []string, name string) []string {
	var of []string
	for _, m := range made {
		if strings.HasPrefix(m, mark(name, "")) {
			of = append(of, m)
		}
	}
	return of
}

// ours says whether the file of this digest and entry under name is one that staging put there. That somebody has given it another
// mode or owner since does not make it theirs: it would be taken for an original, and put back over the real one.
// The marks are looked at when it is asked, so that what another run has published since this one began counts as well.
// An error says why that cannot be found out.
func (s *store) ours(name, digest string, e hostdir.Entry) (bool, error) {
	if e.Kind != hostdir.File || digest == unreadDigest {
		return false, nil
	}
	if s.staged == nil {
		return s.isLost(mark(name, digest)), nil
	}
	_, err := s.staged.Stat(mark(name, digest))
	if errors.Is(err, fs.ErrNotExist) {
		return s.isLost(mark(name, digest)), nil
	}
	return err == nil, err
}

// findLost finds the marks that are gone though the very file stands under their name of which the ledger has it that staging put it
// there. They count as if they were there.
func (s *store) findLost(ctx context.Context) {
	l, err := s.readLedger()
	if err != nil {
		return // there is nothing to go by
	}
	var marks []string
	if s.staged != nil {
		if marks, err = s.staged.Names(); err != nil {
			return
		}
	}
	for name, e := range l.Plugins {
		m := mark(name, e.SHA256)
		// The bytes alone may be an original's, back since the ledger was written.
		if markedName(m) != name || slices.Contains(marks, m) || !s.stands(ctx, name, e.SHA256, e.isOf) {
			continue
		}
		s.lost = append(s.lost, m)
		if absent := mark(name, absentMark); e.Before == Absent && !slices.Contains(marks, absent) {
			s.lost = append(s.lost, absent)
		}
	}
	slices.Sort(s.lost)
}

// isLost says whether a mark counts without being there.
func (s *store) isLost(m string) bool { return slices.Contains(s.lost, m) }

// heal makes the lost marks again. Where that fails they go on counting as if they were there.
func (s *store) heal(warn func(format string, args ...any)) {
	if len(s.lost) == 0 {
		return
	}
	var names []string
	for _, m := range s.lost {
		names = append(names, markedName(m))
	}
	names = slices.Compact(names)
	_, err := s.mark(s.lost...)
	if err == nil {
		err = syncDir(s.staged)
	}
	if err != nil {
		warn("marks of %s are gone, and could not be made again: %s", someOf(names), located(s.bin, err))
		return
	}
	s.lost = nil
	warn("marks of %s were gone from %s, and were made again as the ledger has it", someOf(names), path.Join(storeName, stagedName))
}

// oursIn is ours of a file that has to do with an exchange under way. Before the exchange the swap name has our new file, with the
// digest that the name says; after it, perhaps our last one. A digest that is not known proves nothing; nor does the mark of a
// digest that is being published for the first time, of bytes that were somebody's before.
func (s *store) oursIn(swap, name, digest string, e hostdir.Entry) (bool, error) {
	if digest != unreadDigest && digest == swapDigest(swap) && (exact(e) || first(swap)) {
		return exact(e), nil
	}
	return s.ours(name, digest, e)
}

// mark records, durably once the directory of the marks is synced, that this run is about to publish these digests under
// these names. It returns the marks that were not there before, also with an error.
func (s *store) mark(names ...string) (made []string, err error) {
	if !s.hasMarks {
		renew(&s.staged)
		s.hasMarks = true
	}
	staged, err := s.open(&s.staged, stagedName)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		f, err := staged.Create(name)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return made, err
		}
		made = append(made, name)
		if err := f.Close(); err != nil {
			return made, err
		}
	}
	return made, nil
}

// remark makes sure of marks of what has been published: another run, which has come to nothing, or a restoring may have taken them
// away meanwhile.
func (s *store) remark(names ...string) error {
	renew(&s.dir, &s.staged)
	made, err := s.mark(names...)
	if err != nil || len(made) == 0 {
		return err
	}
	return syncDir(s.staged)
}

// marked says whether staging knows that it has put something under name.
func (s *store) marked(name string) (bool, error) {
	names, err := s.markedNames()
	return slices.Contains(names, name), err
}

// unmarkAbsent forgets, durably, that nothing stood under name once.
func (s *store) unmarkAbsent(name string) error {
	s.lost = slices.DeleteFunc(s.lost, func(m string) bool { return m == mark(name, absentMark) })
	if s.staged == nil {
		return nil
	}
	err := s.removeMark(mark(name, absentMark))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(s.staged)
}

// speaks says whether what stands under a mark's name is one of ours that the mark speaks of, as staging leaves it; or that this cannot be
// found out.
func (s *store) speaks(ctx context.Context, m string) bool {
	name := markedName(m)
	e, digest, err := s.current(ctx, name)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return digest != "" && exact(e) && (m == mark(name, digest) || m == mark(name, absentMark))
}

// removeMark removes a mark, but not a file on its way out.
func (s *store) removeMark(name string) error {
	e, err := s.staged.Stat(name)
	if err != nil {
		return err
	}
	if !empty(e) {
		return &fs.PathError{Op: "remove", Path: path.Join(s.staged.Path(), name), Err: errUnsettled}
	}
	return s.staged.Remove(name)
}

// markedNames returns the names that staging has marked, in order.
func (s *store) markedNames() (names []string, err error) {
	var marks []string
	if s.staged != nil {
		marks, err = s.staged.Names()
	}
	for _, m := range append(marks, s.lost...) {
		if name := markedName(m); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), err
}

// markedAbsent says whether nothing stood under name when staging put a file there.
func (s *store) markedAbsent(name string) (bool, error) {
	if s.staged == nil {
		return s.isLost(mark(name, absentMark)), nil
	}
	e, err := s.staged.Stat(mark(name, absentMark))
	if errors.Is(err, fs.ErrNotExist) {
		return s.isLost(mark(name, absentMark)), nil
	}
	return err == nil && empty(e), err
}

// empty says whether a mark is a mark, and not a file on its way out.
func empty(e hostdir.Entry) bool { return e.Kind == hostdir.File && e.Size == 0 }
