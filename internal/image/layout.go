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
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// WriteLayout writes the image to out, where nothing, or an empty directory, may stand: a directory that is an OCI layout,
// or, if out ends with .tar, an archive of one. name is what the image is called in it: containerd's import takes it as a
// whole, skopeo its tag alone. What is at out is whole or not there.
func (i *Image) WriteLayout(out, name string) error {
	files, err := i.blobs()
	if err != nil {
		return fmt.Errorf("gather blobs: %w", err)
	}
	index, err := i.layoutIndex(name)
	if err != nil {
		return fmt.Errorf("make index: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Clean(out)), 0o755); err != nil {
		return err
	}
	files = append(files, file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)), file("index.json", index))
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

// blobs is the index and everything that it leads to, as files of a layout.
func (i *Image) blobs() ([]entry, error) {
	byDigest := make(map[v1.Hash][]byte) // the platforms share layers
	digest, err := i.index.Digest()
	if err != nil {
		return nil, err
	}
	byDigest[digest] = i.index.raw
	for digest, img := range i.index.images {
		manifest, manifestErr := img.RawManifest()
		name, nameErr := img.ConfigName()
		config, configErr := img.RawConfigFile()
		layers, layersErr := img.Layers()
		if err := errors.Join(manifestErr, nameErr, configErr, layersErr); err != nil {
			return nil, err
		}
		byDigest[digest], byDigest[name] = manifest, config
		for _, l := range layers {
			digest, err := l.Digest()
			if err != nil {
				return nil, err
			}
			if byDigest[digest], err = readCompressed(l); err != nil {
				return nil, err
			}
		}
	}
	var files []entry
	for digest, data := range byDigest {
		files = append(files, file(path.Join("blobs", digest.Algorithm, digest.Hex), data))
	}
	return files, nil
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
	digest, err := i.index.Digest()
	if err != nil {
		return nil, err
	}
	tag := name
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		tag = name[at+1:]
	}
	return json.Marshal(indexManifest{
		SchemaVersion: 2,
		MediaType:     types.OCIImageIndex,
		Manifests: []descriptor{{
			MediaType: types.OCIImageIndex, Digest: digest, Size: int64(len(i.index.raw)),
			Annotations: map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag},
		}},
	})
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
