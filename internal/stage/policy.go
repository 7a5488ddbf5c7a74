package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
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

// decide lets the policy of each name speak on what the plan would replace. It changes nothing. Errors are the context's.
func (r *run) decide(items []Item) error {
	errs := make([]error, len(items))
	each(len(items), func(i int) {
		it := &items[i]
		it.policy = r.o.policy(it.Plugin.Name)
		if it.Action == Unchanged {
			return
		}
		reason, why, err := r.keeps(it)
		switch {
		case err != nil:
			errs[i] = err
		case reason != "":
			it.Action, it.Reason, it.Why, it.Err = Kept, reason, why, nil
		}
	})
	return firstError(errs)
}

// keeps says why the policy keeps what stands under a name, in a word and in words; nothing if it does not.
func (r *run) keeps(it *Item) (reason Reason, why string, err error) {
	something := it.Found.State != Absent
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
		ours, err := r.ours(it)
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
			return r.keepsNewer(it)
		}
	}
	return "", "", nil
}

func (r *run) keepsNewer(it *Item) (reason Reason, why string, err error) {
	theirs := it.description
	ours, err := r.ours(it)
	if err != nil {
		return "", "", err
	}
	order, known := 0, false
	if theirs.Version != "" {
		version, module, err := r.bundleVersion(it.Plugin)
		if err != nil {
			return "", "", err
		}
		if module == theirs.Module {
			if order, known = plugin.Compare(theirs.Version, version); known && order > 0 {
				return IsNewer, fmt.Sprintf("%s is newer than the bundle's %s", theirs.Version, version), nil
			}
		}
	}
	switch {
	case ours:
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
		return UnknownVersion, "unknown version, " + it.Found.String(), nil
	}
	return "", "", nil
}

// ours says whether what the plan found is what staging put there.
func (r *run) ours(it *Item) (bool, error) {
	if it.Found.State != Different || r.store.staged == nil || !exact(it.entry) {
		return false, nil
	}
	digest, err := digestOf(r.ctx, r.dir, it.Plugin.Name, it.entry)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, r.ctx.Err()
	}
	ours, _ := r.store.ours(it.Plugin.Name, digest, it.entry)
	return ours, nil
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
	if err != nil {
		return "", "", nil // it says none
	}
	return d.Version, d.Module, nil
}

// describeFile says what a regular file in a bin dir says of itself; what is no plugin says nothing. Errors are those of
// opening and reading it.
func describeFile(dir *hostdir.Dir, name string) (plugin.Description, error) {
	f, e, err := dir.OpenFile(name)
	if err != nil {
		return plugin.Description{}, err
	}
	defer f.Close()
	if e.Size > plugin.MaxSize {
		return plugin.Description{}, nil
	}
	d, err := plugin.Describe(f, e.Size)
	var format *plugin.FormatError
	if errors.Is(err, plugin.ErrNotExecutable) || errors.As(err, &format) {
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
