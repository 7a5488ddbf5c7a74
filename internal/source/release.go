package source

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/download"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Release is upstream's own tarball of the plugins: its bits, unchanged. Its digest is compared before anything in it is
// looked at.
type Release struct {
	Module  string // path of the Go module that it is a release of
	Version string
	Arch    string // as GOARCH spells it
	URL     string // where upstream has it: what the bundle records, wherever this copy comes from
	SHA256  string // of the whole file, lowercase hexadecimal
	Plugins []Plugin
	Extras  []Extra

	Mirror string // where to get it instead, if set
	File   string // a copy of it, if set: nothing is downloaded

	// Progress, if set, is called now and then with the bytes that are there and those there will be, -1 if that is unknown.
	Progress func(done, total int64)
}

// Bounds of a release. v1.9.1 has 55 MB, unpacked 100 MB in 20 members.
const (
	maxTarball  = 512 << 20
	maxUnpacked = 1 << 30
	maxMembers  = 1 << 10
	maxLicense  = 1 << 20
)

// DigestError says that a file is not the one that is pinned.
type DigestError struct{ From, Want, Got string }

func (e *DigestError) Error() string {
	return fmt.Sprintf("%s: its SHA-256 is %s, pinned is %s", e.From, e.Got, e.Want)
}

// Bundle makes the bundle at out, where nothing, or an empty directory, may stand. Errors are those of the download,
// *DigestError, *TarballError, the bundle's, or the context's cause.
func (r Release) Bundle(ctx context.Context, out string) (err error) {
	if err := lookAtExtras(r.Extras, r.Arch); err != nil {
		return err
	}
	from := bundle.Source{Kind: "release", URL: r.URL, SHA256: r.SHA256}
	return makeBundle(ctx, out, r.Version, r.Arch, from, r.Extras, func(w *bundle.Writer) (err error) {
		tmp, err := os.MkdirTemp("", "chandler-release-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
		f, err := os.Create(filepath.Join(tmp, "tarball"))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := r.fetch(ctx, f); err != nil {
			return err
		}
		return r.unpack(ctx, f, w)
	})
}

// fetch puts the tarball into f, with the position at its start, if it is the one that is pinned. The copy is ours: what
// was compared is what is unpacked, also where the original can change.
func (r Release) fetch(ctx context.Context, f *os.File) error {
	from := r.File
	if from != "" {
		if err := copyTarball(ctx, f, from); err != nil {
			return fmt.Errorf("read release: %w", err)
		}
	} else {
		request := download.Request{URL: cmp.Or(r.Mirror, r.URL), Limit: maxTarball, Progress: r.Progress}
		if err := request.File(ctx, f); err != nil {
			return err
		}
		from = download.Shown(request.URL)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, &contextReader{ctx, f}); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != r.SHA256 {
		return &DigestError{from, r.SHA256, got}
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

func copyTarball(ctx context.Context, to *os.File, path string) error {
	from, err := openRegular(path)
	if err != nil {
		return err
	}
	defer from.Close()
	n, err := io.Copy(to, io.LimitReader(&contextReader{ctx, from}, maxTarball+1))
	if err == nil && n > maxTarball {
		err = fmt.Errorf("%s: more than %d bytes", path, maxTarball)
	}
	return err
}

// unpack takes the plugins and the licence from the tarball. All other members are held to the same rules and left.
func (r Release) unpack(ctx context.Context, tarball *os.File, w *bundle.Writer) error {
	wanted := make(map[string]member)
	for _, p := range r.Plugins {
		wanted[p.Name] = member{plugin.MaxSize, func(content io.Reader) error {
			_, err := w.Add(p.Name, p.Role, content)
			return err
		}}
	}
	const license = "LICENSE"
	wanted[license] = member{maxLicense, func(content io.Reader) error {
		text, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		return w.License(path.Join(r.Module+"@"+r.Version, license), text)
	}}
	return readTarball(&contextReader{ctx, tarball}, wanted)
}
