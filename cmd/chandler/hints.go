package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/stage"
)

// hints says what would help, once each, from the types of what went wrong.
func hints(task stage.Task, r *stage.Report, o stage.Options) []string {
	var found []string
	add := func(format string, args ...any) {
		hint := fmt.Sprintf(format, args...)
		for _, h := range found {
			if h == hint {
				return
			}
		}
		found = append(found, hint)
	}
	if h := refusalHint(task, r.Err, o); h != "" {
		add("%s", h)
	}
	for _, p := range r.Plugins {
		var owner *stage.OwnerError
		var taken *stage.TakenError
		var probe *stage.ProbeError
		switch {
		case p.Reason == stage.IsNewer:
			add("the node has newer plugins than this bundle, and --policy newer keeps them; --policy replace brings the bundle's all the same")
		case p.Err == nil:
		case errors.Is(p.Err, stage.ErrNotKept):
			add("what was not kept, or was purged, cannot be put back; where nothing needs the staged file, remove it by hand")
		case errors.As(p.Err, &owner):
			add("somebody else made %s; look at what lies there and move it away: staging makes its own, and trusts what is in it", owner.Path)
		case errors.As(p.Err, &taken):
			add("something else stands in the place of %s; look at what it is, then remove it", taken.Path)
		case errors.As(p.Err, &probe) && errors.Is(p.Err, syscall.EACCES) && onNoExec(o.BinDir):
			add("the file system of %s is mounted noexec; nothing on it can be a plugin until it is mounted exec", r.BinDir)
		case ownLimit(p.Err):
			add(limitHint)
		case errors.As(p.Err, &probe):
			add("the file was checked and would not have worked on this node; --no-probe stages it all the same")
		case errors.Is(p.Err, fs.ErrNotExist):
			add("somebody removed what chandler was working with; run it again")
		case errors.Is(p.Err, syscall.EXDEV), errors.Is(p.Err, syscall.EBUSY):
			add("something is mounted on %s, or on .chandler in it; staging needs both on the bin dir's own file system", p.Name)
		case errors.Is(p.Err, syscall.EROFS):
			add("%s is read-only here; in a pod, the volume mount must not be readOnly", r.BinDir)
		case errors.Is(p.Err, syscall.EPERM) && immutable(o.BinDir, p.Name):
			add("%s is immutable; chattr -i lets it be replaced", p.Name)
		case errors.Is(p.Err, syscall.EPERM) && p.Original != "" && immutable(filepath.Split(filepath.Join(o.BinDir, p.Original))):
			add("%s is immutable; chattr -i lets it be put back", filepath.Join(r.BinDir, p.Original))
		case errors.Is(p.Err, syscall.EPERM) && immutable(o.BinDir, "."):
			add("%s is immutable; chattr -i lets it be written to", r.BinDir)
		case errors.Is(p.Err, syscall.EACCES):
			if h := permissionHint(r.BinDir, o.BinDir); h != "" {
				add("%s", h)
			}
		case (errors.Is(p.Err, syscall.ENOSPC) || errors.Is(p.Err, syscall.EDQUOT)) && task == stage.Restoring:
			add("the disk has no room for a name; 'chandler originals --purge --only NAME' makes some, where that need not come back")
		case errors.Is(p.Err, syscall.ENOSPC), errors.Is(p.Err, syscall.EDQUOT):
			add("staging needs room for every plugin that it writes beside the old one")
		}
	}
	return found
}

const limitHint = "this process may not open or start as much as staging needs; raise its limits (ulimit -n, ulimit -u, memory)"

// ownLimit says whether a call failed for what this process may have, whatever it was for. EBADF is what a child gets that
// may not hold the descriptors it is to be started with.
func ownLimit(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.ENOMEM, syscall.EBADF} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func refusalHint(task stage.Task, err error, o stage.Options) string {
	var binDir *stage.BinDirError
	var newer *bundle.NewerFormatError
	var damage *bundle.DamageError
	switch {
	case errors.Is(err, stage.ErrNotMounted):
		return "mount the host's directory there, or leave out --init"
	case errors.Is(err, stage.ErrBusy):
		return "run it again when the other is done, or let it wait longer (--lock-wait)"
	case errors.As(err, &binDir) && errors.Is(err, fs.ErrNotExist):
		if task == stage.Restoring {
			return ""
		}
		if o.Create {
			return "without --dry-run it would be made"
		}
		return "make it, or pass --create"
	case ownLimit(err):
		return limitHint
	case errors.Is(err, syscall.EIO):
		return "what the bundle lies on cannot be read; the kernel's log says more"
	case errors.As(err, &newer):
		return "use a chandler that is at least as new as the bundle"
	case errors.As(err, &damage):
		return "pull or build it again; 'chandlerctl bundle verify' names everything that is wrong"
	}
	return ""
}

// permissionHint says who may write to the bin dir, if this process may not.
func permissionHint(shown, path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	if unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil {
		return ""
	}
	return fmt.Sprintf("%s belongs to uid %d with mode %04o, and this process (uid %d) has no CAP_DAC_OVERRIDE; "+
		"give it that capability, or the directory to uid %d", shown, owner, info.Mode().Perm(), os.Geteuid(), os.Geteuid())
}

func onNoExec(path string) bool {
	dir, err := hostdir.Open(path)
	if err != nil {
		return false
	}
	defer dir.Close()
	noExec, err := dir.NoExec()
	return err == nil && noExec
}

func immutable(path, name string) bool {
	dir, err := hostdir.Open(path)
	if err != nil {
		return false
	}
	defer dir.Close()
	return dir.Immutable(name)
}
