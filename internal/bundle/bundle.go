// Package bundle is the directory that carries plugins to a node: bin/, licenses/, sbom.cdx.json, and bundle.json that
// describes each plugin. docs/format.md is its description for other readers.
package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/plugin"
)

const (
	manifestName = "bundle.json"
	binName      = "bin"
	licensesName = "licenses"
	sbomName     = "sbom.cdx.json"

	maxManifest = 1 << 20 // bytes
)

// ErrAbsent says that there is no bundle directory, ErrEmpty that there is one with no plugin in it. Neither is damage:
// an image and the manifest that names it are pinned on different days.
var (
	ErrAbsent = errors.New("no bundle")
	ErrEmpty  = errors.New("empty bundle")
)

// DamageError says that a bundle is not what it claims to be, or cannot be read. Path is relative to the bundle.
type DamageError struct {
	Path string
	Err  error
}

func (e *DamageError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *DamageError) Unwrap() error { return e.Err }

var (
	ErrDigest = errors.New("digest mismatch")
	ErrSize   = errors.New("size mismatch")
)

// Bundle is an open bundle whose manifest has been read and whose list of files agrees with it. The files' bytes have
// not been looked at: whoever reads them checks them against the manifest, as Verify does.
type Bundle struct {
	Manifest *Manifest
	Digest   string // of bundle.json's bytes: sha256:<hex>

	root, bin *hostdir.Dir
}

// Open opens the bundle in the directory at path. Errors are ErrAbsent, ErrEmpty or a *DamageError.
func Open(path string) (_ *Bundle, err error) {
	root, err := hostdir.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrAbsent
	}
	if err != nil {
		return nil, &DamageError{path, cause(err)}
	}
	b := &Bundle{root: root}
	defer func() {
		if err != nil {
			b.Close()
		}
	}()
	names, err := root.Names()
	if err != nil {
		return nil, &DamageError{path, cause(err)}
	}
	if len(names) == 0 {
		return nil, ErrEmpty
	}
	data, err := root.ReadFile(manifestName, maxManifest)
	if err != nil {
		return nil, &DamageError{manifestName, cause(err)}
	}
	sum := sha256.Sum256(data)
	b.Digest = "sha256:" + hex.EncodeToString(sum[:])
	if b.Manifest, err = ParseManifest(data); err != nil {
		return nil, &DamageError{manifestName, err}
	}
	if len(b.Manifest.Plugins) == 0 {
		return nil, ErrEmpty
	}
	if b.bin, err = root.Sub(binName); err != nil {
		return nil, &DamageError{binName, cause(err)}
	}
	if err := b.checkNames(); err != nil {
		return nil, err
	}
	return b, nil
}

// checkNames holds bin/ and the manifest to each other.
func (b *Bundle) checkNames() error {
	there, err := b.bin.Names()
	if err != nil {
		return &DamageError{binName, cause(err)}
	}
	for _, p := range b.Manifest.Plugins {
		if !slices.Contains(there, p.Name) {
			return &DamageError{binPath(p.Name), errors.New("named in bundle.json and missing")}
		}
	}
	for _, name := range there {
		if _, ok := b.Plugin(name); !ok {
			return &DamageError{fmt.Sprintf("%q", binPath(name)), errors.New("not named in bundle.json")}
		}
	}
	return nil
}

// Holds says whether a directory is the bundle's own, or its bin/.
func (b *Bundle) Holds(dir hostdir.Entry) bool {
	for _, own := range []*hostdir.Dir{b.root, b.bin} {
		if e, err := own.Self(); err == nil && e.Same(dir) {
			return true
		}
	}
	return false
}

// Close closes the bundle.
func (b *Bundle) Close() error {
	var bin error
	if b.bin != nil {
		bin = b.bin.Close()
	}
	return errors.Join(bin, b.root.Close())
}

// Plugin returns the manifest's entry for name.
func (b *Bundle) Plugin(name string) (Plugin, bool) {
	for _, p := range b.Manifest.Plugins {
		if p.Name == name {
			return p, true
		}
	}
	return Plugin{}, false
}

// OpenPlugin opens the file of p, which must be a regular one of the size that the manifest says. Its bytes are the
// caller's to check. Errors are *DamageError.
func (b *Bundle) OpenPlugin(p Plugin) (*os.File, error) {
	f, e, err := b.bin.OpenFile(p.Name)
	if err != nil {
		return nil, b.Damage(p, err)
	}
	if e.Size != p.Size {
		f.Close()
		return nil, b.Damage(p, ErrSize)
	}
	return f, nil
}

// Distinct returns one plugin for each file of the bundle: several names may be one file.
func (b *Bundle) Distinct() ([]Plugin, error) {
	type file struct {
		dev, ino uint64
		digest   string // two names of one file may claim two digests
	}
	seen := make(map[file]bool)
	var distinct []Plugin
	for _, p := range b.Manifest.Plugins {
		e, err := b.bin.Stat(p.Name)
		if err != nil {
			return nil, b.Damage(p, err)
		}
		if at := (file{e.Dev, e.Ino, p.SHA256}); !seen[at] {
			seen[at] = true
			distinct = append(distinct, p)
		}
	}
	return distinct, nil
}

// CheckDigest reads the file of p and holds its bytes to the manifest. Errors are *DamageError or the context's.
func (b *Bundle) CheckDigest(ctx context.Context, p Plugin) error {
	f, err := b.OpenPlugin(p)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	buf := make([]byte, 64<<10)
	var size int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		if size += int64(n); size > p.Size {
			return b.Damage(p, ErrSize)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return b.Damage(p, err)
		}
	}
	switch {
	case size != p.Size:
		return b.Damage(p, ErrSize)
	case hex.EncodeToString(h.Sum(nil)) != p.SHA256:
		return b.Damage(p, ErrDigest)
	}
	return nil
}

// Damage says what is wrong with the file of p.
func (b *Bundle) Damage(p Plugin, err error) error {
	return &DamageError{binPath(p.Name), cause(err)}
}

// Verify checks everything that can be checked without running the plugins: digests, sizes, modes, machine, linking, and
// that nothing else is there. It goes on as far as it can and returns each finding.
func (b *Bundle) Verify(ctx context.Context) []error {
	var found []error
	for _, p := range b.Manifest.Plugins {
		if ctx.Err() != nil {
			return append(found, ctx.Err())
		}
		if err := b.verifyPlugin(ctx, p); err != nil {
			found = append(found, err)
		}
	}
	names, err := b.root.Names()
	if err != nil {
		found = append(found, err)
	}
	for _, name := range names {
		switch name {
		case manifestName, binName, licensesName, sbomName:
		default:
			found = append(found, &DamageError{fmt.Sprintf("%q", name), errors.New("does not belong in a bundle")})
		}
	}
	return found
}

func (b *Bundle) verifyPlugin(ctx context.Context, p Plugin) error {
	if err := b.CheckDigest(ctx, p); err != nil {
		return err
	}
	f, err := b.OpenPlugin(p)
	if err != nil {
		return err
	}
	defer f.Close()
	e, err := b.bin.Stat(p.Name)
	if err != nil {
		return b.Damage(p, err)
	}
	if e.Perm != 0o755 {
		return b.Damage(p, fmt.Errorf("mode %04o, not 0755", uint32(e.Perm)))
	}
	info, err := plugin.Identify(f, p.Size)
	if err != nil {
		return b.Damage(p, err)
	}
	if err := b.Manifest.checkInfo(p, info); err != nil {
		return b.Damage(p, err)
	}
	return nil
}

// checkInfo holds what a file is to what the manifest says of it.
func (m *Manifest) checkInfo(p Plugin, info plugin.Info) error {
	if info.Kind != p.Kind {
		return fmt.Errorf("kind %s, not %s", info.Kind, p.Kind)
	}
	if err := info.CheckArch(m.Arch); err != nil {
		return err
	}
	if p.Role.Reference() && !info.Static() {
		return fmt.Errorf("not static: needs %q", info.Interpreter)
	}
	return nil
}

func binPath(name string) string { return path.Join(binName, name) }

// cause drops the path from a path error: a DamageError names it relative to the bundle.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
