// Package source makes bundles from where plugins come from: the pinned Go module, or a directory of executables.
// Each makes the whole bundle or nothing.
package source

import (
	"fmt"

	"github.com/chandler-cni/chandler/internal/bundle"
)

// makeBundle fills a new bundle at out and puts it in its place. When anything fails, nothing is at out.
func makeBundle(out, version, arch string, from bundle.Source, fill func(*bundle.Writer) error) (err error) {
	w, err := bundle.Create(out, version, arch, from)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := w.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("clean up: %w", closeErr)
		}
	}()
	if err := fill(w); err != nil {
		return err
	}
	if _, err := w.Commit(); err != nil {
		return fmt.Errorf("commit bundle: %w", err)
	}
	return nil
}
