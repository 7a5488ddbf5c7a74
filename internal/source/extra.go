package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/plugin"
)

// Extra is an executable of the user's own that goes into a bundle beside the plugins of its source. It is not run.
type Extra struct {
	Name string // of the plugin; that none of the source's plugins has it is the caller's to see to
	File string // a link is followed
}

// look refuses, before anything is built, files that cannot be plugins on arch. Errors are *FileError.
func (e Extra) look(arch string) error {
	if err := plugin.CheckName(e.Name); err != nil {
		return err
	}
	f, err := openRegular(e.File)
	if err != nil {
		return fmt.Errorf("extra %s: %w", e.Name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	what, err := plugin.Identify(f, info.Size())
	if err == nil {
		err = what.CheckArch(arch)
	}
	if err != nil {
		return fmt.Errorf("extra %s: %w", e.Name, &FileError{e.File, err})
	}
	return nil
}

func lookAtExtras(extras []Extra, arch string) error {
	var refused []error
	for _, e := range extras {
		refused = append(refused, e.look(arch))
	}
	return errors.Join(refused...)
}

// add copies a file that look has seen. It may be another by now, which the bundle's own checks find.
func (e Extra) add(ctx context.Context, w *bundle.Writer) error {
	f, err := openRegular(e.File)
	if err != nil {
		return fmt.Errorf("extra %s: %w", e.Name, err)
	}
	defer f.Close()
	_, err = w.Add(e.Name, bundle.Extra, &contextReader{ctx, f})
	return err
}
