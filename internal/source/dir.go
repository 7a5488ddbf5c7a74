package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Dir is a directory of executables, of which each becomes a plugin of the role extra under its own name. Nothing else
// may be in it: what cannot be a plugin is refused and not passed over, since whoever put it there meant something by it.
type Dir struct {
	From    string
	Version string // of the plugins, as the user calls it
	Arch    string // as GOARCH spells it; empty: that of the ELF files, or of this machine if there are only scripts
}

// FileError says why a file cannot be a plugin of a bundle.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *FileError) Unwrap() error { return e.Err }

// ErrMixed says that a directory holds executables of more than one machine.
var ErrMixed = errors.New("executables of more than one architecture")

// Bundle makes the bundle at out, where nothing, or an empty directory, may stand. Every file that is refused is named,
// as a *FileError. Files are not run.
func (d Dir) Bundle(ctx context.Context, out string) error {
	dir, err := hostdir.Open(d.From)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("%s: no executables to pack", d.From)
	}
	arch, err := d.look(dir, names)
	if err != nil {
		return err
	}
	return makeBundle(out, d.Version, arch, bundle.Source{Kind: "dir"}, func(w *bundle.Writer) error {
		for _, name := range names {
			if err := addFile(ctx, w, dir, name); err != nil {
				return err
			}
		}
		return nil
	})
}

// look refuses every file that cannot be packed, and returns the architecture of the rest.
func (d Dir) look(dir *hostdir.Dir, names []string) (string, error) {
	arch, first := d.Arch, "" // first is the file that arch was read from
	var refused []error
	for _, name := range names {
		info, err := identify(dir, name)
		path := dir.Path() + "/" + name
		switch {
		case err != nil:
			refused = append(refused, &FileError{path, err})
		case info.Kind != plugin.ELF || info.Arch == arch:
		case arch == "":
			if !slices.Contains(plugin.Arches(), info.Arch) {
				refused = append(refused, &FileError{path, fmt.Errorf("built for %s, which no node has", info.Arch)})
				continue
			}
			arch, first = info.Arch, path
		case first != "":
			return "", fmt.Errorf("%w: %s is built for %s, %s for %s", ErrMixed, first, arch, path, info.Arch)
		default:
			refused = append(refused, &FileError{path, info.CheckArch(arch)})
		}
	}
	if arch == "" {
		arch = runtime.GOARCH
	}
	return arch, errors.Join(refused...)
}

func identify(dir *hostdir.Dir, name string) (plugin.Info, error) {
	if err := plugin.CheckName(name); err != nil {
		return plugin.Info{}, err
	}
	f, e, err := dir.OpenFile(name)
	if errors.Is(err, hostdir.ErrNotRegular) {
		return plugin.Info{}, fmt.Errorf("is a %s; only regular files are packed", e.Kind)
	}
	if err != nil {
		return plugin.Info{}, err
	}
	defer f.Close()
	return plugin.Identify(f, e.Size)
}

// addFile copies a file that look has seen. It may be another by now, which the bundle's own checks find.
func addFile(ctx context.Context, w *bundle.Writer, dir *hostdir.Dir, name string) error {
	f, _, err := dir.OpenFile(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = w.Add(name, bundle.Extra, &contextReader{ctx, f})
	return err
}

// contextReader ends once the context does, with its cause.
type contextReader struct {
	ctx context.Context
	f   *os.File
}

func (r *contextReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.f.Read(p)
}
