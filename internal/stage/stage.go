// Package stage is the product: it brings a bin dir to what a bundle says, as a transaction a name, keeps what it
// replaced, and reports what it found and did. docs/guarantees.md states what holds at every instant.
package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
)

// pluginPerm is the mode of every staged file, whatever the umask.
const pluginPerm fs.FileMode = 0o755

// Options say how to stage. The zero value of each is the safe one.
type Options struct {
	BinDir       string        // the directory to bring to the bundle
	ShownAs      string        // its path as the host knows it, for reports; BinDir if empty
	Create       bool          // make the bin dir (0755) where it is missing
	RequireMount bool          // refuse a bin dir that is no mount point: in a container it would be the container's own
	DryRun       bool          // plan and report, change nothing
	NoProbe      bool          // do not run what is about to be published
	NoKeep       bool          // do not keep what is replaced
	Layout       Layout        // how names of one digest lie in the bin dir; Separate if empty
	LockWait     time.Duration // how long to wait for another staging

	Policy    Policy            // what may be replaced; Replace if empty
	PolicyFor map[string]Policy // the same for single names
	Unknown   Unknown           // what Newer makes of a version that cannot be known; ReplaceUnknown if empty
}

// Layout says how the names of one executable lie in the bin dir.
type Layout string

const (
	// Separate gives each name a file of its own: a program that writes into one in place damages that one alone.
	Separate Layout = "separate"
	// Linked makes the names of one digest hard links to one file, for small disks and tmpfs where nobody else writes.
	Linked Layout = "linked"
)

func (o Options) shown() string {
	if o.ShownAs != "" {
		return o.ShownAs
	}
	return o.BinDir
}

// Run brings the bin dir to the bundle and reports on each plugin. Each name changes in one atomic step, from what was
// there to a whole file whose digest was checked as it was written and that has been run from where it lies; it is durable
// when Run returns. Run is idempotent: a second one finds every plugin equal and writes nothing. It may be interrupted at
// any instant, by ctx between two steps; the next run clears up.
//
// The caller opened the bundle; Run checks every byte of it. If any file of it is not what the manifest says, nothing is
// published and the report says Refused. All else that can go wrong is in the report.
func Run(ctx context.Context, b *bundle.Bundle, o Options) *Report {
	r := &Report{Outcome: Staged, Version: b.Manifest.Version, Bundle: b.Digest, BinDir: o.shown(), Plugins: []Result{}}
	if o.DryRun {
		r.Outcome = Planned
	}
	refuse := func(err error) *Report {
		refused := Staging.RefuseFor(o.shown(), err)
		refused.Warnings = r.Warnings
		return refused
	}
	dir, err := openBinDir(o)
	if err != nil {
		return refuse(err)
	}
	defer dir.Close()
	if self, err := dir.Self(); err == nil && b.Holds(self) {
		return refuse(&BinDirError{o.shown(), ErrIsBundle})
	}
	run := &run{ctx: ctx, b: b, o: o, dir: dir, report: r}
	if err := run.do(); err != nil {
		refused := refuse(err)
		if errors.Is(err, ErrReplaced) { // what was done in the directory that is no longer used
			refused.Plugins = run.results()
		}
		return refused
	}
	r.Plugins = run.results()
	return r
}

// BinDirError says that a bin dir cannot be used.
type BinDirError struct {
	Path string
	Err  error
}

func (e *BinDirError) Error() string { return fmt.Sprintf("bin dir %s: %s", e.Path, errnoText(e.Err)) }
func (e *BinDirError) Unwrap() error { return e.Err }

var (
	// ErrNotMounted says that a bin dir is the container's own directory and not the host's.
	ErrNotMounted = errors.New("is not a mount point")
	// ErrIsBundle says that the bin dir is a part of the bundle, which staging would damage.
	ErrIsBundle = errors.New("is a part of the bundle")
	// ErrReplaced says that the open bin dir is no longer the one that the host uses.
	ErrReplaced = errors.New("this directory was replaced on the host; restart the pod")
)

func openBinDir(o Options) (*hostdir.Dir, error) {
	fail := func(err error) (*hostdir.Dir, error) { return nil, &BinDirError{o.shown(), err} }
	dir, err := hostdir.Open(o.BinDir)
	if errors.Is(err, fs.ErrNotExist) {
		// A link that leads nowhere is not a missing directory: making its target is not ours to decide.
		if _, lerr := os.Lstat(o.BinDir); lerr == nil {
			return fail(errors.New("is a link to nothing"))
		}
		if o.Create && !o.DryRun {
			if err := makeBinDir(o.BinDir); err != nil {
				return fail(err)
			}
			dir, err = hostdir.Open(o.BinDir)
		}
	}
	if err != nil {
		return fail(err)
	}
	if o.RequireMount {
		mounted, err := dir.MountPoint()
		if err == nil && !mounted {
			err = ErrNotMounted
		}
		if err != nil {
			dir.Close()
			return fail(err)
		}
	}
	return dir, nil
}

// makeBinDir makes the bin dir and what is missing above it: durable, and each with mode 0755 whatever the umask.
func makeBinDir(path string) error {
	path = filepath.Clean(path)
	above := filepath.Dir(path)
	if _, err := os.Stat(above); errors.Is(err, fs.ErrNotExist) && above != path {
		if err := makeBinDir(above); err != nil {
			return err
		}
	}
	dir, err := hostdir.Open(above)
	if err != nil {
		return err
	}
	defer dir.Close()
	made, err := dir.Make(filepath.Base(path), 0o755)
	if errors.Is(err, fs.ErrExist) { // another run was quicker
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(made.Close(), dir.Sync())
}

// refusal is the report's last line for an error that let nothing be done, without the suffix that says so.
func (t Task) refusal(err error) string {
	var damage *bundle.DamageError
	var errno syscall.Errno
	switch {
	case errors.As(err, &damage) && errors.As(err, &errno):
		return "bundle unreadable: " + damage.Error()
	case errors.As(err, &damage):
		return "bundle damaged: " + damage.Error()
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.Is(err, ErrNotMounted):
		return err.Error() + ": nothing " + t.suffix("staged", "restored") + " there would reach the host"
	}
	return err.Error()
}

// run is one staging.
type run struct {
	ctx    context.Context
	b      *bundle.Bundle
	o      Options
	dir    *hostdir.Dir
	store  *store
	report *Report
	work   []*piece
	warned sync.Mutex

	storeErr error // why the folder, and what it says of whose a file is, could not be opened
}

// piece is one plugin on its way: its plan, and how far it has come.
type piece struct {
	Item
	written   bool   // lies whole, checked and synced in the run's folder
	first     bool   // its digest was never published under its name before
	published bool   // stands under its name
	original  string // where what it replaced is kept
	displaced string // digest of what it replaced, if that was not ours
	own       bool   // what it replaced was ours
	dropped   bool   // what it replaced was not ours, and is gone
	contended *Contention
	warning   error // staged, but
}

// pending says whether the piece is still to go on.
func (p *piece) pending() bool {
	return p.Err == nil && p.Action != Unchanged && p.Action != Kept && !p.published
}

// do runs the steps in the order that the guarantees need: nothing is published before everything was checked.
// An error means that nothing was staged.
func (r *run) do() error {
	locked := false
	if !r.o.DryRun {
		err := lock(r.ctx, r.dir, r.o.LockWait)
		locked = err == nil
		switch {
		case r.ctx.Err() != nil:
			return r.ctx.Err()
		case errors.Is(err, hostdir.ErrLocked):
			r.warn("another staging held the lock for %s; went on without it and cleared no leftovers", r.o.LockWait)
		case err != nil:
			r.warn("went on without the lock: %s", errnoText(err))
		}
	}
	store, storeErr := openStore(r.ctx, r.dir, !r.o.DryRun)
	defer store.close()
	r.store, r.storeErr = store, storeErr
	if storeErr == nil && !r.o.DryRun {
		store.heal(r.warn)
	}
	if storeErr == nil && locked {
		store.clear(r.ctx, r.warn)
	}
	r.checkPolicies()
	if err := r.checkBundle(); err != nil {
		return err
	}
	items, err := plan(r.ctx, r.b, r.dir, r.o.Layout)
	if err != nil {
		return err
	}
	if err := r.decide(items); err != nil {
		return err
	}
	for _, it := range items {
		p := &piece{Item: it}
		if r.o.DryRun && it.Action == Replaced { // else it is found out when it is replaced
			var unjudged *unjudgedError
			if _, p.own, err = r.ours(&it, r.dir, it.Plugin.Name); err != nil && !errors.As(err, &unjudged) {
				return err
			}
			p.dropped = r.o.NoKeep && !p.own
		}
		r.work = append(r.work, p)
	}
	if storeErr != nil {
		r.failPending(storeErr)
	}
	if !r.o.DryRun {
		if err := r.apply(); err != nil {
			return err
		}
	}
	for _, p := range r.work {
		if p.Err == nil && p.warning != nil {
			r.warn("%s: staged, but %s", p.Plugin.Name, p.warning)
		}
	}
	r.sayContended()
	r.reportDropped()
	r.reportOverlay()
	return nil
}

// sayContended warns of the names that another program takes back each time.
func (r *run) sayContended() {
	for _, p := range r.work {
		if c := p.contended; c != nil {
			last := "with digest " + c.SHA256
			if c.SHA256 == unreadDigest {
				last = "could not be read"
			}
			r.warn("%s: contended: another program's file had to be replaced in %d runs in a row, the last %s", p.Plugin.Name, c.Runs, last)
		}
	}
}

func (r *run) results() []Result {
	results := make([]Result, len(r.work))
	for i, p := range r.work {
		results[i] = p.result()
	}
	return results
}

// checkBundle holds every byte of the bundle to its manifest before anything else is done: a plugin that is not to be
// written can be the one that shows the damage, and an equal file is equal to what the manifest says.
func (r *run) checkBundle() error {
	files, err := r.b.Distinct()
	if err != nil {
		return err
	}
	errs := make([]error, len(files))
	each(len(files), func(i int) { errs[i] = r.b.CheckDigest(r.ctx, files[i]) })
	return firstError(errs)
}

// lockPoll is how often a held lock is tried again.
const lockPoll = 50 * time.Millisecond

// lock waits at most so long for the bin dir's lock. If another process held it all the while, the error is ErrLocked.
func lock(ctx context.Context, dir *hostdir.Dir, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	for {
		err := tryLock(dir)
		if err == nil || !errors.Is(err, hostdir.ErrLocked) || !time.Now().Before(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// overlayNote says what cannot be taken back.
const overlayNote = "the bin dir lies on an overlay: what is written there goes on hiding the files below it, also those of a later " +
	"image, until the operating system's own reset"

// reportOverlay says so, once, if this run has written to an overlay.
func (r *run) reportOverlay() {
	wrote := slices.ContainsFunc(r.work, func(p *piece) bool {
		return p.published || r.o.DryRun && (p.Action == New || p.Action == Replaced)
	})
	if overlay, err := r.dir.Overlay(); err == nil && overlay && wrote {
		r.warn(overlayNote)
	}
}

func (r *run) warn(format string, args ...any) {
	r.warned.Lock()
	defer r.warned.Unlock()
	r.report.Warnings = append(r.report.Warnings, fmt.Sprintf(format, args...))
}

func (r *run) failPending(err error) {
	for _, p := range r.work {
		if p.pending() {
			p.Err = err
		}
	}
}

func (p *piece) result() Result {
	res := Result{Name: p.Plugin.Name, Found: p.Found, Action: p.Action, SHA256: p.Plugin.SHA256, Contended: p.contended,
		Own: p.own, Dropped: p.dropped, Reason: p.Reason, Cause: p.Why, Err: p.Err}
	if p.original != "" {
		res.Original = fmt.Sprintf("%s/%s/%s/%s", storeName, originalsName, p.Plugin.Name, p.original)
	}
	if p.Err != nil {
		res.Action = Failed
		res.Cause = p.cause()
	}
	return res
}

// cause is the error in the words of the report: the operation and the errno, and what became of the old file.
func (p *piece) cause() string {
	var left *LeftError
	var undurable *undurableError
	var stuck *stuckError
	switch {
	case errors.As(p.Err, &left):
		return left.Error()
	case errors.As(p.Err, &undurable):
		return undurable.Error()
	case errors.As(p.Err, &stuck):
		return stuck.Error()
	}
	text := errnoText(p.Err)
	switch p.Found.State {
	case Equal, Different, Unreadable:
		return text + "; the old file was kept"
	case Symlink:
		return text + "; the old link was kept"
	}
	return text
}

// errnoText is an error without the path in it: reports name the plugin and the directory once.
func errnoText(err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return errnoText(joined.Unwrap()[0])
	}
	if p, ok := err.(*fs.PathError); ok {
		return p.Op + ": " + p.Err.Error()
	}
	return err.Error()
}

// located is errnoText for where no word says which file it is: with its path below the bin dir.
func located(bin *hostdir.Dir, err error) string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return located(bin, joined.Unwrap()[0])
	}
	if p, ok := err.(*fs.PathError); ok {
		return p.Op + " " + strings.TrimPrefix(p.Path, bin.Path()+"/") + ": " + p.Err.Error()
	}
	return err.Error()
}

// nodeArch is this machine's architecture. chandler is built for the node that it runs on.
const nodeArch = runtime.GOARCH
