//go:build linux && amd64

package tracer

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// call describes a system call: where in its arguments the files are, and how many bytes it moves.
type call struct {
	name   string
	path   func(t *task, args [6]uint64) string
	to     func(t *task, args [6]uint64) string // of those that have two
	length int                                  // the number of the argument, 0 if it moves no bytes
}

// calls are those that touch a file system. What the table has not is neither stopped nor counted.
var calls = map[uint64]call{
	unix.SYS_OPENAT:          {name: "openat", path: at(0)},
	unix.SYS_OPENAT2:         {name: "openat2", path: at(0)},
	unix.SYS_OPEN:            {name: "open", path: text(0)},
	unix.SYS_CREAT:           {name: "creat", path: text(0)},
	unix.SYS_CLOSE:           {name: "close", path: fd(0)},
	unix.SYS_READ:            {name: "read", path: fd(0), length: 2},
	unix.SYS_PREAD64:         {name: "pread64", path: fd(0), length: 2},
	unix.SYS_WRITE:           {name: "write", path: fd(0), length: 2},
	unix.SYS_PWRITE64:        {name: "pwrite64", path: fd(0), length: 2},
	unix.SYS_READV:           {name: "readv", path: fd(0)},
	unix.SYS_WRITEV:          {name: "writev", path: fd(0)},
	unix.SYS_COPY_FILE_RANGE: {name: "copy_file_range", path: fd(2), to: fd(0), length: 4},
	unix.SYS_SENDFILE:        {name: "sendfile", path: fd(0), to: fd(1), length: 3},
	unix.SYS_SPLICE:          {name: "splice", path: fd(2), to: fd(0), length: 4},
	unix.SYS_FALLOCATE:       {name: "fallocate", path: fd(0)},
	unix.SYS_FTRUNCATE:       {name: "ftruncate", path: fd(0)},
	unix.SYS_TRUNCATE:        {name: "truncate", path: text(0)},
	unix.SYS_FCHMOD:          {name: "fchmod", path: fd(0)},
	unix.SYS_FCHMODAT:        {name: "fchmodat", path: at(0)},
	unix.SYS_FCHMODAT2:       {name: "fchmodat2", path: at(0)},
	unix.SYS_CHMOD:           {name: "chmod", path: text(0)},
	unix.SYS_FCHOWN:          {name: "fchown", path: fd(0)},
	unix.SYS_FCHOWNAT:        {name: "fchownat", path: at(0)},
	unix.SYS_LCHOWN:          {name: "lchown", path: text(0)},
	unix.SYS_UTIMENSAT:       {name: "utimensat", path: at(0)},
	unix.SYS_MKDIRAT:         {name: "mkdirat", path: at(0)},
	unix.SYS_MKDIR:           {name: "mkdir", path: text(0)},
	unix.SYS_UNLINKAT:        {name: "unlinkat", path: at(0)},
	unix.SYS_UNLINK:          {name: "unlink", path: text(0)},
	unix.SYS_RMDIR:           {name: "rmdir", path: text(0)},
	unix.SYS_RENAMEAT:        {name: "renameat", path: at(0), to: at(2)},
	unix.SYS_RENAMEAT2:       {name: "renameat2", path: at(0), to: at(2)},
	unix.SYS_RENAME:          {name: "rename", path: text(0), to: text(1)},
	unix.SYS_LINKAT:          {name: "linkat", path: at(0), to: at(2)},
	unix.SYS_SYMLINKAT:       {name: "symlinkat", path: at(1), to: text(0)},
	unix.SYS_READLINKAT:      {name: "readlinkat", path: at(0)},
	unix.SYS_READLINK:        {name: "readlink", path: text(0)},
	unix.SYS_FSYNC:           {name: "fsync", path: fd(0)},
	unix.SYS_FDATASYNC:       {name: "fdatasync", path: fd(0)},
	unix.SYS_SYNCFS:          {name: "syncfs", path: fd(0)},
	unix.SYS_SYNC_FILE_RANGE: {name: "sync_file_range", path: fd(0)},
	unix.SYS_NEWFSTATAT:      {name: "newfstatat", path: at(0)},
	unix.SYS_FSTAT:           {name: "fstat", path: fd(0)},
	unix.SYS_STAT:            {name: "stat", path: text(0)},
	unix.SYS_LSTAT:           {name: "lstat", path: text(0)},
	unix.SYS_STATX:           {name: "statx", path: at(0)},
	unix.SYS_STATFS:          {name: "statfs", path: text(0)},
	unix.SYS_FSTATFS:         {name: "fstatfs", path: fd(0)},
	unix.SYS_FACCESSAT:       {name: "faccessat", path: at(0)},
	unix.SYS_FACCESSAT2:      {name: "faccessat2", path: at(0)},
	unix.SYS_GETDENTS64:      {name: "getdents64", path: fd(0)},
	unix.SYS_FLOCK:           {name: "flock", path: fd(0)},
	unix.SYS_FSETXATTR:       {name: "fsetxattr", path: fd(0)},
	unix.SYS_FGETXATTR:       {name: "fgetxattr", path: fd(0)},
	unix.SYS_EXECVE:          {name: "execve", path: text(0), to: argv0},
	unix.SYS_EXECVEAT:        {name: "execveat", path: at(0)},
}

// Names are the calls that are stopped.
func Names() []string {
	var names []string
	for c := range maps.Values(calls) {
		names = append(names, c.name)
	}
	slices.Sort(names)
	return names
}

func fd(arg int) func(*task, [6]uint64) string {
	return func(t *task, args [6]uint64) string { return t.descriptor(int32(args[arg])) }
}

func text(arg int) func(*task, [6]uint64) string {
	return func(t *task, args [6]uint64) string { return t.text(uintptr(args[arg])) }
}

// at is a directory's descriptor and a name in it.
func at(arg int) func(*task, [6]uint64) string {
	return func(t *task, args [6]uint64) string {
		name := t.text(uintptr(args[arg+1]))
		if strings.HasPrefix(name, "/") || int32(args[arg]) == unix.AT_FDCWD {
			return name
		}
		dir := t.descriptor(int32(args[arg]))
		if name == "" || name == "." {
			return dir
		}
		return dir + "/" + name
	}
}

func argv0(t *task, args [6]uint64) string { return t.text(t.word(uintptr(args[1]))) }

// counted says whether a call is one of the program on files. What the runtime asks of the kernel about itself is not, nor
// are pipes, sockets and the like.
func counted(path string) bool {
	switch {
	case !strings.HasPrefix(path, "/"):
		return false
	case strings.HasPrefix(path, "/proc/self/fd"): // the probe's
		return true
	}
	return !strings.HasPrefix(path, "/proc/") && !strings.HasPrefix(path, "/sys/")
}
