package stage

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// The bin dir's own folder:
//
//	.chandler/tmp/<run>/<name>                      files being written; a run's folder is locked while the run lives
//	.chandler/originals/<name>/<n>-<digest>         what staging replaced, moved there, the newest with the highest n
//	.chandler/originals/<name>/swap-<digest>-[first-]<run>  a name's exchange under way: our new file before it, what was there
//	                                                after; first if the digest had not been published under the name before
//	.chandler/originals/<name>/back-<inode>-<n>-<digest>  an original on its way back: the original itself while it has that inode
//	.chandler/originals/<name>/done-<inode>-<n>-<digest>  our file, in whose place that original stands again
//	.chandler/staged/<name>@<digest>                an empty file: staging has published this digest under this name
//	.chandler/staged/<name>@absent                  an empty file: nothing stood there when staging put a file there
//	.chandler/ledger.json                           the record for people, for chandler's own reports, and for marks that are lost
//
// Whatever can be lost by clearing lies in tmp. What is needed to tell ours from theirs is in the names of staged, written
// before the file they speak of is published, so that neither a crash nor a lost ledger can turn one of our own files into
// somebody's original.
const (
	storeName     = ".chandler"
	tmpName       = "tmp"
	originalsName = "originals"
	stagedName    = "staged"
	ledgerName    = "ledger.json"

	swapPrefix   = "swap-"
	firstTime    = "first-"
	backPrefix   = "back-"
	donePrefix   = "done-"
	absentMark   = "absent"
	unreadDigest = "unread" // stands for the digest of an original that could not be read, or was too large to

	keepOriginals = 3  // a name; and as many more that could not be read
	pushOutAtMost = 64 // originals at a time: somebody may have put any number there

	storePerm fs.FileMode = 0o700
)

// store is the open folder. Its own directories are opened, and made, when they are first needed: a run that changes
// nothing makes nothing.
type store struct {
	bin     *hostdir.Dir
	dir     *hostdir.Dir // nil while there is none
	created bool

	mu        sync.Mutex
	tmp       *hostdir.Dir
	run       *hostdir.Dir
	runName   string
	originals *hostdir.Dir
	staged    *hostdir.Dir
	hasMarks  bool     // this run has marks in staged
	lost      []string // marks that are gone, and that the ledger speaks for
	slots     map[string]*hostdir.Dir
	change    bool // the run is to change something, and may put modes right
	restoring bool // the run is a restoring, which confirms what an earlier one has put back
	uncleared bool // something of an earlier run stays in tmp, which was told
}

// OwnerError says that the folder in the bin dir belongs to somebody else, who could change what lies in it.
type OwnerError struct {
	Path string
	UID  uint32
}

func (e *OwnerError) Error() string {
	return fmt.Sprintf("%s belongs to uid %d, not to this process (uid %d)", e.Path, e.UID, os.Geteuid())
}

// storeError says that the folder, and not a plugin's own file, is in the way.
type storeError struct{ err error }

func (e *storeError) Error() string { return storeName + ": " + errnoText(e.err) }
func (e *storeError) Unwrap() error { return e.err }

// inStore names the folder in an error that would not name it by itself.
func inStore(err error) error {
	if _, ok := err.(*fs.PathError); ok {
		return &storeError{err}
	}
	return err
}

// TakenError says that something else, a mount too, stands where the folder, or one of its directories, should be.
type TakenError struct {
	Path    string // below the bin dir
	Mounted bool
}

func (e *TakenError) Error() string {
	if e.Mounted {
		return e.Path + " is a mount point"
	}
	return e.Path + " is not a directory"
}

// openStore opens the folder if it is there. It must be called with the bin dir's lock held, or nothing to wait for: the
// folder may come and go with another staging. Only if it may be changed is the folder's mode put right.
func openStore(ctx context.Context, bin *hostdir.Dir, change bool) (*store, error) {
	s := &store{bin: bin, slots: make(map[string]*hostdir.Dir)}
	s.change = change
	dir, err := s.sub(bin, storeName)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, inStore(err)
	}
	s.dir = dir
	staged, err := s.sub(dir, stagedName)
	if err == nil {
		s.staged = staged
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, inStore(err)
	}
	s.findLost(ctx)
	return s, nil
}

// names returns every name that has a mark or a folder of originals, in order. It opens the latter.
func (s *store) names() ([]string, error) {
	names, err := s.markedNames()
	if s.dir == nil || err != nil {
		return names, inStore(err)
	}
	originals, err := s.sub(s.dir, originalsName)
	if errors.Is(err, fs.ErrNotExist) {
		return names, nil
	}
	if err != nil {
		return nil, inStore(err)
	}
	s.originals = originals
	slots, err := originals.Names()
	for _, name := range slots {
		if plugin.CheckName(name) != nil || slices.Contains(names, name) {
			continue
		}
		// One with nothing of ours in it says nothing of the name. What is in the way is told when it is opened again.
		if slot, err := s.sub(originals, name); err == nil {
			files, err := slot.Names()
			says := slices.ContainsFunc(files, func(file string) bool {
				// That something was put back says nothing any more where another thing stands there by now.
				return isOurs(file) && (!donePattern.MatchString(file) || s.confirms(slot, name, file))
			})
			slot.Close()
			if err == nil && !says {
				continue
			}
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, err
}

// isOurs says whether a name in a slot is one that chandler gives.
func isOurs(file string) bool {
	return originalName.MatchString(file) || strings.HasPrefix(file, swapPrefix) || backPattern.MatchString(file) || donePattern.MatchString(file)
}

// keptIn lists the originals in a slot, oldest first. In a dry run, what an interrupted run has left on its way counts as
// what the next one makes of it.
func (s *store) keptIn(ctx context.Context, slot *hostdir.Dir, name string) ([]original, error) {
	files, err := slot.Names()
	if err != nil {
		return nil, err
	}
	kept := slices.DeleteFunc(parseOriginals(files), func(o original) bool { return s.oursAfterAll(ctx, slot, name, o) })
	for _, file := range files {
		if s.change || originalName.MatchString(file) || donePattern.MatchString(file) || !isOurs(file) {
			continue
		}
		e, err := slot.Stat(file)
		if err != nil || !takes(e.Kind) {
			continue
		}
		if m := backPattern.FindStringSubmatch(file); m != nil && m[1] == fmt.Sprint(e.Ino) {
			o := parseOriginals(m[2:])[0]
			o.file = file
			kept = append(kept, o)
			continue
		}
		digest, _, err := digestOrWhy(ctx, slot, file, e)
		if err != nil {
			return nil, err
		}
		if ours, _ := s.oursIn(file, name, digest, e); ours {
			continue
		}
		kept = append(kept, original{nextNumber(kept), digest, file})
	}
	slices.SortFunc(kept, func(a, b original) int { return cmp.Compare(a.n, b.n) })
	// What somebody has put there under such a name, and is no file, was never anybody's plugin.
	return slices.DeleteFunc(kept, func(o original) bool {
		e, err := slot.Stat(o.file)
		return err == nil && !takes(e.Kind)
	}), nil
}

// errUnsettled says that what an interrupted run has left under a name has not found its place yet: before it has, nobody can say what
// is to stand there.
var errUnsettled = errors.New("what an interrupted run has left could not be filed yet")

// settledName says whether nothing of a name is on its way any more.
func (s *store) settledName(slot *hostdir.Dir, name string) error {
	if s.staged != nil {
		e, err := s.staged.Stat(mark(name, absentMark))
		switch {
		case err == nil && e.Kind == hostdir.Folder:
			return fmt.Errorf("%s: %w", path.Join(storeName, stagedName, mark(name, absentMark)), unix.EISDIR)
		case err == nil && !empty(e):
			return errUnsettled
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if slot == nil {
		return nil
	}
	files, err := slot.Names()
	if err != nil {
		return err
	}
	back, _, err := s.isBack(slot, name)
	for _, file := range files {
		if strings.HasPrefix(file, swapPrefix) && !s.alive(file) || backPattern.MatchString(file) && file != back {
			return errUnsettled
		}
	}
	return err
}

// current says what stands under name in the bin dir and, if that is what staging put there, its digest.
func (s *store) current(ctx context.Context, name string) (e hostdir.Entry, digest string, err error) {
	if e, err = s.bin.Stat(name); err != nil || s.staged == nil && len(s.lost) == 0 || e.Kind != hostdir.File {
		return e, "", err
	}
	digest, unread, err := digestOrWhy(ctx, s.bin, name, e)
	if unread != nil && exact(e) { // else it is most likely somebody's
		err = errors.Join(err, unread)
	}
	if err != nil || digest == unreadDigest {
		return e, "", err
	}
	ours, err := s.ours(name, digest, e)
	if !ours {
		digest = ""
	}
	return e, digest, err
}

// sub opens the directory name in parent, which must be this user's and no mount of something else: whoever could change
// what lies in it could have staging publish or forget what they like. If something else stands there, the error is a
// *TakenError. If the run may change anything, its mode is put right.
func (s *store) sub(parent *hostdir.Dir, name string) (*hostdir.Dir, error) {
	path := strings.TrimPrefix(parent.Path()+"/"+name, s.bin.Path()+"/")
	dir, err := parent.Sub(name)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = &TakenError{path, false}
	}
	if err != nil {
		return nil, err
	}
	return claim(dir, path, s.change)
}

// claim makes sure that an opened directory is this user's and no mount, and closes it if it is not. If the run may change
// anything, nobody else may enter it from then on.
func claim(dir *hostdir.Dir, path string, change bool) (*hostdir.Dir, error) {
	e, err := dir.Self()
	if err == nil && e.UID != uint32(os.Geteuid()) {
		err = &OwnerError{path, e.UID}
	}
	if err == nil {
		var mounted bool
		if mounted, err = dir.MountPoint(); err == nil && mounted {
			err = &TakenError{path, true}
		}
	}
	if err == nil && e.Perm != storePerm && change {
		err = dir.Chmod(storePerm)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func (s *store) close() {
	for _, d := range s.slots {
		d.Close()
	}
	for _, d := range []*hostdir.Dir{s.run, s.tmp, s.originals, s.staged, s.dir} {
		if d != nil {
			d.Close()
		}
	}
}

// ensure opens the directory name in parent and makes it if need be.
func (s *store) ensure(parent *hostdir.Dir, name string) (dir *hostdir.Dir, created bool, err error) {
	dir, err = s.sub(parent, name)
	if !errors.Is(err, fs.ErrNotExist) {
		return dir, false, err
	}
	dir, err = parent.Make(name, storePerm)
	if errors.Is(err, fs.ErrExist) { // another run was quicker
		dir, err = s.sub(parent, name)
		return dir, false, err
	}
	return dir, err == nil, err
}

// open opens or makes one of the store's own directories.
func (s *store) open(at **hostdir.Dir, name string) (*hostdir.Dir, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.openLocked(at, name)
}

func (s *store) openLocked(at **hostdir.Dir, name string) (*hostdir.Dir, error) {
	if *at != nil {
		return *at, nil
	}
	if s.dir == nil {
		dir, created, err := s.ensure(s.bin, storeName)
		if err != nil {
			return nil, inStore(err)
		}
		s.dir, s.created = dir, created
	}
	dir, _, err := s.ensure(s.dir, name)
	if err != nil {
		return nil, inStore(err)
	}
	*at = dir
	return dir, nil
}

// gone says whether a directory has been removed: a run that came to nothing takes away what it made, and one beside it may
// have that open.
func gone(d *hostdir.Dir) bool {
	e, err := d.Self()
	return err == nil && e.Nlink == 0
}

// renew forgets those of the directories that are gone, so that they are made again. Only what this run has put nothing in
// yet may be renewed.
func renew(dirs ...**hostdir.Dir) {
	for _, at := range dirs {
		if *at != nil && gone(*at) {
			(*at).Close()
			*at = nil
		}
	}
}

// runDir is this run's own folder for files being written. Its lock tells other runs that it is in use.
func (s *store) runDir() (*hostdir.Dir, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	for range attempts {
		if s.run != nil {
			return s.run, nil
		}
		// Until it is locked, another run may take it for a leftover.
		var dir *hostdir.Dir
		name := rand.Text()
		if dir, err = s.makeRunDir(name); err == nil {
			s.run, s.runName = dir, name
		} else if !errors.Is(err, hostdir.ErrLocked) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if s.run != nil {
		return s.run, nil
	}
	return nil, err
}

// makeRunDir makes and locks a run's folder. If another run is clearing it, or has, the error is ErrLocked or ErrNotExist.
func (s *store) makeRunDir(name string) (*hostdir.Dir, error) {
	// A run's folder is the first that it makes.
	renew(&s.dir, &s.tmp)
	tmp, err := s.openLocked(&s.tmp, tmpName)
	if err != nil {
		return nil, err
	}
	dir, err := tmp.Make(name, storePerm)
	if err != nil {
		return nil, err
	}
	err = tryLock(dir)
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.ENOLCK) {
		err = nil // on such a file system no staging has the bin dir's lock either, without which it clears nothing
	}
	if err == nil && gone(dir) {
		err = fs.ErrNotExist
	}
	if err != nil {
		dir.Close()
		tmp.RemoveDir(name) // it may be gone, and else the next run clears it
		return nil, err
	}
	return dir, nil
}

// slot is the folder of one name's originals.
func (s *store) slot(name string) (*hostdir.Dir, error) {
	originals, err := s.open(&s.originals, originalsName)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.slots[name]; d != nil {
		return d, nil
	}
	d, _, err := s.ensure(originals, name)
	if err == nil {
		s.slots[name] = d
	}
	return d, err
}

// exact says whether a file's metadata is what staging leaves.
func exact(e hostdir.Entry) bool { return e.Kind == hostdir.File && metadataDiffers(e) == "" }

// oursAfterAll says whether an original that could not be read when it was kept is one of ours. If anything may be changed, it is
// removed then.
func (s *store) oursAfterAll(ctx context.Context, slot *hostdir.Dir, name string, o original) bool {
	if o.digest != unreadDigest {
		return false
	}
	e, err := slot.Stat(o.file)
	if err != nil || !exact(e) {
		return false
	}
	digest, unread, err := digestOrWhy(ctx, slot, o.file, e)
	if err != nil || unread != nil {
		return false
	}
	ours, _ := s.ours(name, digest, e)
	if ours && s.change {
		ours = slot.Remove(o.file) == nil
	}
	return ours
}

// clear puts right what earlier runs left. It must hold the lock. What cannot be cleared is not worth failing for.
func (s *store) clear(ctx context.Context, warn func(format string, args ...any)) {
	if err := s.settleSwaps(ctx); err != nil {
		warn("an interrupted run's original could not be filed: %s", located(s.bin, err))
	}
	if err := s.clearLeftovers(); err != nil {
		s.uncleared = true
		warn("leftovers of an earlier run stay: %s", located(s.bin, err))
	}
}

// clearLeftovers removes what runs that did not end have left in tmp. It must hold the bin dir's lock.
func (s *store) clearLeftovers() error {
	if s.dir == nil {
		return nil
	}
	tmp, err := s.sub(s.dir, tmpName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer tmp.Close()
	names, err := tmp.Names()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // taken away by the run that made it
	}
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, clearLeftover(tmp, name))
	}
	return errors.Join(errs...)
}

func clearLeftover(tmp *hostdir.Dir, name string) error {
	dir, err := tmp.Sub(name)
	if err == nil {
		defer dir.Close()
		if errors.Is(tryLock(dir), hostdir.ErrLocked) {
			return nil // a run that did not get the bin dir's lock and went on without it
		}
	}
	return tmp.RemoveAll(name)
}

// settleSwaps files what a crash has left half exchanged. It must hold the bin dir's lock.
func (s *store) settleSwaps(ctx context.Context) error {
	if s.dir == nil {
		return nil
	}
	errs := []error{s.settleAways(ctx)}
	originals, err := s.sub(s.dir, originalsName)
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(errs...)
	}
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer originals.Close()
	names, err := originals.Names()
	errs = append(errs, err)
	for _, name := range names {
		if plugin.CheckName(name) != nil {
			continue
		}
		slot, err := s.sub(originals, name)
		var taken *TakenError
		if errors.As(err, &taken) {
			continue // no run can have left anything in what is no directory; one that needs it says so
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files, err := slot.Names()
		errs = append(errs, err)
		for _, file := range files {
			switch {
			case strings.HasPrefix(file, swapPrefix) && !s.alive(file):
				_, err := s.settle(ctx, slot, name, file, keep)
				errs = append(errs, err)
			case s.restoring && s.confirms(slot, name, file):
			case donePattern.MatchString(file):
				errs = append(errs, slot.Remove(file))
			case strings.HasPrefix(file, backPrefix):
				errs = append(errs, s.settleBack(ctx, slot, name, file))
			case originalName.MatchString(file):
				errs = append(errs, s.settleOriginal(slot, name, file))
			}
		}
		slot.Close()
	}
	return errors.Join(errs...)
}

// confirms says whether a file in a slot tells that its original has its name again.
func (s *store) confirms(slot *hostdir.Dir, name, file string) bool {
	back, _, _ := s.isBack(slot, name)
	return back == file
}

// settleAways decides about what an interrupted restoring has left on its way out.
func (s *store) settleAways(ctx context.Context) error {
	if s.staged == nil {
		return nil
	}
	names, err := s.markedNames()
	errs := []error{err}
	for _, name := range names {
		e, err := s.staged.Stat(mark(name, absentMark))
		if err == nil && !empty(e) && e.Kind != hostdir.Folder { // which cannot have been put in a mark's place
			_, err = s.settleAway(ctx, name)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// settleAway decides what becomes of a file that lies in the place of a mark on its way out of its name: one of ours is removed.
// Anything else gets its name again, or is kept as its newest original if something stands there by now. What cannot be found out
// stays where it lies, for the next run: there is no mark for it to go back to.
func (s *store) settleAway(ctx context.Context, name string) (gone bool, err error) {
	away := mark(name, absentMark)
	e, err := s.staged.Stat(away)
	if err != nil {
		return false, err
	}
	if e.Kind == hostdir.File {
		digest, unread, err := digestOrWhy(ctx, s.staged, away, e)
		if err != nil {
			return false, err
		}
		ours, doubt := s.ours(name, digest, e)
		if ours {
			return true, s.staged.Remove(away)
		}
		if doubt = cmp.Or(unread, doubt); doubt != nil && exact(e) {
			return false, doubt
		}
	}
	err = given(publish(s.bin, s.staged, away, name))
	if !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	slot, err := s.slot(name)
	if err != nil {
		return false, err
	}
	swap := swapName(unreadDigest, rand.Text())
	if err := given(publish(slot, s.staged, away, swap)); err != nil {
		return false, err
	}
	_, err = s.settle(ctx, slot, name, swap, keep)
	return false, err
}

// alive says whether the run that made a swap name still lives. It then settles the swap itself.
func (s *store) alive(swap string) bool {
	tmp, err := s.dir.Sub(tmpName)
	if err != nil {
		return false
	}
	defer tmp.Close()
	live, _ := lives(tmp, swapRun(swap))
	return live
}

// lives says whether a run holds its folder's lock. An error says why that cannot be found out.
func lives(tmp *hostdir.Dir, run string) (bool, error) {
	dir, err := tmp.Sub(run)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	err = tryLock(dir)
	if errors.Is(err, hostdir.ErrLocked) {
		return true, nil
	}
	return false, err
}

// accompanied says whether another run works in the folder beside this one, or may.
func (s *store) accompanied() bool {
	if s.dir == nil {
		return false
	}
	tmp, err := s.dir.Sub(tmpName)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		return true
	}
	defer tmp.Close()
	runs, err := tmp.Names()
	return err != nil || slices.ContainsFunc(runs, func(run string) bool {
		if run == s.runName {
			return false
		}
		live, err := lives(tmp, run)
		return live || err != nil
	})
}

// settled is what became of a file that an exchange brought.
type settled struct {
	own      bool   // one of ours, and removed
	dropped  bool   // another's, and removed
	original string // its name among the originals, if it was kept
	digest   string // of what was another's
	doubt    error  // why it may be ours all the same
}

// filing says what becomes of a file that is not ours.
type filing string

const (
	drop     filing = "drop"
	keep     filing = "keep"      // as the newest original; so is what cannot be found out to be ours
	keepSure filing = "keep sure" // as keep, but what cannot be found out stays where it lies
)

// settle decides what becomes of a file that lies in a slot under its swap name: one of ours is removed, anything else is
// filed as the last argument says.
func (s *store) settle(ctx context.Context, slot *hostdir.Dir, name, swap string, others filing) (settled, error) {
	e, err := slot.Stat(swap)
	if err != nil {
		return settled{}, err
	}
	if s.placed(slot, name, e) {
		return settled{}, slot.Remove(swap)
	}
	if !takes(e.Kind) {
		return settled{}, s.giveBack(ctx, slot, name, swap)
	}
	digest, unread, err := digestOrWhy(ctx, slot, swap, e)
	if err != nil {
		return settled{}, err
	}
	ours, doubt := s.oursIn(swap, name, digest, e)
	if ours {
		return settled{own: true}, slot.Remove(swap)
	}
	if doubt = cmp.Or(unread, doubt); doubt != nil && others == keepSure {
		return settled{}, doubt
	}
	if others == drop {
		// What stood there before is gone: an earlier time when nothing did is not to be restored in its place.
		if err := s.unmarkAbsent(name); err != nil {
			return settled{digest: digest}, err
		}
		err := slot.Remove(swap)
		return settled{digest: digest, dropped: err == nil}, err
	}
	// What stood there once is known from now on, and is not nothing: unless it may be ours.
	if unread == nil || !exact(e) {
		if err := s.unmarkAbsent(name); err != nil {
			return settled{digest: digest}, err
		}
	}
	files, err := slot.Names()
	if err != nil {
		return settled{digest: digest}, err
	}
	kept := parseOriginals(files)
	for n := nextNumber(kept); ; n++ {
		if n > maxNumber {
			return settled{digest: digest}, errNumbers
		}
		file := fmt.Sprintf("%d-%s", n, digest)
		err := given(publish(slot, slot, swap, file))
		if errors.Is(err, fs.ErrExist) { // an unlocked run was here
			continue
		}
		if err != nil {
			return settled{digest: digest}, err
		}
		// One whose mark could not be looked at may be ours after all, and pushes out nobody's.
		if doubt == nil || unread != nil {
			err = pushOut(slot, append(kept, original{n, digest, file}))
		}
		return settled{original: file, digest: digest, doubt: doubt}, err
	}
}

// errNumbers says that somebody has put an original of the highest number there.
var errNumbers = errors.New("no number is left for it among the originals")

// pushOut removes originals until no more than are kept remain: of those that could be read, and of those that could not, which may be
// ours and push out no others. Older ones go first; before them one whose bytes a newer one has too, so that a program that
// puts the same file back each time pushes out its own.
func pushOut(slot *hostdir.Dir, kept []original) error {
	newest := make(map[string]int) // number by digest
	many := make(map[bool]int)     // by whether they could be read
	for _, o := range kept {
		newest[o.digest] = max(newest[o.digest], o.n)
		many[o.digest != unreadDigest]++
	}
	removed := 0
	for _, again := range []bool{true, false} { // those that are there again first
		for i, o := range kept {
			read := o.digest != unreadDigest
			if many[read] <= keepOriginals || o.file == "" || again && (!read || o.n == newest[o.digest]) || removed == pushOutAtMost {
				continue
			}
			if err := slot.Remove(o.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			many[read]--
			removed++
			kept[i].file = ""
		}
	}
	return nil
}

// given is a publishing's error where the old name that may stay is a leftover: the next run clears it.
func given(err error) error {
	var stays *hostdir.StaysError
	if errors.As(err, &stays) {
		return nil
	}
	return err
}

// settleOriginal takes away the kept name of an original that has its own name again.
func (s *store) settleOriginal(slot *hostdir.Dir, name, file string) error {
	e, err := slot.Stat(file)
	if err != nil || e.Nlink < 2 {
		return err
	}
	if there, err := s.bin.Stat(name); err != nil || !there.Same(e) {
		return nil
	}
	return slot.Remove(file)
}

// placed says whether what lies in a slot under its swap name has its place under another name: on file systems whose renames
// know no flags, a run may end between the giving of a name and the taking away of another.
func (s *store) placed(slot *hostdir.Dir, name string, e hostdir.Entry) bool {
	if e.Nlink < 2 || e.Kind == hostdir.Folder {
		return false
	}
	if there, err := s.bin.Stat(name); err == nil && there.Same(e) {
		return true
	}
	files, err := slot.Names()
	return err == nil && slices.ContainsFunc(parseOriginals(files), func(o original) bool {
		kept, err := slot.Stat(o.file)
		return err == nil && kept.Same(e)
	})
}

// giveBack puts what staging never takes, and has in its hands since it was killed or a name changed at the wrong moment,
// back to its name: if nothing stands there, or our file. Whoever else stands there stays, and it lies where it is.
func (s *store) giveBack(ctx context.Context, slot *hostdir.Dir, name, swap string) error {
	stuck := func(err error) error { return stuckSwap(name, swap, err) }
	there, err := s.bin.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := given(publish(s.bin, slot, swap, name)); err != nil {
			return stuck(err)
		}
		return nil
	}
	if err != nil {
		return stuck(err)
	}
	digest, err := digestOf(ctx, s.bin, name, there)
	if err != nil {
		return stuck(err)
	}
	if ours, _ := s.oursIn(swap, name, digest, there); !ours {
		return stuck(errContended)
	}
	if err := exchange(s.bin, slot, swap, name); err != nil {
		return stuck(err)
	}
	if back, err := slot.Stat(swap); err != nil || !back.Same(there) {
		return stuck(errContended)
	}
	return slot.Remove(swap)
}

// first says whether a swap name is that of the first publishing of its digest under the name.
func first(swap string) bool { return strings.Contains(swap, "-"+firstTime) }

// swapName is the name of an exchange under way: <prefix><digest of our file>-<run>.
func swapName(digest, run string) string { return swapPrefix + digest + "-" + run }

func swapDigest(swap string) string {
	digest, _, _ := strings.Cut(strings.TrimPrefix(swap, swapPrefix), "-")
	return digest
}

func swapRun(swap string) string { return swap[strings.LastIndexByte(swap, '-')+1:] }

// original is one kept file: <n>-<digest>.
type original struct {
	n            int
	digest, file string
}

const maxNumber = 999_999_999

var originalName = regexp.MustCompile(`^([1-9][0-9]{0,8})-([0-9a-f]{64}|` + unreadDigest + `)$`)

// parseOriginals reads a slot's names, oldest first.
func parseOriginals(files []string) []original {
	var kept []original
	for _, file := range files {
		if m := originalName.FindStringSubmatch(file); m != nil {
			n, _ := strconv.Atoi(m[1]) // at most nine digits
			kept = append(kept, original{n, m[2], file})
		}
	}
	slices.SortFunc(kept, func(a, b original) int { return cmp.Compare(a.n, b.n) })
	return kept
}

func nextNumber(kept []original) int {
	if len(kept) == 0 {
		return 1
	}
	return kept[len(kept)-1].n + 1
}

// digestOf returns the SHA-256 of a file, or of a symlink's target. What this process may not read, or what is larger than
// any plugin, is not read: staging does not fail for want of its digest.
func digestOf(ctx context.Context, dir *hostdir.Dir, name string, e hostdir.Entry) (string, error) {
	digest, _, err := digestOrWhy(ctx, dir, name, e)
	return digest, err
}

// digestOrWhy is digestOf for whom it matters why what should have been read was not.
func digestOrWhy(ctx context.Context, dir *hostdir.Dir, name string, e hostdir.Entry) (digest string, unread, err error) {
	if e.Kind == hostdir.Symlink {
		target, err := dir.Readlink(name)
		sum := sha256.Sum256([]byte(target))
		return hex.EncodeToString(sum[:]), nil, err
	}
	if e.Kind != hostdir.File || e.Size > plugin.MaxSize {
		return unreadDigest, nil, nil
	}
	f, _, err := openFile(dir, name)
	if err != nil {
		return unreadDigest, err, nil
	}
	defer f.Close()
	digest, err = hashFile(ctx, f)
	if err != nil && ctx.Err() == nil {
		return unreadDigest, err, nil
	}
	return digest, nil, err
}

// hashFile returns the SHA-256 of a file's bytes from where it stands to its end.
func hashFile(ctx context.Context, f io.Reader) (string, error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	h := sha256.New()
	_, err := io.CopyBuffer(h, &reader{ctx, f}, buf[:])
	return hex.EncodeToString(h.Sum(nil)), err
}

// reader ends with ctx, and hides a file's own ways to be copied, so that the buffer's size holds.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// sync makes the folder's names durable.
func (s *store) sync() error {
	var errs []error
	for _, d := range s.slots {
		errs = append(errs, syncDir(d))
	}
	for _, d := range []*hostdir.Dir{s.originals, s.dir} {
		if d != nil {
			errs = append(errs, syncDir(d))
		}
	}
	return errors.Join(errs...)
}

// tidy removes this run's folder and, if the run made the store and nothing came to lie in it, the store.
func (s *store) tidy() error {
	if s.run != nil {
		if err := s.tmp.RemoveAll(s.runName); err != nil {
			return err
		}
	}
	if !s.created || s.dir == nil { // nil too if it went with the bin dir
		return nil
	}
	// Marks say that this run, or one beside it that uses the store too, has published: then all of it stays. Each of the
	// others stays if it holds anything.
	if err := s.dir.RemoveDir(stagedName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for name := range s.slots {
		s.originals.RemoveDir(name)
	}
	for _, name := range []string{originalsName, tmpName} {
		s.dir.RemoveDir(name)
	}
	s.bin.RemoveDir(storeName)
	return nil
}
