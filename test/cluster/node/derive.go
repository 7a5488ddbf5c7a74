package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *struct {
		Architecture string `json:"architecture"`
	} `json:"platform,omitempty"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

// Derive makes an image out of one in an OCI archive: the folder at that path in it is replaced by a folder of this
// machine. The result, called name, is an archive too, for one architecture.
func Derive(archiveFile, arch, name, path, folder string) ([]byte, error) {
	files, err := readArchive(archiveFile)
	if err != nil {
		return nil, err
	}
	blob := func(d descriptor, into any) error {
		data, ok := files["blobs/sha256/"+d.Digest[len("sha256:"):]]
		if !ok {
			return fmt.Errorf("%s has no blob %s", archiveFile, d.Digest)
		}
		return json.Unmarshal(data, into)
	}
	var image manifest
	if err := json.Unmarshal(files["index.json"], &image); err != nil {
		return nil, fmt.Errorf("%s: index.json: %w", archiveFile, err)
	}
	for len(image.Manifests) > 0 {
		var next *descriptor
		for i, d := range image.Manifests {
			if d.Platform == nil || d.Platform.Architecture == arch {
				next = &image.Manifests[i]
				break
			}
		}
		if next == nil {
			return nil, fmt.Errorf("%s has no image for %s", archiveFile, arch)
		}
		image = manifest{}
		if err := blob(*next, &image); err != nil {
			return nil, err
		}
	}
	var config map[string]any
	if err := blob(image.Config, &config); err != nil {
		return nil, err
	}
	layer, err := folderLayer(path, folder)
	if err != nil {
		return nil, err
	}
	add := func(mediaType string, data []byte) descriptor {
		digest := fmt.Sprintf("%x", sha256.Sum256(data))
		files["blobs/sha256/"+digest] = data
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(data))}
	}
	added := add("application/vnd.oci.image.layer.v1.tar", layer)
	rootfs, _ := config["rootfs"].(map[string]any)
	diffs, _ := rootfs["diff_ids"].([]any)
	if len(diffs) != len(image.Layers) {
		return nil, errors.New("the image's configuration does not name its layers")
	}
	rootfs["diff_ids"] = append(diffs, added.Digest)
	delete(config, "history") // it would lack an entry
	changed, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	image.Layers = append(image.Layers, added)
	image.Config = add(image.Config.MediaType, changed)
	data, err := json.Marshal(image)
	if err != nil {
		return nil, err
	}
	at := add("application/vnd.oci.image.manifest.v1+json", data)
	at.Annotations = map[string]string{"io.containerd.image.name": name}
	if files["index.json"], err = json.Marshal(manifest{SchemaVersion: 2, Manifests: []descriptor{at}}); err != nil {
		return nil, err
	}
	var entries []entry
	for name, data := range files {
		entries = append(entries, entry{name, 0o644, data})
	}
	return archive(entries)
}

func readArchive(file string) (map[string][]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
}

// folderLayer is a layer that replaces what is at path, with the folder's files, and files of several names as such.
func folderLayer(path, folder string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: path + "/.wh..wh..opq", Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		return nil, err
	}
	seen := map[uint64]string{}
	err := filepath.WalkDir(folder, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(folder, file)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.Join(path, name), Mode: int64(info.Mode().Perm()), Typeflag: tar.TypeReg, Size: info.Size()}
		inode := info.Sys().(*syscall.Stat_t).Ino
		if first, ok := seen[inode]; ok {
			header.Typeflag, header.Linkname, header.Size = tar.TypeLink, first, 0
			return w.WriteHeader(header)
		}
		seen[inode] = header.Name
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out.Bytes(), w.Close()
}
