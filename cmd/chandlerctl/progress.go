package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// progressOn reports steps on w, a line each, if someone is watching: nil unless w is a terminal.
func progressOn(w io.Writer) func(name string, i, n int) {
	f := terminal(w)
	if f == nil {
		return nil
	}
	return func(name string, i, n int) { fmt.Fprintf(f, "[%*d/%d] %s\n", len(fmt.Sprint(n)), i, n, name) }
}

// bytesOn reports a download on w in one line that is written over, under the same condition.
func bytesOn(w io.Writer) func(done, total int64) {
	f := terminal(w)
	if f == nil {
		return nil
	}
	var last time.Time
	return func(done, total int64) {
		whole := done == total
		if !whole && time.Since(last) < 200*time.Millisecond {
			return
		}
		last = time.Now()
		line, end := size(done), ""
		if total >= 0 {
			line += " of " + size(total)
		}
		if whole {
			end = "\n"
		}
		fmt.Fprintf(f, "\r\x1b[K%s%s", line, end)
	}
}

// terminal is w if it is one, else nil.
func terminal(w io.Writer) *os.File {
	f, ok := w.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return f
}
