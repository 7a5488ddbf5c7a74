package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/internal/bundle"
	"github.com/chandler-cni/chandler/internal/hostdir"
	"github.com/chandler-cni/chandler/internal/stage"
)

// hintList has each hint once, in the order in which they were added.
type hintList []string

func (l *hintList) add(format string, args ...any) {
	if hint := fmt.Sprintf(format, args...); hint != "" && !slices.Contains(*l, hint) {
		*l = append(*l, hint)
	}
}

// hints says what would help, once each, from the types of what went wrong.
func hints(task stage.Task, r *stage.Report, o stage.Options) []string {
	var found hintList
	add := found.add
	add("%s", refusalHint(task, r.Err, o, r.BinDir))
	add("%s", newerHint(r))
	for _, p := range r.Plugins {
		var probe *stage.ProbeError
		switch {
		case p.Err == nil:
		case errors.Is(p.Err, stage.ErrNotKept):
			add("%s", notKeptHint(onOverlay(o.BinDir)))
		case folderHint(p.Err, r.BinDir) != "":
			add("%s", folderHint(p.Err, r.BinDir))
		case errors.As(p.Err, &probe) && errors.Is(p.Err, syscall.EACCES) && onNoExec(o.BinDir):
			add("the file system of %s is mounted noexec; nothing on it can be a plugin until it is mounted exec", r.BinDir)
		case ownLimit(p.Err):
			add(limitHint)
		case errors.As(p.Err, &probe):
			add("the file was checked and would not have worked on this node; --no-probe stages it all the same")
		case errors.Is(p.Err, fs.ErrNotExist):
			add("somebody removed what chandler was working with; run it again")
		case errors.Is(p.Err, syscall.EXDEV), errors.Is(p.Err, syscall.EBUSY):
			add("something is mounted on %s, or on .chandler in it; chandler needs both on the bin dir's own file system", p.Name)
		case errors.Is(p.Err, syscall.EROFS):
			add("%s is read-only here; in a pod, the volume mount must not be readOnly", r.BinDir)
		case errors.Is(p.Err, syscall.EPERM) && immutable(o.BinDir, p.Name):
			add("%s is immutable; chattr -i lets it be replaced", p.Name)
		case errors.Is(p.Err, syscall.EPERM) && p.Original != "" && immutable(filepath.Split(filepath.Join(o.BinDir, p.Original))):
			add("%s is immutable; chattr -i lets it be put back", filepath.Join(r.BinDir, p.Original))
		case errors.Is(p.Err, syscall.EPERM) && immutable(o.BinDir, "."):
			add("%s is immutable; chattr -i lets it be written to", r.BinDir)
		case errors.Is(p.Err, syscall.EPERM):
			add("%s", stickyHint(r.BinDir, o.BinDir, os.Geteuid()))
			for _, folder := range []string{".chandler", ".chandler/tmp", ".chandler/staged", ".chandler/originals", ".chandler/originals/" + p.Name} {
				if immutable(filepath.Split(filepath.Join(o.BinDir, folder))) {
					add("%s is immutable; chattr -i lets it be written to", filepath.Join(r.BinDir, folder))
				}
			}
		case errors.Is(p.Err, syscall.EACCES):
			add("%s", permissionHint(r.BinDir, o.BinDir))
		case (errors.Is(p.Err, syscall.ENOSPC) || errors.Is(p.Err, syscall.EDQUOT)) && task == stage.Restoring:
			add("the disk has no room for a name; 'chandler originals --purge --only NAME' makes some, where that need not come back")
		case errors.Is(p.Err, syscall.ENOSPC), errors.Is(p.Err, syscall.EDQUOT):
			add("staging needs room for every plugin that it writes beside the old one")
		}
	}
	return found
}

const limitHint = "this process may not open or start as much as it has to; raise its limits (ulimit -n, ulimit -u, memory)"

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

// originalsHints is hints for what is kept: err is why nothing could be done, failed what could not be listed or dropped.
func originalsHints(err error, failed stage.OriginalErrors, shown, binDir string) []string {
	var found hintList
	if len(failed) == 0 {
		found.add("%s", refusalHint(stage.Restoring, err, stage.Options{BinDir: binDir}, shown))
	}
	for _, one := range failed {
		at := filepath.Join(shown, one.Path)
		folder, name := filepath.Split(filepath.Join(binDir, one.Path))
		switch {
		case folderHint(one, shown) != "":
			found.add("%s", folderHint(one, shown))
		case ownLimit(one):
			found.add(limitHint)
		case errors.Is(one, syscall.EROFS):
			found.add("%s is read-only here", shown)
		case errors.Is(one, syscall.EPERM) && immutable(folder, name):
			found.add("%s is immutable; chattr -i lets it be removed", at)
		case errors.Is(one, syscall.EPERM) && immutable(folder, "."):
			found.add("%s is immutable; chattr -i lets what is in it be removed", filepath.Dir(at))
		case errors.Is(one, syscall.EACCES):
			found.add("%s", permissionHint(shown, binDir))
		}
	}
	return found
}

// newerHint says how to have the bundle's plugins all the same, where the node's are newer.
func newerHint(r *stage.Report) string {
	var names []string
	for _, p := range r.Plugins {
		if p.Reason == stage.IsNewer {
			names = append(names, p.Name+"="+string(stage.Replace))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("the node has newer plugins than this bundle, and the policy newer keeps them; --policy-for %s brings the bundle's "+
		"all the same (in the chart, stagePolicyFor)", strings.Join(names, ","))
}

// notKeptHint says what to do about a staged file whose original is gone.
func notKeptHint(overlay bool) string {
	const gone = "what was not kept, or was purged, cannot be put back; "
	if overlay {
		return gone + "the bin dir lies on an overlay: to remove the staged file would leave a whiteout, which hides a file of that name in the " +
			"image below, also in a later image, so do that only where there is none"
	}
	return gone + "where nothing needs the staged file, remove it by hand"
}

// folderHint says what to do where chandler's own folder, or a part of it, is not one that it trusts. The originals may lie in it.
func folderHint(err error, shown string) string {
	var owner *stage.OwnerError
	var taken *stage.TakenError
	switch {
	case errors.As(err, &owner):
		at := filepath.Join(shown, owner.Path)
		return fmt.Sprintf("if the whole bin dir was given to another user (chown -R), give the folder and the staged plugins back "+
			"(chown -R %d %s), since the originals lie in it; if somebody else made %s, look at what lies there and move it away: "+
			"staging makes its own, and trusts what is in it", os.Geteuid(), at, owner.Path)
	case errors.As(err, &taken) && taken.Mounted:
		return fmt.Sprintf("unmount what is mounted on %s; the originals may lie below it", taken.Path)
	case errors.As(err, &taken):
		return fmt.Sprintf("something else stands in the place of %s; look at what it is and move it away, and if the folder itself was "+
			"moved, put that back: the originals lie in it", taken.Path)
	}
	return ""
}

func refusalHint(task stage.Task, err error, o stage.Options, shown string) string {
	var binDir *stage.BinDirError
	var newer *bundle.NewerFormatError
	var damage *bundle.DamageError
	switch {
	case err == nil:
		return ""
	case folderHint(err, shown) != "":
		return folderHint(err, shown)
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
	case errors.As(err, &binDir) && errors.Is(err, syscall.EACCES):
		if hint := permissionHint(filepath.Join(shown, ".chandler"), filepath.Join(o.BinDir, ".chandler")); hint != "" {
			return hint
		}
		return permissionHint(shown, o.BinDir)
	case errors.Is(err, syscall.EIO) && task == stage.Restoring:
		return "what the bin dir lies on cannot be read; the kernel's log says more"
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

// stickyHint says whose file may be replaced, where the bin dir is sticky and this process may not replace all of them.
func stickyHint(shown, path string, uid int) string {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeSticky == 0 || info.Sys().(*syscall.Stat_t).Uid == uint32(uid) {
		return ""
	}
	return fmt.Sprintf("%s is sticky: a file in it may be replaced by its owner alone, or the directory's; give this process (uid %d) "+
		"CAP_FOWNER, or take the bit away (chmod -t)", shown, uid)
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

func onOverlay(path string) bool {
	dir, err := hostdir.Open(path)
	if err != nil {
		return false
	}
	defer dir.Close()
	overlay, err := dir.Overlay()
	return err == nil && overlay
}

// immutable says whether a file may not even be removed. Tests replace it: to make one takes a right of its own.
var immutable = func(path, name string) bool {
	dir, err := hostdir.Open(path)
	if err != nil {
		return false
	}
	defer dir.Close()
	return dir.Immutable(name)
}
