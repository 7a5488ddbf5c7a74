package stage

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Policy says what may be replaced.
type Policy string

const (
	// Replace puts the bundle's file in any file's and any link's place.
	Replace Policy = "replace"
	// Newer replaces only what is of an older version. What is of the same version and other bytes is somebody's patched
	// build, and stays; so does what is newer, also if staging put it there from a later bundle.
	Newer Policy = "newer"
	// Missing stages only where nothing is. A link is something, also one whose target cannot be seen from here; what staging
	// itself put there and nobody has touched is nobody's, and follows the bundle.
	Missing Policy = "missing"
	// Never leaves the name alone.
	Never Policy = "never"
)

// Unknown says what the policy Newer makes of a file whose version cannot be known.
type Unknown string

const (
	ReplaceUnknown Unknown = "replace"
	KeepUnknown    Unknown = "keep"
)

// Reason is why a policy keeps what stands under a name.
type Reason string

const (
	ByPolicy       Reason = "policy"          // missing, or never
	IsNewer        Reason = "newer"           // than the bundle's
	SameVersion    Reason = "same version"    // and other bytes
	UnknownVersion Reason = "unknown version" // or one that does not compare, and these are to be kept
	Raced          Reason = "changed"         // since the policy was asked; the next run asks it anew
)

func (o Options) policy(name string) Policy {
	if p, ok := o.PolicyFor[name]; ok {
		return p
	}
	if o.Policy == "" {
		return Replace
	}
	return o.Policy
}

// Asks says whether any plugin's policy is p.
func (o Options) Asks(p Policy) bool {
	return o.Policy == p || slices.Contains(slices.Collect(maps.Values(o.PolicyFor)), p)
}

// unjudgedError says that a policy could not be asked about what stands under a name, since that could not be found out.
type unjudgedError struct{ err error }

func (e *unjudgedError) Error() string { return e.err.Error() }
func (e *unjudgedError) Unwrap() error { return e.err }

// decide lets the policy of each name speak on what the plan would replace. What it cannot be asked about stays, and has failed.
// It changes nothing. Errors are the bundle's and the context's.
func (r *run) decide(items []Item) error {
	errs := make([]error, len(items))
	each(len(items), func(i int) {
		it := &items[i]
		it.policy = r.o.policy(it.Plugin.Name)
		if it.Action == Unchanged {
			return
		}
		reason, why, err := r.keeps(it, r.dir, it.Plugin.Name)
		var unjudged *unjudgedError
		switch {
		case r.ctx.Err() != nil:
			errs[i] = r.ctx.Err()
		case errors.As(err, &unjudged):
			it.Action, it.Err = Failed, unjudged.err
		case err != nil:
			errs[i] = err
		case reason != "":
			it.Action, it.Reason, it.Why, it.Err = Kept, reason, why, nil
		}
	})
	return firstError(errs)
}

// keeps says why the policy keeps what stands under a name, and lies in dir as file, in a word and in words; nothing if it does not.
// Errors are *unjudgedError, the bundle's and the context's.
func (r *run) keeps(it *Item, dir *hostdir.Dir, file string) (reason Reason, why string, err error) {
	something := it.Found.State != Absent
	var left *LeftError
	if it.Err != nil && !errors.As(it.Err, &left) && it.policy != Never {
		return "", "", nil // it could not be looked at, and has failed
	}
	switch it.policy {
	case Never:
		if !something {
			return ByPolicy, "policy never, nothing stands there", nil
		}
		return ByPolicy, "policy never, " + it.Found.String(), nil
	case Missing:
		if !something {
			return "", "", nil
		}
		_, ours, err := r.ours(it, dir, file)
		if ours || err != nil {
			return "", "", err
		}
		return ByPolicy, "policy missing, " + it.Found.String(), nil
	case Newer:
		switch it.Found.State {
		case Symlink, Unreadable, Different:
			if it.sameBytes {
				return "", "", nil // the bundle's own file, with another mode, owner or number of names
			}
			return r.keepsNewer(it, dir, file)
		}
	}
	return "", "", nil
}

func (r *run) keepsNewer(it *Item, dir *hostdir.Dir, file string) (reason Reason, why string, err error) {
	theirs := it.description
	digest, ours, err := r.ours(it, dir, file)
	if err != nil {
		return "", "", err
	}
	version, module, err := r.bundleVersion(it.Plugin)
	if err != nil {
		return "", "", err
	}
	if it.unread != nil && r.o.Unknown != KeepUnknown {
		return "", "", &unjudgedError{it.unread} // it may be of any version
	}
	order, known := 0, false
	if theirs.Version != "" && module == theirs.Module {
		order, known = plugin.Compare(theirs.Version, version)
	}
	is := theirs.Version
	if ours && !known { // it does not say: the ledger may know which bundle it came from
		is = r.store.stagedFrom(it.Plugin.Name, digest)
		order, known = plugin.Compare(is, r.b.Manifest.Version)
		version = r.b.Manifest.Version
	}
	switch {
	case known && order > 0:
		return IsNewer, fmt.Sprintf("%s is newer than the bundle's %s", is, version), nil
	case ours && known:
		return "", "", nil // of the same version, but an earlier build of ours: the bundle's is the one to have
	case known && order == 0:
		return SameVersion, theirs.Version + " (same version, different build)", nil
	case !known && r.o.Unknown == KeepUnknown:
		if strings.HasPrefix(it.Found.Build, "unknown version") {
			return UnknownVersion, it.Found.Build, nil
		}
		if theirs.Version != "" { // no order is known, or it is another module's
			return UnknownVersion, "version not comparable: " + theirs.Build(), nil
		}
		why := "unknown version, " + it.Found.String()
		if it.unread != nil && it.Found.State != Unreadable { // a link's
			why += ", " + errnoText(it.unread)
		}
		return UnknownVersion, why, nil
	}
	return "", "", nil
}

// ours says whether what stands under a name, and lies in dir as file, is what staging put there, and what its digest is then. If
// that cannot be found out, the error is an *unjudgedError; but what has another mode or owner than staging leaves is most likely
// somebody's.
func (r *run) ours(it *Item, dir *hostdir.Dir, file string) (digest string, ours bool, err error) {
	if it.Found.State != Different && it.Found.State != Unreadable || r.store.staged == nil && r.storeErr == nil {
		return "", false, nil
	}
	unread := cmp.Or(r.storeErr, it.unread)
	if unread == nil {
		digest, unread, err = digestOrWhy(r.ctx, dir, file, it.entry)
	}
	switch {
	case err != nil:
		return "", false, err
	case errors.Is(unread, fs.ErrNotExist), unread != nil && !exact(it.entry):
		return "", false, nil
	case unread != nil:
		return "", false, &unjudgedError{unread}
	}
	if ours, err = r.store.ours(it.Plugin.Name, digest, it.entry); err != nil {
		return "", false, &unjudgedError{err}
	}
	return digest, ours, nil
}

// bundleVersion is the version of a plugin of the bundle, and of which module: the reference plugins' is the bundle's own, the
// user's are asked.
func (r *run) bundleVersion(p bundle.Plugin) (version, module string, err error) {
	if p.Role.Reference() {
		return r.b.Manifest.Version, plugin.ReferenceModule, nil
	}
	f, err := r.b.OpenPlugin(p)
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	d, err := plugin.Describe(f, p.Size)
	if err != nil && !saysNothing(err) {
		return "", "", r.b.Damage(p, err)
	}
	return d.Version, d.Module, nil
}

// saysNothing says that a file was read and is no plugin.
func saysNothing(err error) bool {
	var format *plugin.FormatError
	return errors.Is(err, plugin.ErrNotExecutable) || errors.As(err, &format)
}

// describe says what an opened regular file says of itself; what is no plugin says nothing. Errors are those of opening and
// reading it.
func describe(f *os.File, e hostdir.Entry, err error) (plugin.Description, error) {
	if err != nil {
		return plugin.Description{}, err
	}
	defer f.Close()
	if e.Size > plugin.MaxSize {
		return plugin.Description{}, nil
	}
	d, err := plugin.Describe(f, e.Size)
	if saysNothing(err) {
		err = nil
	}
	return d, err
}

// checkPolicies says which of the names that have a policy of their own the bundle does not know.
func (r *run) checkPolicies() {
	for _, name := range slices.Sorted(maps.Keys(r.o.PolicyFor)) {
		if _, ok := r.b.Plugin(name); !ok {
			r.warn("a policy is given for %s, which the bundle does not carry", name)
		}
	}
}

// reportDropped says which files of earlier bundles the bundle no longer carries. They are left: somebody may use them.
func (r *run) reportDropped() {
	names, _ := r.store.markedNames() // for telling only
	for _, name := range names {
		if _, ok := r.b.Plugin(name); ok {
			continue
		}
		if _, ours, err := r.store.current(r.ctx, name); err == nil && ours != "" {
			r.warn("%s: was staged from another bundle and is not in this one; it stays until 'chandler restore --only %s'", name, name)
		}
	}
}
