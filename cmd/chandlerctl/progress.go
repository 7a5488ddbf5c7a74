package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// progressOn reports steps on w, a line each, if someone is watching: nil unless w is a terminal.
func progressOn(w io.Writer) func(name string, i, n int) {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return func(name string, i, n int) { fmt.Fprintf(f, "[%*d/%d] %s\n", len(fmt.Sprint(n)), i, n, name) }
}
