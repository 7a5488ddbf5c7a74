package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// RestoreOptions say how to restore. The zero value of each is the safe one.
type RestoreOptions struct {
	BinDir       string        // the directory to restore
	ShownAs      string        // its path as the host knows it, for reports; BinDir if empty
	RequireMount bool          // refuse a bin dir that is no mount point
	DryRun       bool          // plan and report, change nothing
	Only         []string      // these names only; all if empty
	LockWait     time.Duration // how long to wait for a staging
}

func (o RestoreOptions) target() Options {
	return Options{BinDir: o.BinDir, ShownAs: o.ShownAs, RequireMount: o.RequireMount, DryRun: o.DryRun, LockWait: o.LockWait}
}

// Restore takes back what staging did to the bin dir. The newest original of each name gets its name back, the very inode;
// a name under which nothing stood is removed. What is not as staging left it is another's by now, and left. Each name
// changes in one atomic step, and is durable when Restore returns. Restore may be interrupted at any instant and run again;
// it needs neither the ledger nor the bundle. After it nothing of ours is in the bin dir but what the report names.
//
// Unlike Run it does not go on while another process holds the bin dir's lock.
func Restore(ctx context.Context, o RestoreOptions) *Report {
	target := o.target()
	r := &restore{ctx: ctx, o: o, report: &Report{Outcome: Restored, BinDir: target.shown(), Plugins: []Result{}}}
	if o.DryRun {
		r.report.Outcome = RestorePlanned
	}
	refuse := func(err error) *Report {
		refused := Restoring.RefuseFor(target.shown(), err)
		refused.Warnings = r.report.Warnings
		return refused
	}
	var err error
	if r.dir, err = openBinDir(target); err != nil {
		return refuse(err)
	}
	defer r.dir.Close()
	err = r.do()
	for _, t := range r.work {
		r.report.Plugins = append(r.report.Plugins, t.result())
	}
	if err != nil {
		refused := refuse(err)
		refused.Plugins = r.report.Plugins
		return refused
	}
	return r.report
}

// UnknownNamesError says that names were asked for that staging knows nothing of.
type UnknownNamesError struct{ Unknown, Known []string }

func (e *UnknownNamesError) Error() string {
	known := ", nor any other"
	if len(e.Known) > 0 {
		known = "; known are " + strings.Join(e.Known, ", ")
	}
	return fmt.Sprintf("no plugin %s is staged or kept here%s", strings.Join(e.Unknown, ", "), known)
}

// ErrBusy says that another process holds the bin dir's lock.
var ErrBusy = errors.New("another chandler is working in it")

// restore is one restoring.
type restore struct {
	ctx    context.Context
	o      RestoreOptions
	dir    *hostdir.Dir
	store  *store
	report *Report
	work   []*takeback
}

// takeback is one name on its way back.
type takeback struct {
	name   string
	action Action
	found  Found
	cause  string // why it is left
	err    error

	entry    hostdir.Entry // of what stands there
	digest   string        // of it, if it is what staging put there
	slot     *hostdir.Dir  // nil if there is none
	original original      // the newest, if there is one
	older    int           // how many more there are
	inode    uint64        // of what was put back
	sha256   string        // the same
	changed  bool
	back     string // under which name our file lies in the slot, once the original is in its place
	stays    bool   // a file of ours that the next run has to know for ours
}

func (t *takeback) result() Result {
	res := Result{Name: t.name, Found: t.found, Action: t.action, SHA256: t.sha256, Changed: t.changed, Cause: t.cause, Err: t.err}
	if t.action == PutBack {
		res.Original = path.Join(storeName, originalsName, t.name, t.original.file)
	}
	if t.err != nil {
		res.Action, res.Cause = Failed, t.failure()
	}
	return res
}

// failure is the error in the words of the report.
func (t *takeback) failure() string {
	var undurable *undurableError
	var stuck *stuckError
	switch {
	case errors.As(t.err, &undurable):
		return errnoText(undurable.err) + "; it is done and may not outlast a power cut"
	case errors.As(t.err, &stuck):
		return stuck.Error()
	case errors.Is(t.err, ErrNotKept):
		return t.err.Error()
	case t.found.State == AsStaged:
		return errnoText(t.err) + "; the staged file stays"
	}
	return errnoText(t.err)
}

// ErrNotKept says that what a staged file replaced is gone.
var ErrNotKept = errors.New("what stood there was not kept; the staged file stays")

func (r *restore) warn(format string, args ...any) {
	r.report.Warnings = append(r.report.Warnings, fmt.Sprintf(format, args...))
}

// do runs the steps. An error means that nothing was restored, or nothing that the host uses.
func (r *restore) do() error {
	if !r.o.DryRun {
		if err := lockOrRefuse(r.ctx, r.dir, r.o.target(), r.warn); err != nil {
			return err
		}
	}
	var err error
	r.store, err = openStore(r.ctx, r.dir, !r.o.DryRun)
	r.store.restoring = true
	defer r.store.close()
	if err != nil {
		return &BinDirError{r.report.BinDir, err}
	}
	if !r.o.DryRun {
		r.store.heal(r.warn)
		r.store.clear(r.ctx, r.warn)
	}
	names, err := r.store.names()
	if err != nil {
		return &BinDirError{r.report.BinDir, err}
	}
	names = append(names, r.store.unmarked(r.ctx, names)...)
	slices.Sort(names)
	if names, err = chosen(names, r.store.recordedNames(), r.o.Only); err != nil {
		return err
	}
	for _, name := range names {
		t := &takeback{name: name}
		t.err = t.look(r.ctx, r.store)
		r.work = append(r.work, t)
	}
	if r.o.DryRun {
		r.say()
		return nil
	}
	for _, t := range r.work {
		if t.err == nil && t.action != Left {
			t.err = r.takeBack(t)
		}
	}
	if len(r.work) > 0 || r.store.dir != nil { // an empty folder may be all that an interrupted run has left
		r.settle()
	}
	r.say()
	return checkReplaced(r.dir, r.o.target(), r.warn)
}

// lockOrRefuse takes the bin dir's lock. A file system that has none is no reason to refuse: nobody else has it either.
func lockOrRefuse(ctx context.Context, dir *hostdir.Dir, o Options, warn func(string, ...any)) error {
	err := lock(ctx, dir, o.LockWait)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, hostdir.ErrLocked):
		return &BinDirError{o.shown(), ErrBusy}
	}
	warn("went on without the lock: %s", errnoText(err))
	return nil
}

// chosen returns those of names that are asked for, all if none is. One that only the ledger knows may be asked for again: an
// interrupted restoring has come as far as that. If staging knows one of them not, the error is an *UnknownNamesError.
func chosen(names, recorded, only []string) ([]string, error) {
	if len(only) == 0 {
		return names, nil
	}
	var found, unknown []string
	for _, name := range slices.Compact(slices.Sorted(slices.Values(only))) {
		if slices.Contains(names, name) || slices.Contains(recorded, name) {
			found = append(found, name)
		} else {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return nil, &UnknownNamesError{unknown, names}
	}
	return found, nil
}

// look finds out what stands under the name and decides what is to become of it. It changes nothing.
func (t *takeback) look(ctx context.Context, s *store) error {
	if ctx.Err() != nil {
		return errInterrupted
	}
	kept, err := t.openSlot(ctx, s)
	if err != nil {
		return err
	}
	if s.change { // in a dry run it is told what is going to be
		if err := s.settledName(t.slot, t.name); err != nil {
			return err
		}
	}
	if n := len(kept); n > 0 {
		t.original, t.older = kept[n-1], n-1
		if t.original.digest != unreadDigest {
			t.sha256 = t.original.digest
		}
	}
	t.entry, t.digest, err = s.current(ctx, t.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.found = Found{State: Absent}
		return t.lookAtNothing(ctx, s, kept)
	case ctx.Err() != nil:
		return errInterrupted
	case err != nil:
		return err
	}
	if done, err := t.lookAtBack(ctx, s); done || err != nil {
		t.older = len(kept)
		return err
	}
	if t.digest == "" {
		t.found = describeFound(s.bin, t.name, t.entry)
		t.older = len(kept)
		return t.lookAtTheirs(ctx, s)
	}
	t.found = Found{State: AsStaged, Detail: metadataDiffers(t.entry)}
	if len(kept) > 0 {
		t.action = PutBack
		return t.foresee(ctx, s)
	}
	absent, err := s.markedAbsent(t.name)
	if err != nil {
		return err
	}
	switch {
	case absent:
		t.action = Removed
	case exact(t.entry):
		return ErrNotKept
	default: // it may be an original with the very bytes, which an interrupted run has put back
		t.action, t.cause, t.stays = Left, "has the bytes that staging put there, and nothing is kept to put back: "+t.found.String(), true
	}
	return nil
}

// lookAtBack says whether an interrupted restoring has given the original its name again. That can have the bytes of ours.
func (t *takeback) lookAtBack(ctx context.Context, s *store) (bool, error) {
	back, o, err := s.isBack(t.slot, t.name)
	if back == "" || err != nil {
		return false, err
	}
	t.found = describeFound(s.bin, t.name, t.entry)
	t.action, t.original, t.back, t.inode, t.sha256 = PutBack, o, back, t.entry.Ino, ""
	return true, t.checkOriginal(ctx, s.bin, t.name, t.entry)
}

// lookAtTheirs decides about a name under which stands what somebody else has put there.
func (t *takeback) lookAtTheirs(ctx context.Context, s *store) error {
	t.action, t.sha256 = Left, ""
	marked, err := s.marked(t.name)
	absent, err2 := s.markedAbsent(t.name)
	switch {
	case err != nil || err2 != nil:
		return cmp.Or(err, err2)
	case absent || marked && t.older > 0:
		t.cause = "is not what staging put there: " + t.found.String()
	case marked:
		t.cause = "is not what staging put there, and nothing is kept to put back: " + t.found.String()
	case s.recorded(ctx, t.name):
		t.stays = true
		t.cause = "its mark in " + path.Join(storeName, stagedName) + " is gone, and the ledger says that staging put it there"
	default:
		t.cause = "nothing that staging knows of stands there any more: " + t.found.String()
	}
	return nil
}

// foresee finds out in a dry run what else is found out when the original is put back.
func (t *takeback) foresee(ctx context.Context, s *store) error {
	if s.change {
		return nil
	}
	e, err := t.slot.Stat(t.original.file)
	if err != nil {
		return err
	}
	return t.checkOriginal(ctx, t.slot, t.original.file, e)
}

// checkOriginal finds out whether an original, which lies in dir as file, was written to since it was replaced.
func (t *takeback) checkOriginal(ctx context.Context, dir *hostdir.Dir, file string, e hostdir.Entry) error {
	digest, err := digestOf(ctx, dir, file, e)
	if err != nil {
		return err
	}
	if digest != unreadDigest {
		t.sha256 = digest
		t.changed = t.original.digest != unreadDigest && t.original.digest != digest
	}
	return nil
}

// lookAtNothing decides about a name under which nothing stands. Where staging put something, its original comes back; where
// restoring was here already, whoever has removed what it put back meant it.
func (t *takeback) lookAtNothing(ctx context.Context, s *store, kept []original) error {
	marked, err := s.marked(t.name)
	if err != nil {
		return err
	}
	absent, err := s.markedAbsent(t.name)
	back := s.comesBack(t.name)
	switch {
	case err != nil:
		return err
	case back:
		t.action, t.cause = Left, "is not what staging put there: comes back when what an interrupted run has left is filed"
	case marked && len(kept) > 0:
		t.action = PutBack
		return t.foresee(ctx, s)
	case absent || marked:
		t.action = Removed // by somebody else, or by a restoring that was interrupted
	default:
		t.older, t.sha256 = len(kept), ""
		t.action, t.cause = Left, "is gone already"
	}
	return nil
}

// comesBack says whether what an interrupted restoring had in its hands, and is somebody's, is going to get the name again.
func (s *store) comesBack(name string) bool {
	if s.staged == nil {
		return false
	}
	e, err := s.staged.Stat(mark(name, absentMark))
	if err != nil || empty(e) {
		return false
	}
	digest, err := digestOf(context.Background(), s.staged, mark(name, absentMark), e)
	if err != nil {
		return true
	}
	ours, err := s.ours(name, digest, e)
	return err == nil && !ours
}

func (t *takeback) openSlot(ctx context.Context, s *store) ([]original, error) {
	if s.originals == nil {
		return nil, nil
	}
	slot, err := s.sub(s.originals, t.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.slots[t.name], t.slot = slot, slot
	return s.keptIn(ctx, slot, t.name)
}

// describeFound says what stands under a name that is not ours.
func describeFound(dir *hostdir.Dir, name string, e hostdir.Entry) Found {
	switch e.Kind {
	case hostdir.File:
		f := Found{State: Different, Detail: metadataDiffers(e)}
		if f.Detail == "" {
			f.Detail = "other bytes"
			d, _ := describe(dir.OpenFile(name)) // for telling only
			f.Version, f.Build = d.Version, d.Build()
		}
		return f
	case hostdir.Symlink:
		target, _ := dir.Readlink(name) // for telling only
		return Found{State: Symlink, Target: target, Visible: dir.TargetVisible(name)}
	case hostdir.Folder:
		return Found{State: Directory}
	}
	return Found{State: Special, Detail: string(e.Kind)}
}

// takeBack does what look decided, in one atomic step. What stands there by then decides.
func (r *restore) takeBack(t *takeback) error {
	if r.ctx.Err() != nil {
		return errInterrupted
	}
	switch {
	case t.back != "" || t.action == Removed && t.found.State == Absent:
		return nil // done already
	case t.action == Removed:
		return r.remove(t)
	}
	e, err := t.slot.Stat(t.original.file)
	if err == nil && !takes(e.Kind) {
		err = &LeftError{e.Kind}
	}
	if err != nil {
		return err
	}
	t.inode = e.Ino
	if err := t.checkOriginal(r.ctx, t.slot, t.original.file, e); err != nil {
		return err
	}
	if t.found.State == Absent {
		err := given(publish(r.dir, t.slot, t.original.file, t.name))
		if errors.Is(err, fs.ErrExist) {
			return t.leave()
		}
		return err
	}
	// Under this name it is the original while it has that inode, and something else after the exchange.
	on := backName(e.Ino, t.original)
	if err := given(publish(t.slot, t.slot, t.original.file, on)); err != nil {
		return err
	}
	err = r.exchange(t, on)
	var stuck *stuckError
	if errors.As(err, &stuck) {
		return err // and the next run settles it
	}
	if err == nil && t.action == PutBack {
		// Our file stays until the marks are gone: it tells a run after a crash what this one has done.
		t.back = on
		return nil
	}
	r.leftover(t, path.Join(originalsName, t.name), on, r.store.settleBack(context.WithoutCancel(r.ctx), t.slot, t.name, on))
	return err
}

// leftover says that a file in the folder could not be settled.
func (r *restore) leftover(t *takeback, folder, file string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.stays = true
		r.warn("%s stays: %s", path.Join(storeName, folder, file), errnoText(err))
	}
}

// leave says that somebody was quicker.
func (t *takeback) leave() error {
	t.action, t.cause, t.sha256, t.changed = Left, raced, "", false
	return nil
}

const raced = "is not what staging put there: changed while this ran"

// exchange swaps the original, which lies in the slot as on, with what stands under the name. If that turns out not to be what
// was looked at, it is swapped back.
func (r *restore) exchange(t *takeback, on string) error {
	for range attempts {
		err := exchange(r.dir, t.slot, on, t.name)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			return r.replace(t, on)
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			if err = given(publish(r.dir, t.slot, on, t.name)); errors.Is(err, fs.ErrExist) {
				continue
			}
			return err
		case err != nil:
			return err
		}
		out, err := t.slot.Stat(on)
		if err != nil {
			return stuckSwap(t.name, on, err)
		}
		if ours, err := r.stillOurs(t, on, out); ours || err != nil { // what cannot be read any more is not taken for another's
			return nil
		}
		if err := swapBack(r.dir, t.slot, on, t.name); err != nil {
			return stuckSwap(t.name, on, err)
		}
		return t.leave()
	}
	return errContended
}

// stillOurs says whether what came out from under the name, and lies in the slot as file, is what was looked at: also its bytes, which
// size and times do not tell. An error says why that cannot be found out.
func (r *restore) stillOurs(t *takeback, file string, e hostdir.Entry) (bool, error) {
	if !e.Untouched(t.entry) {
		return false, nil
	}
	digest, unread, err := digestOrWhy(context.WithoutCancel(r.ctx), t.slot, file, e)
	return digest == t.digest, cmp.Or(unread, err)
}

// replace is exchange for file systems that cannot: ours gets a second name first, which tells a run after a crash what was done
// once the original has the first. A file that another program renames into place between the two is lost to it, not to us.
func (r *restore) replace(t *takeback, on string) error {
	done := doneName(on)
	if err := t.slot.Link(r.dir, t.name, done); err != nil {
		if e, statErr := r.dir.Stat(t.name); statErr != nil || !e.Untouched(t.entry) {
			return t.leave()
		}
		return err
	}
	e, err := t.slot.Stat(done)
	ours := false
	if err == nil {
		ours, err = r.stillOurs(t, done, e)
	}
	switch {
	case err == nil && ours:
		err = replace(r.dir, t.slot, on, t.name)
	case err == nil:
		err = t.leave() // nil
	}
	if err != nil || t.action == Left {
		return errors.Join(err, t.slot.Remove(done)) // another name of what stands there
	}
	return nil
}

// remove takes our file away from a name under which nothing stood. On its way out it takes the place of the mark that says so:
// that needs no room, also on a full disk.
func (r *restore) remove(t *takeback) error {
	if err := r.store.settledName(nil, t.name); err != nil {
		return err
	}
	if _, err := r.store.open(&r.store.staged, stagedName); err != nil { // its marks are lost, and could not be made again
		return err
	}
	if err := replace(r.store.staged, r.dir, t.name, mark(t.name, absentMark)); err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) { // removed, or a directory by now
			return t.leave()
		}
		return err
	}
	gone, err := r.store.settleAway(context.WithoutCancel(r.ctx), t.name)
	switch {
	case err == nil && !gone:
		return t.leave()
	case gone: // from its name, whatever becomes of it
		r.leftover(t, stagedName, mark(t.name, absentMark), err)
		return nil
	}
	return &stuckError{path.Join(storeName, stagedName, mark(t.name, absentMark)), err}
}

// settle makes durable what was done, and only then forgets what staging knew of it.
func (r *restore) settle() {
	err := syncDir(r.dir)
	for _, t := range r.work {
		if t.slot != nil {
			err = errors.Join(err, syncDir(t.slot))
		}
	}
	if err != nil {
		told := false
		for _, t := range r.work {
			if t.err == nil && t.action != Left {
				t.err, told = &undurableError{err}, true
			}
		}
		if !told {
			r.warn("%s stays: %s", storeName, errnoText(err))
		}
		return
	}
	var done []*takeback
	for _, t := range r.work {
		if t.back != "" {
			// Its new name has to be durable too before its mark may go: under the old one it would pass for somebody's then.
			err := r.store.retire(context.WithoutCancel(r.ctx), t.slot, t.name, t.back)
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				err = syncDir(t.slot)
			}
			r.leftover(t, path.Join(originalsName, t.name), t.back, err)
		}
		// What was left may go one day, and its original is to come back then.
		if t.err == nil && !t.stays && !(t.action == Left && t.older > 0) {
			done = append(done, t)
		}
	}
	if err := r.store.dismiss(done); err != nil {
		r.warn("%s", located(r.dir, err))
	}
}

// say adds what is worth knowing of the whole.
func (r *restore) say() {
	var older []string
	wrote := false
	for _, t := range r.work {
		if t.older > 0 {
			older = append(older, t.name)
		}
		if t.err == nil && t.changed {
			r.warn("%s: what is put back was written to after it was replaced", t.name)
		}
		wrote = wrote || t.err == nil && t.action == PutBack
	}
	if !r.o.DryRun && len(r.o.Only) == 0 && r.store.dir != nil && !gone(r.store.dir) {
		if strange := r.store.strange(); len(strange) > 0 {
			r.warn("what chandler did not put there stays: %s", someOf(strange))
		}
	}
	if len(older) > 0 {
		r.warn("originals of %s stay in %s; 'chandler originals' lists them", strings.Join(older, ", "), path.Join(storeName, originalsName))
	}
	if overlay, err := r.dir.Overlay(); err == nil && overlay && wrote {
		r.warn(overlayNote)
	}
}

// backName is the name of an original on its way back.
func backName(inode uint64, o original) string {
	return fmt.Sprintf("%s%d-%s", backPrefix, inode, o.file)
}

const backRest = `([0-9]{1,20})-([1-9][0-9]{0,8}-(?:[0-9a-f]{64}|` + unreadDigest + `))$`

var (
	backPattern = regexp.MustCompile(`^` + backPrefix + backRest)
	donePattern = regexp.MustCompile(`^` + donePrefix + backRest)
)

// doneName is what becomes of the back name of a file that is known to be ours.
func doneName(back string) string {
	return donePrefix + strings.TrimPrefix(strings.TrimPrefix(back, backPrefix), donePrefix)
}

// retire gives our file, which the exchange with an original has brought into its slot, the name under which it may go without
// anything being known of it any more. What else lies there is settled.
func (s *store) retire(ctx context.Context, slot *hostdir.Dir, name, back string) error {
	if donePattern.MatchString(back) {
		return nil
	}
	e, err := slot.Stat(back)
	if err != nil {
		return err
	}
	digest, err := digestOf(ctx, slot, back, e)
	if err != nil {
		return err
	}
	if ours, _ := s.ours(name, digest, e); !ours {
		return s.settleBack(ctx, slot, name, back)
	}
	return given(publish(slot, slot, back, doneName(back)))
}

// isBack says whether the original that lay in a slot has its name again, and under which name our file lies there since.
func (s *store) isBack(slot *hostdir.Dir, name string) (back string, o original, err error) {
	if slot == nil {
		return "", o, nil
	}
	files, err := slot.Names()
	if err != nil {
		return "", o, err
	}
	there, err := s.bin.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", o, nil
	}
	for _, file := range files {
		m := backPattern.FindStringSubmatch(file)
		if m == nil {
			m = donePattern.FindStringSubmatch(file)
		}
		if err != nil || m == nil || m[1] != fmt.Sprint(there.Ino) {
			continue
		}
		var e hostdir.Entry
		if e, err = slot.Stat(file); err == nil && !e.Same(there) {
			return file, parseOriginals(m[2:])[0], nil
		}
	}
	return "", o, err
}

// settleBack decides what becomes of a file that lies in a slot under its back name: the original gets its own name again,
// one of ours is removed, anything else is kept as the newest original.
func (s *store) settleBack(ctx context.Context, slot *hostdir.Dir, name, back string) error {
	m := backPattern.FindStringSubmatch(back)
	if m == nil {
		return nil // none of ours
	}
	e, err := slot.Stat(back)
	if err != nil {
		return err
	}
	if s.placed(slot, name, e) {
		return slot.Remove(back)
	}
	if inode, err := strconv.ParseUint(m[1], 10, 64); err == nil && inode == e.Ino {
		return given(publish(slot, slot, back, m[2]))
	}
	_, err = s.settle(ctx, slot, name, back, keepSure)
	return err
}

// dismiss forgets what is known of names, and takes away of the folder what then has nothing in it: all of it, if staging knows
// of no name any more and nothing of anybody's is kept.
func (s *store) dismiss(done []*takeback) error {
	var names []string
	for _, t := range done {
		names = append(names, t.name)
	}
	var errs []error
	fail := func(err error) {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if s.staged != nil {
		marks, err := s.staged.Names()
		if err != nil {
			return err
		}
		for _, name := range names {
			for _, m := range marksOf(marks, name) {
				fail(s.removeMark(m))
			}
		}
		for _, t := range done {
			m := s.publishedAgain(t)
			if m == "" || !slices.Contains(marks, m) {
				continue
			}
			again := []string{m}
			if absent := mark(t.name, absentMark); slices.Contains(marks, absent) || t.action == Removed {
				again = append(again, absent)
			}
			_, err := s.mark(again...)
			fail(err)
		}
		fail(syncDir(s.staged))
	}
	for _, t := range done {
		if t.back != "" && len(errs) == 0 { // else the next run has to know what is done, and that a mark says nothing any more
			fail(t.slot.Remove(doneName(t.back)))
		}
	}
	if s.originals != nil {
		slots, err := s.originals.Names()
		fail(err)
		for _, name := range slots {
			if err := s.originals.RemoveDir(name); !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTDIR) { // somebody's are in it
				fail(err)
			}
		}
	}
	empty, err := s.empty(names)
	fail(err)
	if empty {
		fail(s.dismantle())
		return errors.Join(errs...)
	}
	fail(s.forget(names))
	if s.run != nil {
		fail(s.tmp.RemoveAll(s.runName))
	}
	return errors.Join(errs...)
}

// publishedAgain is the mark that the file under a restored name would have, if that is not what restoring left there: a staging
// that goes on without the lock may have put it there since.
func (s *store) publishedAgain(t *takeback) string {
	e, err := s.bin.Stat(t.name)
	if err != nil || !exact(e) || e.Ino == t.inode {
		return ""
	}
	digest, err := digestOf(context.Background(), s.bin, t.name, e)
	if err != nil {
		return ""
	}
	return mark(t.name, digest)
}

// someOf names the first few, and says how many more there are.
func someOf(names []string) string {
	const few = 3
	if more := len(names) - few; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), more)
	}
	return strings.Join(names, ", ")
}

// strange lists what lies in the folder and is not chandler's.
func (s *store) strange() (found []string) {
	look := func(d *hostdir.Dir, below string, known func(string) bool) {
		if d == nil {
			return
		}
		names, _ := d.Names() // for telling only
		for _, name := range names {
			if !known(name) {
				found = append(found, path.Join(storeName, below, name))
			}
		}
	}
	look(s.dir, "", func(name string) bool {
		return slices.Contains([]string{tmpName, originalsName, stagedName, ledgerName}, name)
	})
	look(s.staged, stagedName, func(m string) bool { return markedName(m) != "" })
	if s.originals == nil {
		return found
	}
	slots, _ := s.originals.Names() // for telling only
	for _, name := range slots {
		slot, err := s.originals.Sub(name)
		if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) || plugin.CheckName(name) != nil {
			found = append(found, path.Join(storeName, originalsName, name))
		}
		if err == nil {
			look(slot, path.Join(originalsName, name), func(file string) bool {
				e, err := slot.Stat(file)
				return isOurs(file) && (err != nil || takes(e.Kind))
			})
			slot.Close()
		}
	}
	return found
}

// empty says whether neither a mark nor an original is in the folder, and the ledger has nothing of which only it knows but the names
// that are done.
func (s *store) empty(done []string) (bool, error) {
	for _, d := range []*hostdir.Dir{s.staged, s.originals} {
		if d == nil {
			continue
		}
		if names, err := d.Names(); err != nil || len(names) > 0 {
			return false, err
		}
	}
	return len(s.unmarked(context.Background(), done)) == 0, nil
}

// remainsError says what of the folder could not be taken away.
type remainsError struct {
	what string
	err  error
}

func (e *remainsError) Error() string { return e.what + " stays: " + errnoText(e.err) }
func (e *remainsError) Unwrap() error { return e.err }

// dismantle takes the empty folder away. A ledger that a later chandler wrote, and what nobody here put there, stays.
func (s *store) dismantle() error {
	if s.dir == nil {
		return nil
	}
	var newer *newerLedgerError
	if _, err := s.readLedger(); errors.As(err, &newer) {
		return fmt.Errorf("the ledger is left as it is: its %w", err)
	}
	if err := s.dir.Remove(ledgerName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range []string{stagedName, originalsName, tmpName} {
		err := s.dir.RemoveDir(name)
		switch {
		case name == tmpName && s.uncleared && errors.Is(err, fs.ErrExist):
			return nil // what stays in it was told of when it could not be cleared
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return &remainsError{path.Join(storeName, name), err}
		}
	}
	if err := s.bin.RemoveDir(storeName); err != nil {
		return &remainsError{storeName, err}
	}
	return syncDir(s.bin)
}
