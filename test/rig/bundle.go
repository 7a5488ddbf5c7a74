package rig

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/bundle"
)

// Compose makes a bundle of what fill adds to it.
func Compose(out, version string, fill func(w *bundle.Writer) error) error {
	w, err := bundle.Create(out, version, runtime.GOARCH, bundle.Source{Kind: "dir"})
	if err != nil {
		return err
	}
	defer w.Close()
	if err := fill(w); err != nil {
		return err
	}
	_, err = w.Commit()
	return err
}

// AddFrom adds plugins of another bundle with tail behind the bytes of each, which the kernel does not look at. Names that are one
// file there are one here.
func AddFrom(w *bundle.Writer, from string, names []string, tail string) error {
	b, err := bundle.Open(from)
	if err != nil {
		return err
	}
	defer b.Close()
	first := make(map[string]string) // by digest
	for _, name := range names {
		p, ok := b.Plugin(name)
		if !ok {
			return fmt.Errorf("no %s in %s", name, from)
		}
		if other, ok := first[p.SHA256]; ok {
			if _, err := w.Link(name, p.Role, other); err != nil {
				return err
			}
			continue
		}
		first[p.SHA256] = name
		f, err := b.OpenPlugin(p)
		if err != nil {
			return err
		}
		_, err = w.Add(name, p.Role, io.MultiReader(f, strings.NewReader(tail)))
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// Derive makes a bundle of plugins of another, as AddFrom adds them.
func Derive(out, from, version string, names []string, tail string) error {
	return Compose(out, version, func(w *bundle.Writer) error { return AddFrom(w, from, names, tail) })
}

// Names are the plugins of a bundle.
func Names(t testing.TB, dir string) []string {
	t.Helper()
	b, err := bundle.Open(dir)
	Must(t, err)
	defer b.Close()
	return pluginNames(b)
}

func pluginNames(b *bundle.Bundle) []string {
	var names []string
	for _, p := range b.Manifest.Plugins {
		names = append(names, p.Name)
	}
	return names
}
