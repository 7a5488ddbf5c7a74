package stage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Verdict is what Verify found.
type Verdict struct {
	Version string  `json:"version"`
	Bundle  string  `json:"bundle"`
	BinDir  string  `json:"binDir"`
	Plugins []Check `json:"plugins"`
}

// Check is the entry of one plugin.
type Check struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Found Found  `json:"found"`
	Cause string `json:"cause,omitempty"` // what is not right
}

// OK says whether every plugin is what the bundle says and runs.
func (v *Verdict) OK() bool {
	for _, c := range v.Plugins {
		if !c.OK {
			return false
		}
	}
	return true
}

// Verify says for each plugin of the bundle whether the file in the bin dir has the manifest's digest, mode and owner, and
// whether it runs. It changes nothing and reads every byte. What is run is the open file whose digest was just checked.
// Errors are *BinDirError or the context's; all else is in the verdict.
func Verify(ctx context.Context, b *bundle.Bundle, o Options) (*Verdict, error) {
	dir, err := openBinDir(Options{BinDir: o.BinDir, ShownAs: o.ShownAs})
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	v := &Verdict{Version: b.Manifest.Version, Bundle: b.Digest, BinDir: o.shown(),
		Plugins: make([]Check, len(b.Manifest.Plugins))}
	each(len(v.Plugins), func(i int) {
		v.Plugins[i] = verifyOne(ctx, b.Manifest.Plugins[i], dir, o.NoProbe)
	})
	return v, ctx.Err()
}

func verifyOne(ctx context.Context, p bundle.Plugin, dir *hostdir.Dir, noProbe bool) Check {
	c := Check{Name: p.Name}
	e, err := dir.Stat(p.Name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Found, c.Cause = Found{State: Absent}, "absent"
		return c
	case err != nil:
		c.Found, c.Cause = Found{State: Unreadable, Detail: errnoText(err)}, errnoText(err)
		return c
	}
	switch e.Kind {
	case hostdir.File:
	case hostdir.Symlink:
		target, _ := dir.Readlink(p.Name) // for telling only
		c.Found = Found{State: Symlink, Target: target, Visible: dir.TargetVisible(p.Name)}
		c.Cause = "is a " + c.Found.String()
		return c
	case hostdir.Folder:
		c.Found, c.Cause = Found{State: Directory}, "is a directory"
		return c
	default:
		c.Found, c.Cause = Found{State: Special, Detail: string(e.Kind)}, "is a "+string(e.Kind)
		return c
	}
	if e.Size != p.Size {
		c.Found = Found{State: Different, Detail: fmt.Sprintf("%d bytes, not %d", e.Size, p.Size)}
		c.Cause = c.Found.Detail
		return c
	}
	f, e, err := dir.OpenFile(p.Name)
	if err != nil {
		c.Found, c.Cause = Found{State: Unreadable, Detail: errnoText(err)}, errnoText(err)
		return c
	}
	defer f.Close()
	digest, err := hashFile(ctx, f)
	switch {
	case err != nil:
		c.Found, c.Cause = Found{State: Unreadable, Detail: errnoText(err)}, errnoText(err)
		return c
	case digest != p.SHA256:
		c.Found = Found{State: Different, Detail: "other bytes"}
		c.Cause = "other bytes: sha256:" + digest
		return c
	}
	if d := metadataDiffers(e); d != "" {
		c.Found, c.Cause = Found{State: Different, Detail: d}, d
		return c
	}
	c.Found, c.OK = Found{State: Equal}, true
	err = probeFile(ctx, f, e.Size, filepath.Join(dir.Path(), p.Name), p.Name, noProbe)
	failure, warning := plugin.MustAnswer(p.Role.Reference(), err)
	switch {
	case failure != nil:
		c.OK, c.Cause = false, failure.Error()
	case warning != nil:
		c.Cause = warning.Error()
	}
	return c
}
