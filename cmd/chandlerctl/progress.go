package main

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/image"
)

// progressOn reports steps on w, a line each, if someone is watching: nil unless w is a terminal.
func progressOn(w io.Writer) func(name string, i, n int) {
	f, ok := terminal(w)
	if !ok {
		return nil
	}
	return func(name string, i, n int) { fmt.Fprintf(f, "[%*d/%d] %s\n", len(fmt.Sprint(n)), i, n, name) }
}

// terminal is w if it is one.
func terminal(w io.Writer) (*os.File, bool) {
	f, ok := w.(*os.File)
	if !ok {
		return nil, false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return f, err == nil
}

// pushProgressOn reports how far a push is on w, on one line that is written anew, if someone is watching. done ends the line.
func pushProgressOn(w io.Writer) (progress func(image.Done), done func()) {
	f, ok := terminal(w)
	if !ok {
		return nil, func() {}
	}
	shown := ""
	progress = func(d image.Done) {
		if line := fmt.Sprintf("pushed %s of %s", size(d.Bytes), size(d.Total)); line != shown {
			fmt.Fprintf(f, "\r\x1b[K%s", line)
			shown = line
		}
	}
	return progress, func() {
		if shown != "" {
			fmt.Fprintln(f)
		}
	}
}
