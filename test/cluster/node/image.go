package node

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
)

// probeImage is an OCI archive of PauseImage: one layer with one executable.
func probeImage(executable, arch string) ([]byte, error) {
	program, err := os.ReadFile(executable)
	if err != nil {
		return nil, err
	}
	layer, err := archive([]entry{{"probe", 0o755, program}, {"tmp/", 0o1777, nil}})
	if err != nil {
		return nil, err
	}
	blobs := map[string][]byte{}
	add := func(mediaType string, data []byte) map[string]any {
		digest := fmt.Sprintf("%x", sha256.Sum256(data))
		blobs[digest] = data
		return map[string]any{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(data)}
	}
	layerAt := add("application/vnd.oci.image.layer.v1.tar", layer)
	config, err := json.Marshal(map[string]any{
		"architecture": arch, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/probe"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []any{layerAt["digest"]}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": add("application/vnd.oci.image.config.v1+json", config), "layers": []any{layerAt},
	})
	if err != nil {
		return nil, err
	}
	at := add("application/vnd.oci.image.manifest.v1+json", manifest)
	at["annotations"] = map[string]any{"io.containerd.image.name": PauseImage}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []any{at}})
	if err != nil {
		return nil, err
	}
	entries := []entry{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {"index.json", 0o644, index}}
	for digest, data := range blobs {
		entries = append(entries, entry{"blobs/sha256/" + digest, 0o644, data})
	}
	return archive(entries)
}

type entry struct {
	name string
	mode int64
	data []byte
}

func archive(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: tar.TypeReg}
		if e.name[len(e.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}
