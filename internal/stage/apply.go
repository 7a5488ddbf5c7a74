package stage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Tests make these calls fail, or come in between of two of them. Nothing else sets them.
var (
	writeBytes = (*os.File).Write
	chmodFile  = (*os.File).Chmod
	syncFile   = (*os.File).Sync
	closeFile  = (*os.File).Close
	syncDir    = (*hostdir.Dir).Sync
	publish    = (*hostdir.Dir).Publish
	exchange   = (*hostdir.Dir).Exchange
	replace    = (*hostdir.Dir).Replace
	openFile   = (*hostdir.Dir).OpenFile // to see what a file in the bin dir or the folder is
	openBelow  = (*hostdir.Dir).OpenBelow
	tryLock    = (*hostdir.Dir).TryLock
)

// apply carries out the plan. An error is the bundle's or the context's, and means that nothing was published.
func (r *run) apply() error {
	defer func() {
		if err := r.store.tidy(); err != nil {
			r.warn("leftovers of this run stay: %s", located(r.dir, err))
		}
	}()
	for round := 1; ; round++ {
		if err := r.write(); err != nil {
			if round == 1 {
				return err
			}
			r.failPending(err) // the bundle changed after it was checked
		}
		r.probe()
		if !r.publish() || !r.tryAgain() {
			break
		}
	}
	r.settle()
	return checkReplaced(r.dir, r.o, r.warn)
}

// tryAgain takes up what did not fit: publishing has made room where it replaced one of our own earlier files, so that an
// update needs no more room than the largest plugin. It ends because each round publishes something.
func (r *run) tryAgain() bool {
	again := false
	for _, p := range r.work {
		var stuck *stuckError
		if p.Action == Failed || errors.As(p.Err, &stuck) {
			continue // it was not to be written, or lies in its place already
		}
		if errors.Is(p.Err, syscall.ENOSPC) || errors.Is(p.Err, syscall.EDQUOT) {
			if err := r.store.run.Remove(p.Plugin.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			p.Err, p.written, again = nil, false, true
		}
	}
	return again && r.ctx.Err() == nil
}

// write brings every needed file into the run's folder: whole, checked, synced, with its final mode.
func (r *run) write() error {
	// One piece of each digest is read from the bundle and hashed; the others of the same digest are copies of it.
	var first, rest []*piece
	leaders := make(map[string]*piece)
	for _, p := range r.work {
		switch {
		case !p.pending():
		case leaders[p.Plugin.SHA256] == nil:
			leaders[p.Plugin.SHA256] = p
			first = append(first, p)
		default:
			rest = append(rest, p)
		}
	}
	if len(first) == 0 {
		return nil
	}
	run, err := r.store.runDir()
	if err != nil {
		r.failPending(err)
		return nil
	}
	if r.o.Layout == Linked {
		first = r.linkInPlace(run, first)
	}
	damage := make([]error, len(r.work))
	each(len(first), func(i int) { damage[i] = r.writeOne(run, first[i], nil) })
	if err := firstError(damage); err != nil {
		return err
	}
	each(len(rest), func(i int) {
		p, from := rest[i], leaders[rest[i].Plugin.SHA256]
		switch {
		case !from.written:
			damage[i] = r.writeOne(run, p, nil)
		case r.o.Layout == Linked:
			if p.Err = run.Link(run, from.Plugin.Name, p.Plugin.Name); p.Err == nil {
				p.written = true
			}
		default:
			damage[i] = r.writeOne(run, p, from)
		}
	})
	return firstError(damage)
}

// linkInPlace gives the pieces whose file is in place under another name a link to it, and returns the others. The link has
// to be to the very file that was compared.
func (r *run) linkInPlace(run *hostdir.Dir, pieces []*piece) (others []*piece) {
	for _, p := range pieces {
		if p.linkTo == nil {
			others = append(others, p)
			continue
		}
		p.Err = run.Link(r.dir, p.linkTo.Plugin.Name, p.Plugin.Name)
		if p.Err == nil {
			var e hostdir.Entry
			if e, p.Err = run.Stat(p.Plugin.Name); p.Err == nil && !e.Same(p.linkTo.entry) {
				p.Err = errContended
			}
		}
		p.written = p.Err == nil
	}
	return others
}

// writeOne writes the file of p, from the bundle or as a copy of a piece already checked. What is wrong on the bin dir's
// side becomes the piece's; the error returned is the bundle's.
func (r *run) writeOne(run *hostdir.Dir, p *piece, from *piece) error {
	if err := r.ctx.Err(); err != nil {
		p.Err = errInterrupted
		return nil
	}
	var src *os.File
	var err error
	if from != nil {
		src, _, err = run.OpenFile(from.Plugin.Name)
		if err != nil {
			p.Err = err
			return nil
		}
	} else if src, err = r.b.OpenPlugin(p.Plugin); err != nil {
		return err
	}
	defer src.Close()

	err = writeFile(r.ctx, run, p.Plugin, src, from != nil)
	var damage *sourceError
	switch {
	case err == nil:
		p.written = true
		return nil
	case r.ctx.Err() != nil && errors.Is(err, r.ctx.Err()):
		err = errInterrupted
	case errors.As(err, &damage) && from == nil:
		return r.b.Damage(p.Plugin, damage.err)
	}
	p.Err = err
	// What does not fit must not keep the others from fitting.
	if err := run.Remove(p.Plugin.Name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.warn("leftover %s stays: %s", p.Plugin.Name, errnoText(err))
	}
	return nil
}

// errInterrupted is what became of a plugin that a signal came before.
var errInterrupted = errors.New("interrupted")

// sourceError marks an error as that of the file that is read, not of the one that is written.
type sourceError struct{ err error }

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

const copySize = 128 << 10

var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// writeFile makes the file of p in dir from src: exclusive create, bytes counted and hashed as they are written, final mode,
// sync, close, every error looked at. If checked, src is a file whose bytes were checked as they were written, and the
// kernel copies it: on file systems that can, the copies share their blocks until one is written to.
func writeFile(ctx context.Context, dir *hostdir.Dir, p bundle.Plugin, src *os.File, checked bool) (err error) {
	dst, err := dir.Create(p.Name)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := closeFile(dst); err == nil {
			err = closeErr
		}
	}()
	if checked {
		if _, err := io.Copy(dst, src); err != nil {
			return err
		}
		// What was copied before the kernel's way failed and another was taken, io.Copy does not count.
		if info, err := dst.Stat(); err != nil || info.Size() != p.Size {
			return cmp.Or(err, io.ErrShortWrite)
		}
	} else if err := copyHashed(ctx, output{dst}, src, p); err != nil {
		return err
	}
	if err := chmodFile(dst, pluginPerm); err != nil {
		return err
	}
	return syncFile(dst)
}

// output is the file that is written.
type output struct{ f *os.File }

func (o output) Write(p []byte) (int, error) { return writeBytes(o.f, p) }

func copyHashed(ctx context.Context, dst io.Writer, src io.Reader, p bundle.Plugin) error {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	h := sha256.New()
	var n int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := src.Read(buf[:])
		if n += int64(m); n > p.Size {
			return &sourceError{bundle.ErrSize}
		}
		if m > 0 {
			h.Write(buf[:m])
			if _, err := dst.Write(buf[:m]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return &sourceError{err}
		}
	}
	switch {
	case n != p.Size:
		return &sourceError{bundle.ErrSize}
	case hex.EncodeToString(h.Sum(nil)) != p.SHA256:
		return &sourceError{bundle.ErrDigest}
	}
	return nil
}

// probe checks the machine of every written file and, unless it is not to, runs one of each digest. No file is open for writing by now: a child
// could hold it open past our close, and the published plugin would be busy (golang.org/issue/22315).
func (r *run) probe() {
	groups := make(map[string][]*piece)
	var order []string
	for _, p := range r.work {
		if !p.pending() {
			continue
		}
		if groups[p.Plugin.SHA256] == nil {
			order = append(order, p.Plugin.SHA256)
		}
		groups[p.Plugin.SHA256] = append(groups[p.Plugin.SHA256], p)
	}
	each(len(order), func(i int) {
		group := groups[order[i]]
		err := r.probeOne(group[0].Plugin)
		for _, p := range group {
			failure, warning := plugin.MustAnswer(p.Plugin.Role.Reference(), err)
			switch {
			case failure != nil && r.ctx.Err() != nil:
				p.Err = errInterrupted
			case failure != nil:
				p.Err = failure
			case warning != nil:
				p.warning = warning
			}
		}
	})
}

// ProbeError says that a file would not have worked on this node.
type ProbeError struct{ Err error }

func (e *ProbeError) Error() string { return e.Err.Error() }
func (e *ProbeError) Unwrap() error { return e.Err }

func (r *run) probeOne(p bundle.Plugin) error {
	if err := r.ctx.Err(); err != nil {
		return err
	}
	f, e, err := r.store.run.OpenFile(p.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	path := filepath.Join(r.dir.Path(), storeName, tmpName, r.store.runName, p.Name)
	if err := probeFile(r.ctx, f, e.Size, path, p.Name, r.o.NoProbe); err != nil {
		return &ProbeError{err}
	}
	return nil
}

// probeFile checks that the open file is for this node's machine and, unless it is not to be run, runs it.
func probeFile(ctx context.Context, f *os.File, size int64, path, name string, noRun bool) error {
	info, err := plugin.Identify(f, size)
	if err != nil {
		return err
	}
	if err := info.CheckArch(nodeArch); err != nil || noRun {
		return err
	}
	_, err = plugin.Probe(ctx, f, path, name)
	return err
}

// publish puts every checked file in its place, and says whether it did so for any.
func (r *run) publish() (any bool) {
	var marks []string
	for _, p := range r.work {
		if !p.pending() {
			continue
		}
		marks = append(marks, mark(p.Plugin.Name, p.Plugin.SHA256))
		if p.Found.State == Absent {
			marks = append(marks, mark(p.Plugin.Name, absentMark))
		}
	}
	if len(marks) == 0 {
		return false
	}
	made, err := r.store.mark(marks...)
	if err == nil {
		err = syncDir(r.store.staged)
	}
	if err != nil {
		r.unmark(made)
		r.failPending(err)
		return false
	}
	for _, p := range r.work {
		if !p.pending() {
			continue
		}
		p.first = p.first || slices.Contains(made, mark(p.Plugin.Name, p.Plugin.SHA256))
		if r.ctx.Err() != nil {
			p.Err = errInterrupted
		} else if p.Err = r.publishOne(p); p.Err == nil {
			p.published, any = true, true
			continue
		} else if errors.Is(p.Err, errJudgeAnew) {
			p.Action, p.Reason, p.Why, p.Err = Kept, Raced, errJudgeAnew.Error(), nil
		}
		var stuck *stuckError
		if errors.As(p.Err, &stuck) {
			continue // our file may stand there, and has to be known for ours
		}
		r.unmark(marksOf(made, p.Plugin.Name))
	}
	if any {
		r.remark()
	}
	return any
}

// unmark takes back marks that this run has made for what it then did not publish. Another run may have found them there, and not made
// them: so they stay while one works in the folder, and where one has published what they speak of.
func (r *run) unmark(made []string) {
	if r.store.accompanied() {
		return
	}
	for _, m := range made {
		if !r.store.speaks(context.WithoutCancel(r.ctx), m) {
			r.store.removeMark(m)
		}
	}
}

// remark makes sure that what was published is known for ours.
func (r *run) remark() {
	var marks []string
	for _, p := range r.work {
		if p.published {
			marks = append(marks, mark(p.Plugin.Name, p.Plugin.SHA256))
			if p.Action == New {
				marks = append(marks, mark(p.Plugin.Name, absentMark))
			}
		}
	}
	if err := r.store.remark(marks...); err != nil {
		r.warn("what was published may pass for somebody else's: %s", errnoText(err))
	}
}

// settle makes durable what is in place, and records what this run put there. The directory is synced also when nothing was
// published: a run that was killed may have published what this one found equal.
func (r *run) settle() {
	var done []*piece
	for _, p := range r.work {
		if p.published {
			done = append(done, p)
		}
	}
	err := syncDir(r.dir)
	if len(done) > 0 {
		err = errors.Join(err, r.store.sync())
	}
	if err != nil {
		told := false
		for _, p := range r.work {
			if p.Err == nil && p.Action != Kept { // what is kept is not ours to make durable
				p.Err, told = &undurableError{err}, true
			}
		}
		if !told {
			r.warn("what an earlier run did may not outlast a power cut: %s", errnoText(err))
		}
		return
	}
	r.record(done)
}

// undurableError says that a file was published and that the disk would not confirm it.
type undurableError struct{ err error }

func (e *undurableError) Error() string {
	return errnoText(e.err) + "; the file is in place and may not outlast a power cut"
}
func (e *undurableError) Unwrap() error { return e.err }

// attempts bounds how often a name may change under our hands before staging leaves it to whoever is changing it.
const attempts = 16

// publishOne gives the file of p its name, in one atomic step. What stands there by now decides, not what the plan saw.
func (r *run) publishOne(p *piece) error {
	name := p.Plugin.Name
	if p.Found.State == Absent {
		err := given(publish(r.dir, r.store.run, name, name))
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		// Somebody was quicker. What they put there is kept like anything else that was there, and then the mark goes that nothing was:
		// unless they are another staging.
		if p.policy != Replace {
			return errJudgeAnew
		}
		p.Action, p.Found = Replaced, Found{State: Different, Detail: "came while this ran"}
	}
	slot, err := r.store.slot(name)
	if err != nil {
		return err
	}
	ours, err := r.store.run.Stat(name)
	if err != nil {
		return err
	}
	swap := swapName(p.Plugin.SHA256, r.store.runName)
	if p.first {
		swap = swapName(p.Plugin.SHA256, firstTime+r.store.runName)
	}
	if err := given(publish(slot, r.store.run, name, swap)); err != nil {
		return err
	}
	if err := r.exchange(p, slot, swap, ours); err != nil {
		// Only our own file is removed. Whatever else could lie there after an error is the next run's to file.
		e, rmErr := slot.Stat(swap)
		if rmErr == nil && e.Same(ours) {
			rmErr = slot.Remove(swap)
		}
		if rmErr != nil && !errors.Is(rmErr, fs.ErrNotExist) {
			r.warn("leftover %s/%s stays: %s", name, swap, errnoText(rmErr))
		}
		return err
	}
	return nil
}

// exchange swaps our file, which lies in slot as swap, with what stands under the name. If that turns out to be nothing that
// staging may take, it is swapped back.
func (r *run) exchange(p *piece, slot *hostdir.Dir, swap string, ours hostdir.Entry) error {
	name := p.Plugin.Name
	for range attempts {
		err := exchange(r.dir, slot, swap, name)
		if errors.Is(err, errors.ErrUnsupported) {
			if err = r.replace(p, slot, swap); err == nil {
				return nil
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			// Marked first: once the file is in place, nothing may fail any more.
			if _, err := r.store.mark(mark(name, p.Plugin.SHA256), mark(name, absentMark)); err != nil {
				return err
			}
			err = given(publish(r.dir, slot, swap, name))
			if errors.Is(err, fs.ErrExist) { // and put back
				continue
			}
			p.Action = New
			return err
		}
		if err != nil {
			return err
		}
		theirs, err := slot.Stat(swap)
		if err != nil {
			return stuckSwap(name, swap, err)
		}
		refused := r.takes(p, slot, swap, theirs)
		if refused == nil {
			r.file(p, slot, swap, r.replaced())
			return nil
		}
		// Not ours to take: back to its place. If our file is no longer there, somebody has put a third thing there that is
		// now in our hands. Nothing of ours has replaced it, so it is kept in any case.
		if err := swapBack(r.dir, slot, swap, name); err != nil {
			return stuckSwap(name, swap, err)
		}
		back, err := slot.Stat(swap)
		if errors.Is(err, fs.ErrNotExist) { // our file is gone, and no third thing came
			return refused
		}
		if err != nil {
			return err
		}
		if !back.Same(ours) {
			r.file(p, slot, swap, keep)
		}
		return refused
	}
	return errContended
}

// stuckError says that what stood under a name was taken, may have to go back, and could not.
type stuckError struct {
	at  string // where it lies, below the bin dir
	err error
}

func (e *stuckError) Error() string {
	return errnoText(e.err) + "; what stood there lies in " + e.at
}
func (e *stuckError) Unwrap() error { return e.err }

func stuckSwap(name, swap string, err error) error {
	return &stuckError{storeName + "/" + originalsName + "/" + name + "/" + swap, err}
}

// swapBack gives what lies in slot as swap its name again, in exchange for what stands there by now, if anything does.
func swapBack(dir, slot *hostdir.Dir, swap, name string) error {
	for range attempts {
		err := exchange(dir, slot, swap, name)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err = given(publish(dir, slot, swap, name)); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return errContended
}

// errContended says that a name changed at every attempt to take it.
var errContended = errors.New("replaced by another program at every attempt")

// replace is exchange for file systems that cannot: what stands there gets a second name among the originals first, then
// our file takes its name. A file that another program renames into place between the two is lost to it, not to us.
func (r *run) replace(p *piece, slot *hostdir.Dir, swap string) error {
	name := p.Plugin.Name
	old := swapName(unreadDigest, r.store.runName) // of another digest than ours, which is in no other place yet
	if p.first {
		old = swapName(p.Plugin.SHA256, firstTime+"old-"+r.store.runName)
	}
	if err := slot.Link(r.dir, name, old); err != nil {
		// A directory has no second name.
		if e, statErr := r.dir.Stat(name); statErr == nil && !takes(e.Kind) {
			return &LeftError{e.Kind}
		}
		return err
	}
	e, err := slot.Stat(old)
	if err == nil {
		err = r.takes(p, slot, old, e)
	}
	if err == nil {
		err = replace(r.dir, slot, swap, name)
	}
	if err != nil {
		return errors.Join(err, slot.Remove(old))
	}
	r.file(p, slot, old, r.replaced())
	return nil
}

// replaced says what becomes of what is replaced.
func (r *run) replaced() filing {
	if r.o.NoKeep {
		return drop
	}
	return keep
}

// takes says whether staging takes what stands under a plugin's name.
func takes(kind hostdir.Kind) bool { return kind == hostdir.File || kind == hostdir.Symlink }

// takes says why what came out from under the name, and lies in slot as file, is not to be taken: staging never takes its kind, or
// the policy was asked about something else. Size and times may be equal all the same: so it is asked once more, about what is in
// our hands.
func (r *run) takes(p *piece, slot *hostdir.Dir, file string, theirs hostdir.Entry) error {
	switch {
	case !takes(theirs.Kind):
		return &LeftError{theirs.Kind}
	case p.policy == Replace:
		return nil
	case !theirs.Untouched(p.entry):
		return errJudgeAnew
	}
	again := Item{Plugin: p.Plugin, policy: p.policy}
	if err := again.look(r.b, r.dir, slot, file); err != nil {
		return err
	}
	if again.Found.State == Equal {
		return nil // the bundle's file, which only has more names, or fewer, than the layout wants
	}
	reason, _, err := r.keeps(&again, slot, file)
	if reason != "" {
		return errJudgeAnew
	}
	p.Found = again.Found
	return err
}

// errJudgeAnew says that a name's policy would keep what stands there by now, or has not been asked about it.
var errJudgeAnew = errors.New("changed while this ran; the next run judges it anew")

// file puts what the exchange brought among the originals, if it is to be kept. That it could not be filed is no reason to
// fail: it lies in the folder as it is, and the next run files it.
func (r *run) file(p *piece, slot *hostdir.Dir, swap string, others filing) {
	name := p.Plugin.Name
	settled, err := r.store.settle(context.WithoutCancel(r.ctx), slot, name, swap, others)
	p.original, p.displaced, p.own, p.dropped = settled.original, settled.digest, settled.own, settled.dropped
	if err == nil && settled.doubt != nil {
		r.warn("%s: whose it was that was replaced could not be found out, and it is kept: %s", name, errnoText(settled.doubt))
	}
	if err != nil {
		if p.original == "" {
			p.original = swap
		}
		r.warn("%s: what was replaced is kept as %s: %s", name, filepath.Join(storeName, originalsName, name, p.original), errnoText(err))
	}
}

func (r *run) record(done []*piece) {
	now := time.Now().UTC().Truncate(time.Second)
	entries := make(map[string]ledgerEntry)
	for _, p := range done {
		e := ledgerEntry{
			SHA256: p.Plugin.SHA256, Version: r.b.Manifest.Version, Bundle: r.b.Digest, Staged: now, Before: p.Found.State,
		}
		if at, err := r.dir.Stat(p.Plugin.Name); err == nil { // else nothing is to be concluded from it later
			e.Inode, e.ModTime = at.Ino, at.ModTime.UTC()
		}
		if p.displaced != "" {
			e.Contended = &Contention{SHA256: p.displaced} // counted where it is known what was before
		}
		entries[p.Plugin.Name] = e
	}
	var unchanged []string
	for _, p := range r.work {
		if p.Action == Unchanged || p.Action == Kept {
			unchanged = append(unchanged, p.Plugin.Name)
		}
	}
	recorded, err := r.store.record(entries, unchanged)
	if err != nil {
		r.warn("%s", err)
	}
	for _, p := range done {
		if c := recorded[p.Plugin.Name].Contended; c != nil && c.Runs >= contendedRuns {
			p.contended = c
		}
	}
}

// checkReplaced finds out whether the host still uses the directory that everything was done in.
func checkReplaced(dir *hostdir.Dir, o Options, warn func(string, ...any)) error {
	self, err := dir.Self()
	if err != nil {
		warn("%s", err)
		return nil
	}
	replaced := &BinDirError{o.shown(), ErrReplaced}
	if self.Nlink == 0 {
		return replaced
	}
	// A container's mount always leads to the same directory; a path on the host may lead to another by now.
	now, err := hostdir.Open(o.BinDir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP) {
		return replaced
	}
	if err != nil {
		warn("whether the host still uses this directory is not known: %s", errnoText(err))
		return nil
	}
	defer now.Close()
	if e, err := now.Self(); err == nil && !e.Same(self) {
		return replaced
	}
	return nil
}

func firstError(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
