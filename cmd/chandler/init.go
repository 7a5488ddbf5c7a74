package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/chandler-cni/chandler/internal/cli"
)

const (
	initFlag        = "init"
	terminationFlag = "termination-log"

	// defaultTermination is where Kubernetes reads a container's last words.
	defaultTermination = "/dev/termination-log"
)

// initMode looks for --init by hand: it has to hold for command lines that cannot be parsed, such as those of a chart that
// is newer than this program. As with any flag the last one counts; a value that is none is taken for yes.
func initMode(args []string) bool {
	lenient := false
	for _, arg := range args {
		if value, ok := strings.CutPrefix(arg, "--"+initFlag+"="); ok {
			on, err := strconv.ParseBool(value)
			lenient = on || err != nil
		} else if arg == "--"+initFlag {
			lenient = true
		}
	}
	return lenient
}

// terminationPath looks for --termination-log by hand, for the same reason. The last one counts.
func terminationPath(args []string) string {
	flag, last := "--"+terminationFlag, defaultTermination
	for i, arg := range args {
		if path, ok := strings.CutPrefix(arg, flag+"="); ok {
			last = path
		} else if arg == flag && i+1 < len(args) {
			last = args[i+1]
		}
	}
	return last
}

// writeTermination leaves text where the kubelet reads it. The file is a bind mount, so it is written in place and never
// made; its absence is no error, since by hand there is none.
func writeTermination(streams cli.Streams, path, text string) {
	if path == "" {
		return
	}
	err := overwrite(path, text)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(streams.Err, "warning: termination log:", err)
	}
}

func overwrite(path, text string) (err error) {
	// Without blocking, should somebody have put a fifo there.
	f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &os.PathError{Op: "write", Path: path, Err: errors.New("not a regular file")}
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return err
}
