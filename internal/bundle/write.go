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
	"time"

	"github.com/chandler-cni/chandler/internal/plugin"
)

// epoch is the time that every file of a bundle carries, so that two builds are equal. It is the oldest that every
// archive format can hold.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

// Writer makes a bundle. Nothing is at its path until Commit, which puts the whole bundle there in one step.
type Writer struct {
	out, tmp string
	manifest Manifest
	infos    map[string]plugin.Info
}

// Create begins a bundle of the given plugin version and architecture that will stand at out, where nothing, or an
// empty directory, may stand now. Every Writer needs a Close, after Commit too.
func Create(out, version, arch string, source Source) (*Writer, error) {
	if err := checkVacant(out); err != nil {
		return nil, err
	}
	parent := filepath.Dir(filepath.Clean(out))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(parent, ".chandler-bundle-")
	if err != nil {
		return nil, err
	}
	w := &Writer{out: out, tmp: tmp, infos: make(map[string]plugin.Info),
		manifest: Manifest{FormatVersion: FormatVersion, Version: version, Arch: arch, Source: source, Plugins: []Plugin{}}}
	if err := errors.Join(os.Mkdir(w.path(binName), 0o755), w.manifest.check()); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
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
		return &fs.PathError{Op: "create bundle", Path: out, Err: errors.New("is there already and is not empty")}
	}
	return nil
}

// Close removes what Commit has not put in its place.
func (w *Writer) Close() error { return os.RemoveAll(w.tmp) }

// Add copies an executable into the bundle under name.
func (w *Writer) Add(name string, role Role, r io.Reader) (_ Plugin, err error) {
	if err := w.vacant(name); err != nil {
		return Plugin{}, err
	}
	f, err := os.OpenFile(w.path(binName, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o755)
	if err != nil {
		return Plugin{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	h := sha256.New()
	size, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, plugin.MaxSize+1))
	if err != nil {
		return Plugin{}, fmt.Errorf("copy plugin %s: %w", name, err)
	}
	info, err := plugin.Identify(f, size)
	if err != nil {
		return Plugin{}, fmt.Errorf("plugin %s: %w", name, err)
	}
	return w.enter(Plugin{Name: name, SHA256: hex.EncodeToString(h.Sum(nil)), Size: size, Kind: info.Kind, Role: role}, info)
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
		return w.enter(p, w.infos[to])
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

func (w *Writer) enter(p Plugin, info plugin.Info) (Plugin, error) {
	if err := p.check(); err != nil {
		return Plugin{}, err
	}
	if err := w.manifest.checkInfo(p, info); err != nil {
		return Plugin{}, fmt.Errorf("plugin %s: %w", p.Name, err)
	}
	w.infos[p.Name] = info
	w.manifest.Plugins = append(w.manifest.Plugins, p)
	return p, nil
}

// License keeps a licence's text at licenses/<name>, a relative path of slashes.
func (w *Writer) License(name string, text []byte) error {
	return w.file(text, licensesName, filepath.FromSlash(name))
}

// SBOM keeps the bundle's CycloneDX document.
func (w *Writer) SBOM(doc []byte) error { return w.file(doc, sbomName) }

func (w *Writer) file(data []byte, elem ...string) error {
	name := filepath.Join(elem...)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q leaves the bundle", name)
	}
	if err := os.MkdirAll(filepath.Dir(w.path(name)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(w.path(name), data, 0o644)
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
	return &w.manifest, os.Rename(w.tmp, w.out)
}

func (w *Writer) path(elem ...string) string {
	return filepath.Join(append([]string{w.tmp}, elem...)...)
}
