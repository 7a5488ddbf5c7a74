package stage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// State is what a plan found under a name.
type State string

const (
	Absent     State = "absent"
	Equal      State = "equal"      // bytes, mode and owner as the bundle wants them
	Different  State = "different"  // a file with other bytes, another mode or another owner
	AsStaged   State = "as staged"  // a file that staging put there and nobody has touched
	Unreadable State = "unreadable" // a file that this process may not or cannot read
	Directory  State = "directory"
	Symlink    State = "symlink"
	Special    State = "special" // a fifo, a socket, a device
)

// Found is what stands under a plugin's name.
type Found struct {
	State  State  `json:"state"`
	Detail string `json:"detail,omitempty"` // what differs, why it cannot be read, which kind of special file
	Target string `json:"target,omitempty"` // of a symlink
	// Visible says whether a symlink's target can be seen from here. In a container it often cannot.
	Visible bool `json:"visible,omitempty"`
	// What a file with other bytes says of itself; anybody may have written that into it. Build has the version and who built it.
	Version string `json:"version,omitempty"`
	Build   string `json:"build,omitempty"`
}

func (f Found) String() string {
	switch {
	case f.State == Symlink && f.Visible:
		return fmt.Sprintf("symlink to %s", Printable(f.Target))
	case f.State == Symlink:
		return fmt.Sprintf("symlink to %s (not visible from here)", Printable(f.Target))
	case f.Build != "":
		return f.Build
	case f.Detail != "":
		return fmt.Sprintf("%s (%s)", f.State, f.Detail)
	}
	return string(f.State)
}

// Item is one plugin of a plan.
type Item struct {
	Plugin bundle.Plugin
	Found  Found
	Action Action // New, Replaced, Unchanged, Kept with Reason and Why, or Failed with Err
	Reason Reason
	Why    string
	Err    error

	entry       hostdir.Entry // of what was found
	sameBytes   bool          // a file with the bundle's bytes, whatever else differs
	description plugin.Description
	unread      error  // why what it is could not be read; nil also where it could not even be looked at
	policy      Policy // that decided it
	linkTo      *Item  // whose file, already in place, is to get this name too; nil if there is none
}

// LeftError says that a name is taken by something that staging never touches.
type LeftError struct{ Kind hostdir.Kind }

func (e *LeftError) Error() string { return fmt.Sprintf("is a %s, left as it is", e.Kind) }

// plan compares the bundle with the bin dir and decides for each plugin. It changes nothing. An error is the bundle's or the
// context's.
func plan(ctx context.Context, b *bundle.Bundle, dir *hostdir.Dir, layout Layout) ([]Item, error) {
	items := make([]Item, len(b.Manifest.Plugins))
	errs := make([]error, len(items))
	each(len(items), func(i int) {
		p := b.Manifest.Plugins[i]
		items[i] = Item{Plugin: p}
		if errs[i] = ctx.Err(); errs[i] == nil {
			errs[i] = items[i].look(b, dir, dir, p.Name)
		}
	})
	// The first in order, so that two runs over one damage say the same.
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	if layout == Linked {
		planLinked(items)
	} else {
		planSeparate(items)
	}
	return items, nil
}

// planSeparate gives a file of its own to every name that shares one with an earlier name.
func planSeparate(items []Item) {
	type inode struct{ dev, ino uint64 }
	first := make(map[inode]string)
	for i := range items {
		it := &items[i]
		if it.Found.State != Equal {
			continue
		}
		at := inode{it.entry.Dev, it.entry.Ino}
		if other, ok := first[at]; ok {
			it.differ("one file with " + other)
		} else {
			first[at] = it.Plugin.Name
		}
	}
}

// planLinked makes the names of one digest names of one file: of the first that is in place, or else of a new one.
func planLinked(items []Item) {
	first := make(map[string]*Item)
	for i := range items {
		it := &items[i]
		if it.Found.State != Equal {
			continue
		}
		if other := first[it.Plugin.SHA256]; other == nil {
			first[it.Plugin.SHA256] = it
		} else if !it.entry.Same(other.entry) {
			it.differ("not one file with " + other.Plugin.Name)
		}
	}
	for i := range items {
		if it := &items[i]; it.Found.State != Equal {
			it.linkTo = first[it.Plugin.SHA256]
		}
	}
}

func (it *Item) differ(how string) {
	it.Found, it.Action = Found{State: Different, Detail: how}, Replaced
}

// look fills in what stands under the item's name and what is to be done about it. What stands there lies in dir as name: where
// links lead is a matter of the bin dir all the same.
func (it *Item) look(b *bundle.Bundle, bin, dir *hostdir.Dir, name string) error {
	e, err := dir.Stat(name)
	it.entry = e
	switch {
	case errors.Is(err, fs.ErrNotExist):
		it.Found, it.Action = Found{State: Absent}, New
		return nil
	case err != nil:
		it.Found, it.Action, it.Err = Found{State: Unreadable, Detail: errnoText(err)}, Failed, err
		return nil
	}
	switch e.Kind {
	case hostdir.File:
		it.Action = Replaced
		if err := it.compare(b, dir, name); err != nil {
			return err
		}
		if it.Found.State == Equal {
			it.Action = Unchanged
		} else if it.Found.State == Different && !it.sameBytes {
			if it.description, err = describe(openFile(dir, name)); err != nil {
				it.unreadable(err)
			}
			it.Found.Version, it.Found.Build = it.description.Version, it.description.Build()
		}
	case hostdir.Symlink:
		target, err := dir.Readlink(name)
		if err != nil {
			it.Found, it.Action, it.Err = Found{State: Symlink}, Failed, err
			return nil
		}
		it.Found, it.Action = Found{State: Symlink, Target: target, Visible: bin.TargetVisible(target)}, Replaced
		// A link that stays in the directory leads nowhere else, wherever that is mounted.
		it.description, err = describe(openBelow(bin, target))
		if !leadsNowhere(err) {
			it.unread = err
		}
		it.Found.Version = it.description.Version
	case hostdir.Folder:
		it.Found, it.Action, it.Err = Found{State: Directory}, Failed, &LeftError{e.Kind}
	default:
		it.Found, it.Action, it.Err = Found{State: Special, Detail: string(e.Kind)}, Failed, &LeftError{e.Kind}
	}
	return nil
}

// leadsNowhere says that what a link leads to is not there, no file, or out of the directory: then it is of no version.
func leadsNowhere(err error) bool {
	var p *fs.PathError
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &p) && p.Op == "open" && slices.ContainsFunc([]error{hostdir.ErrNotRegular, unix.EXDEV, unix.ELOOP, unix.ENOTDIR, unix.ENAMETOOLONG, unix.ENOSYS},
		func(target error) bool { return errors.Is(err, target) })
}

func (it *Item) unreadable(err error) {
	it.Found, it.unread = Found{State: Unreadable, Detail: errnoText(err)}, err
}

// compare fills in how the regular file in dir differs from the bundle's. The bytes are compared with each other and not
// hashed: it is the quicker where a processor has no instructions for SHA-256, and the bundle's side was hashed already.
// Errors are the bundle's.
func (it *Item) compare(b *bundle.Bundle, dir *hostdir.Dir, name string) error {
	p := it.Plugin
	if it.entry.Size != p.Size {
		it.Found = Found{State: Different, Detail: fmt.Sprintf("%d bytes, not %d", it.entry.Size, p.Size)}
		return nil
	}
	theirs, e, err := openFile(dir, name)
	if err != nil {
		it.unreadable(err)
		return nil
	}
	defer theirs.Close()
	it.entry = e
	ours, err := b.OpenPlugin(p)
	if err != nil {
		return err
	}
	defer ours.Close()
	it.sameBytes, err = sameBytes(ours, theirs)
	var read *readError
	switch differs := metadataDiffers(e); {
	case errors.As(err, &read) && read.first:
		return b.Damage(p, read.err)
	case err != nil:
		it.unreadable(err)
	case !it.sameBytes:
		it.Found = Found{State: Different, Detail: "other bytes"}
	case differs != "":
		it.Found = Found{State: Different, Detail: differs}
	default:
		it.Found = Found{State: Equal}
	}
	return nil
}

// metadataDiffers says how a file's mode or owner is not as staging leaves it.
func metadataDiffers(e hostdir.Entry) string {
	switch {
	case e.Perm != pluginPerm:
		return fmt.Sprintf("mode %04o, not %04o", uint32(e.Perm), uint32(pluginPerm))
	case e.UID != uint32(os.Geteuid()):
		return fmt.Sprintf("owner %d, not %d", e.UID, os.Geteuid())
	}
	return ""
}

// compareSize is the measured best: two buffers of 64 KiB stay in the second cache.
const compareSize = 64 << 10

var compareBuffers = sync.Pool{New: func() any { return new([2][compareSize]byte) }}

// readError tells which of two files could not be read.
type readError struct {
	first bool
	err   error
}

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

func sameBytes(a, b io.Reader) (bool, error) {
	buf := compareBuffers.Get().(*[2][compareSize]byte)
	defer compareBuffers.Put(buf)
	for {
		n, errA := io.ReadFull(a, buf[0][:])
		m, errB := io.ReadFull(b, buf[1][:])
		endA, endB := atEnd(errA), atEnd(errB)
		switch {
		case errA != nil && !endA:
			return false, &readError{true, errA}
		case errB != nil && !endB:
			return false, &readError{false, errB}
		case !bytes.Equal(buf[0][:n], buf[1][:m]):
			return false, nil
		case endA || endB:
			return endA && endB, nil
		}
	}
}

func atEnd(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }

// workers is how many plugins are worked on at once: one keeps a core busy hashing while another's bytes go to the disk.
const workers = 2

// each calls do for every number below n, on a few goroutines, and returns when all are done. A panic in one of them is
// raised here, where the command line can still report it.
func each(n int, do func(int)) {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		next  int
		cause any
	)
	work := func() {
		defer func() {
			if p := recover(); p != nil {
				mu.Lock()
				cause = p
				mu.Unlock()
			}
		}()
		for {
			mu.Lock()
			i := next
			next++
			mu.Unlock()
			if i >= n {
				return
			}
			do(i)
		}
	}
	for range min(workers, n) {
		wg.Go(work)
	}
	wg.Wait()
	if cause != nil {
		panic(cause)
	}
}
