package bundle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/chandler-cni/chandler/internal/plugin"
)

// ErrOccupied says that something stands where a bundle was to be made.
var ErrOccupied = errors.New("is there already and is not empty")

// epoch is the time that every file of a bundle carries, so that two builds are equal. It is the oldest that every
// archive format can hold.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// Writer makes a bundle. Nothing is at its path until Commit, which puts the whole bundle there in one step.
type Writer struct {
	out, tmp string
	made     []string // the folders above out that were made for it, the outermost first
	manifest Manifest
	infos    map[string]plugin.Info
}

// Create begins a bundle of the given plugin version and architecture that will stand at out, where nothing, or an
// empty directory, may stand now. Every Writer needs a Close, after Commit too.
func Create(out, version, arch string, source Source) (*Writer, error) {
	if err := checkVacant(out); err != nil {
		return nil, err
	}
	w := &Writer{out: filepath.Clean(out), infos: make(map[string]plugin.Info),
		manifest: Manifest{FormatVersion: FormatVersion, Version: version, Arch: arch, Source: source, Plugins: []Plugin{}}}
	if err := w.manifest.check(); err != nil {
		return nil, err
	}
	if err := w.makeFolders(); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

func (w *Writer) makeFolders() error {
	parent := filepath.Dir(w.out)
	var missing []string // the innermost first
	for dir := parent; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, dir)
	}
	for _, dir := range slices.Backward(missing) {
		switch err := os.Mkdir(dir, 0o755); {
		case err == nil:
			w.made = append(w.made, dir)
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	tmp, err := os.MkdirTemp(parent, ".chandler-bundle-")
	if err != nil {
		return err
	}
	w.tmp = tmp
	return os.Mkdir(w.path(binName), 0o755)
}

func checkVacant(out string) error {
	entries, err := os.ReadDir(out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return &fs.PathError{Op: "create bundle", Path: out, Err: ErrOccupied}
	}
	return nil
}

// Close removes what Commit has not put in its place, and the folders that were made for it if nothing is in them.
func (w *Writer) Close() error {
	if w.tmp != "" {
		if err := os.RemoveAll(w.tmp); err != nil {
			return err
		}
	}
	for _, dir := range slices.Backward(w.made) {
		switch err := os.Remove(dir); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil // someone, most often Commit, has put something there
		}
	}
	return nil
}

// Add copies an executable into the bundle under name. When it fails, the bundle is as it was before.
func (w *Writer) Add(name string, role Role, r io.Reader) (Plugin, error) {
	if err := w.vacant(name); err != nil {
		return Plugin{}, err
	}
	f, err := os.OpenFile(w.path(binName, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o755)
	if err != nil {
		return Plugin{}, err
	}
	p := Plugin{Name: name, Role: role}
	info, err := p.fill(f, r)
	if err = errors.Join(err, f.Close()); err == nil {
		err = w.enter(p, info)
	}
	if err != nil {
		return Plugin{}, fmt.Errorf("add plugin %s: %w", name, errors.Join(err, os.Remove(f.Name())))
	}
	return p, nil
}

// fill copies r to f and says in p what it was.
func (p *Plugin) fill(f *os.File, r io.Reader) (plugin.Info, error) {
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, plugin.MaxSize+1))
	if err != nil {
		return plugin.Info{}, err
	}
	info, err := plugin.Identify(f, size)
	p.SHA256, p.Size, p.Kind = hex.EncodeToString(h.Sum(nil)), size, info.Kind
	return info, err
}

// Link makes name another name of the file that was added as to: one executable that answers to several names.
func (w *Writer) Link(name string, role Role, to string) (Plugin, error) {
	if err := w.vacant(name); err != nil {
		return Plugin{}, err
	}
	for _, p := range w.manifest.Plugins {
		if p.Name != to {
			continue
		}
		if err := os.Link(w.path(binName, to), w.path(binName, name)); err != nil {
			return Plugin{}, err
		}
		p.Name, p.Role = name, role
		if err := w.enter(p, w.infos[to]); err != nil {
			return Plugin{}, fmt.Errorf("link plugin %s: %w", name, errors.Join(err, os.Remove(w.path(binName, name))))
		}
		return p, nil
	}
	return Plugin{}, fmt.Errorf("link plugin %s: no plugin %s in this bundle", name, to)
}

func (w *Writer) vacant(name string) error {
	if err := plugin.CheckName(name); err != nil {
		return err
	}
	if _, ok := w.infos[name]; ok {
		return fmt.Errorf("plugin %s: added twice", name)
	}
	return nil
}

func (w *Writer) enter(p Plugin, info plugin.Info) error {
	if err := errors.Join(p.check(), w.manifest.checkInfo(p, info)); err != nil {
		return err
	}
	w.infos[p.Name] = info
	w.manifest.Plugins = append(w.manifest.Plugins, p)
	return nil
}

// License keeps a licence's text at licenses/<name>, a relative path of slashes.
func (w *Writer) License(name string, text []byte) error {
	if !filepath.IsLocal(name) || filepath.Clean(name) == "." {
		return fmt.Errorf("licence %q: not a path inside a folder", name)
	}
	return w.file(text, licensesName, filepath.FromSlash(name))
}

// SBOM keeps the bundle's CycloneDX document.
func (w *Writer) SBOM(doc []byte) error { return w.file(doc, sbomName) }

func (w *Writer) file(data []byte, elem ...string) error {
	path := w.path(elem...)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// Commit writes bundle.json and puts the bundle in its place. It returns the manifest.
func (w *Writer) Commit() (*Manifest, error) {
	data, err := w.manifest.encode()
	if err != nil {
		return nil, err
	}
	if _, err := ParseManifest(bytes.Clone(data)); err != nil {
		return nil, err
	}
	if err := w.file(data, manifestName); err != nil {
		return nil, err
	}
	// The modes are set, so that a umask has no say; the times, deepest first, since each changes its directory's.
	if err := os.Chmod(w.tmp, 0o755); err != nil {
		return nil, err
	}
	var paths []string
	err = filepath.WalkDir(w.tmp, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		perm := fs.FileMode(0o644)
		if d.IsDir() || filepath.Dir(path) == w.path(binName) {
			perm = 0o755
		}
		paths = append(paths, path)
		return os.Chmod(path, perm)
	})
	for i := len(paths) - 1; i >= 0 && err == nil; i-- {
		err = os.Chtimes(paths[i], epoch, epoch)
	}
	if err != nil {
		return nil, err
	}
	// Not os.Rename, which refuses every directory that is there already; the system call takes the place of an empty one.
	if err := syscall.Rename(w.tmp, w.out); err != nil {
		return nil, &fs.PathError{Op: "create bundle", Path: w.out, Err: err}
	}
	return &w.manifest, nil
}

func (w *Writer) path(elem ...string) string {
	return filepath.Join(append([]string{w.tmp}, elem...)...)
}
