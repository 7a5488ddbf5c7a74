package image

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// blob is one file of an OCI layout's blobs.
type blob struct {
	digest v1.Hash
	data   []byte
}

// WriteLayout writes the image to out, where nothing, or an empty directory, may stand: a directory that is an OCI layout,
// or, if out ends with .tar, an archive of one. name is what the image is called in it: containerd's import takes it as a
// whole, skopeo its tag alone. What is at out is whole or not there.
func (i *Image) WriteLayout(out, name string) error {
	blobs, err := i.blobs()
	if err != nil {
		return err
	}
	index, err := i.layoutIndex(name)
	if err != nil {
		return err
	}
	files := []entry{file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)), file("index.json", index)}
	for _, b := range blobs {
		files = append(files, file(path.Join("blobs", b.digest.Algorithm, b.digest.Hex), b.data))
	}
	if strings.HasSuffix(out, ".tar") {
		return writeArchive(out, files)
	}
	return writeDir(out, files)
}

// CheckOut reports why an image cannot be written to out: what WriteLayout would find only after everything was built.
func CheckOut(out string) error {
	info, err := os.Stat(out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir() || strings.HasSuffix(out, ".tar"):
		return &fs.PathError{Op: "write image", Path: out, Err: fs.ErrExist}
	}
	there, err := os.ReadDir(out)
	if err == nil && len(there) > 0 {
		err = &fs.PathError{Op: "write image", Path: out, Err: errors.New("is there already and is not empty")}
	}
	return err
}

// blobs is everything that the index leads to, and itself, in order of digests.
func (i *Image) blobs() ([]blob, error) {
	byDigest := make(map[v1.Hash][]byte)
	add := func(digest v1.Hash, err error, data []byte, dataErr error) error {
		byDigest[digest] = data
		return errors.Join(err, dataErr)
	}
	put := func(of interface {
		Digest() (v1.Hash, error)
		RawManifest() ([]byte, error)
	}) error {
		digest, err := of.Digest()
		data, dataErr := of.RawManifest()
		return add(digest, err, data, dataErr)
	}
	if err := put(i.index); err != nil {
		return nil, err
	}
	manifest, err := i.index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, d := range manifest.Manifests {
		img, err := i.index.Image(d.Digest)
		if err != nil {
			return nil, err
		}
		if err := put(img); err != nil {
			return nil, err
		}
		digest, err := img.ConfigName()
		data, dataErr := img.RawConfigFile()
		if err := add(digest, err, data, dataErr); err != nil {
			return nil, err
		}
		layers, err := img.Layers()
		if err != nil {
			return nil, err
		}
		for _, l := range layers {
			digest, err := l.Digest()
			if err != nil {
				return nil, err
			}
			data, err := readCompressed(l)
			if err := add(digest, nil, data, err); err != nil {
				return nil, err
			}
		}
	}
	var blobs []blob
	for digest, data := range byDigest {
		blobs = append(blobs, blob{digest, data})
	}
	slices.SortFunc(blobs, func(a, b blob) int { return strings.Compare(a.digest.Hex, b.digest.Hex) })
	return blobs, nil
}

func readCompressed(l v1.Layer) ([]byte, error) {
	r, err := l.Compressed()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// layoutIndex is index.json, which names the one image index that the layout holds.
func (i *Image) layoutIndex(name string) ([]byte, error) {
	manifest, err := i.index.RawManifest()
	if err != nil {
		return nil, err
	}
	digest, err := v1.NewHash(i.Digest)
	if err != nil {
		return nil, err
	}
	tag := name
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		tag = name[at+1:]
	}
	return json.MarshalIndent(v1.IndexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests: []v1.Descriptor{{
			MediaType: types.OCIImageIndex, Size: int64(len(manifest)), Digest: digest,
			Annotations: map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag},
		}},
	}, "", "  ")
}

func writeDir(out string, files []entry) (err error) {
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(out)), ".chandler-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	entries, err := withFolders(files)
	if err != nil {
		return err
	}
	for _, e := range entries {
		at := filepath.Join(tmp, filepath.FromSlash(e.path))
		if e.mode.IsDir() {
			err = os.Mkdir(at, e.mode.Perm())
		} else {
			err = os.WriteFile(at, e.data, e.mode.Perm())
		}
		if err == nil {
			err = os.Chmod(at, e.mode.Perm()) // a umask has no say
		}
		if err != nil {
			return err
		}
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	return os.Rename(tmp, out)
}

func writeArchive(out string, files []entry) (err error) {
	f, err := os.CreateTemp(filepath.Dir(filepath.Clean(out)), ".chandler-image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	entries, err := withFolders(files)
	if err == nil {
		err = writeTar(f, entries)
	}
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return os.Link(f.Name(), out) // unlike a rename it replaces nothing
}

func writeTar(w io.Writer, entries []entry) error {
	archive := tar.NewWriter(w)
	for _, e := range entries {
		if err := e.write(archive, time.Unix(0, 0)); err != nil {
			return err
		}
	}
	return archive.Close()
}
