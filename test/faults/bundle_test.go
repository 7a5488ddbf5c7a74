//go:build faults

package faults

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// manifest is bundle.json, as docs/format.md describes it.
type manifest struct {
	FormatVersion int             `json:"formatVersion"`
	Version       string          `json:"version"`
	Arch          string          `json:"arch"`
	Source        json.RawMessage `json:"source"`
	Plugins       []entry         `json:"plugins"`
}

type entry struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
	Kind   string `json:"kind"`
	Role   string `json:"role"`
}

// derive makes a bundle of some of another's plugins, with tail behind the bytes of each, which the kernel does not look at.
// Names that are one file stay one file.
func derive(from, to, version string, names []string, tail string) error {
	data, err := os.ReadFile(filepath.Join(from, "bundle.json"))
	if err != nil {
		return err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("parse %s/bundle.json: %w", from, err)
	}
	m.Version, m.Source = version, json.RawMessage(`{"kind":"dir"}`)
	m.Plugins = slices.DeleteFunc(m.Plugins, func(e entry) bool { return !slices.Contains(names, e.Name) })
	if len(m.Plugins) != len(names) {
		return fmt.Errorf("%s has %d of %v", from, len(m.Plugins), names)
	}
	if err := os.MkdirAll(filepath.Join(to, "bin"), 0o755); err != nil {
		return err
	}
	files := make(map[string]string) // by digest
	for i := range m.Plugins {
		p := &m.Plugins[i]
		path := filepath.Join(to, "bin", p.Name)
		if first := files[p.SHA256]; first != "" {
			if err := os.Link(first, path); err != nil {
				return err
			}
			p.SHA256, p.Size = digestOf(first)
			continue
		}
		files[p.SHA256] = path
		data, err := os.ReadFile(filepath.Join(from, "bin", p.Name))
		if err == nil {
			err = os.WriteFile(path, append(data, tail...), 0o755)
		}
		if err != nil {
			return err
		}
		p.SHA256, p.Size = digestOf(path)
	}
	if data, err = json.MarshalIndent(m, "", "  "); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(to, "bundle.json"), append(data, '\n'), 0o644)
}

func digestOf(path string) (string, int64) {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error(), 0
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), int64(len(data))
}
