// Package hostdir works in one directory of a host that others write to at the same time. Every operation takes a
// single name, is made relative to the open directory, follows no link, and says path, operation and errno when it
// fails. It has no policy: what to put where is its callers' business.
package hostdir

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Dir is an open directory. It stays the same directory whatever happens to its path. Safe for concurrent use.
type Dir struct {
	fd   int
	path string
}

// Kind is what stands under a name.
type Kind string

const (
	File    Kind = "file"
	Folder  Kind = "directory"
	Symlink Kind = "symlink"
	Fifo    Kind = "fifo"
	Socket  Kind = "socket"
	Device  Kind = "device"
)

// Entry describes what stands under a name. The name's target, if it is a link, is not looked at.
type Entry struct {
	Kind    Kind
	Perm    fs.FileMode // the permission bits, with set-id and sticky as in the system call: 07777
	UID     uint32
	GID     uint32
	Size    int64 // bytes
	ModTime time.Time
	Changed time.Time // of the inode: its last renaming, too
	Dev     uint64
	Ino     uint64
	Nlink   uint64
}

// Same says whether both describe one inode.
func (e Entry) Same(o Entry) bool { return e.Dev == o.Dev && e.Ino == o.Ino }

// Untouched says whether both describe one inode that was not written to in between, so far as its size and time tell. The number of an inode
// that was removed is soon another's.
func (e Entry) Untouched(o Entry) bool {
	return e.Same(o) && e.Kind == o.Kind && e.Size == o.Size && e.ModTime.Equal(o.ModTime)
}

// The two rename flags are all that tests need to take away: some file systems know neither.
var renameat2 = unix.Renameat2

// Open opens the directory at path. A link at path is followed, this once: all else goes through the open directory.
func Open(path string) (*Dir, error) {
	return open(unix.AT_FDCWD, path, path, 0)
}

func open(at int, name, path string, flags int) (*Dir, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC|flags, 0)
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{fd: fd, path: path}, nil
}

// Path is the path that the directory was opened by. It may lead elsewhere by now.
func (d *Dir) Path() string { return d.path }

// Close closes the directory and gives up its lock.
func (d *Dir) Close() error { return d.fail("close", "", unix.Close(d.fd)) }

// Sub opens the directory name in d, which must not be a link.
func (d *Dir) Sub(name string) (*Dir, error) {
	return open(d.fd, name, d.join(name), unix.O_NOFOLLOW)
}

// Make creates the directory name in d with exactly the given permissions, and opens it. It fails if anything is there.
func (d *Dir) Make(name string, perm fs.FileMode) (*Dir, error) {
	if err := retry(func() error { return unix.Mkdirat(d.fd, name, 0o700) }); err != nil {
		return nil, d.fail("mkdir", name, err)
	}
	sub, err := d.Sub(name)
	if err != nil {
		return nil, err
	}
	if err := sub.Chmod(perm); err != nil {
		sub.Close()
		return nil, err
	}
	return sub, nil
}

// Chmod sets the directory's own permissions, whatever the umask.
func (d *Dir) Chmod(perm fs.FileMode) error {
	return d.fail("chmod", "", retry(func() error { return unix.Fchmod(d.fd, uint32(perm)) }))
}

// Self describes the directory itself. Nlink is 0 once it has been removed from its file system.
func (d *Dir) Self() (Entry, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(d.fd, &st) })
	return entry(&st), d.fail("stat", "", err)
}

// Stat describes what stands under name. An absent name is an fs.ErrNotExist.
func (d *Dir) Stat(name string) (Entry, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return Entry{}, d.fail("stat", name, err)
	}
	return entry(&st), nil
}

// Readlink returns the target of the link name.
func (d *Dir) Readlink(name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	var n int
	err := retry(func() (err error) {
		n, err = unix.Readlinkat(d.fd, name, buf)
		return err
	})
	if err != nil {
		return "", d.fail("readlink", name, err)
	}
	return string(buf[:n]), nil
}

// TargetVisible says whether a link in the directory, or its target, leads to something that can be seen from here. It is for
// telling, not for deciding.
func (d *Dir) TargetVisible(name string) bool {
	var st unix.Stat_t
	return retry(func() error { return unix.Fstatat(d.fd, name, &st, 0) }) == nil
}

// ErrNotRegular says that a name is something other than a regular file.
var ErrNotRegular = errors.New("not a regular file")

// OpenFile opens the regular file name for reading, without ever blocking on a fifo or touching a device.
// What else stands there is an ErrNotRegular.
func (d *Dir) OpenFile(name string) (*os.File, Entry, error) {
	// Looked at first: opening a device can have effects. Then opened without following or blocking, and looked at
	// again, since the name may have changed hands in between.
	e, err := d.Stat(name)
	if err != nil {
		return nil, Entry{}, err
	}
	if e.Kind != File {
		return nil, e, d.fail("open", name, ErrNotRegular)
	}
	f, err := d.openat("open", name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) { // a link by now
		return nil, Entry{}, d.fail("open", name, ErrNotRegular)
	}
	return d.regular(f, name, err)
}

// OpenBelow is OpenFile of what a path leads to, links on the way included, as long as none leads out of the directory. One that
// does is an EXDEV. Before Linux 5.6, and where a container may not ask, all but a file of the directory itself is an ENOSYS.
func (d *Dir) OpenBelow(path string) (*os.File, Entry, error) {
	below := func(flags uint64) (f *os.File, err error) {
		var fd int
		how := &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
		if err = retry(func() (err error) { fd, err = unix.Openat2(d.fd, path, how); return err }); err != nil {
			return nil, d.fail("open", path, err)
		}
		return os.NewFile(uintptr(fd), d.join(path)), nil
	}
	at, err := below(unix.O_PATH)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		if strings.ContainsRune(path, '/') {
			return nil, Entry{}, d.fail("open", path, unix.ENOSYS)
		}
		return d.OpenFile(path)
	}
	at, e, err := d.regular(at, path, err)
	if err != nil {
		return nil, e, err
	}
	at.Close()
	f, err := below(unix.O_RDONLY | unix.O_NONBLOCK)
	return d.regular(f, path, err)
}

// regular finishes an opening: what is no regular file is closed again.
func (d *Dir) regular(f *os.File, name string, err error) (*os.File, Entry, error) {
	switch {
	case errors.Is(err, unix.ENXIO): // a socket by now
		return nil, Entry{}, d.fail("open", name, ErrNotRegular)
	case err != nil:
		return nil, Entry{}, err
	}
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		f.Close()
		return nil, Entry{}, d.fail("stat", name, err)
	}
	e := entry(&st)
	if e.Kind != File {
		f.Close()
		return nil, e, d.fail("open", name, ErrNotRegular)
	}
	return f, e, nil
}

// Create creates the file name for writing and reading, readable by nobody else until Chmod. It fails if anything is there.
func (d *Dir) Create(name string) (*os.File, error) {
	return d.openat("create", name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
}

func (d *Dir) openat(op, name string, flags int, perm uint32) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(d.fd, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
		return err
	})
	if err != nil {
		return nil, d.fail(op, name, err)
	}
	return os.NewFile(uintptr(fd), d.join(name)), nil
}

// Names lists the directory in order, without . and .. .
func (d *Dir) Names() ([]string, error) {
	// A directory opened anew has a position of its own, so that two listings do not share one.
	again, err := open(d.fd, ".", d.path, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(again.fd), d.path)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// Publish gives the file name of the directory from the name to in d, where nothing may stand: one atomic step.
// Something that stands there is an fs.ErrExist and both stay as they were. A *StaysError is no failure to publish.
func (d *Dir) Publish(from *Dir, name, to string) error {
	err := retry(func() error { return renameat2(from.fd, name, d.fd, to, unix.RENAME_NOREPLACE) })
	if !flagsUnknown(err) {
		return d.fail("rename", to, err)
	}
	// The same in two steps, the first of which is the atomic one, where the file system knows no such rename.
	if err := retry(func() error { return unix.Linkat(from.fd, name, d.fd, to, 0) }); err != nil {
		return d.fail("link", to, err)
	}
	if err := from.Remove(name); err != nil {
		return &StaysError{err}
	}
	return nil
}

// StaysError says that a file was published and has its old name as well, which could not be taken away.
type StaysError struct{ Err error }

func (e *StaysError) Error() string { return e.Err.Error() }
func (e *StaysError) Unwrap() error { return e.Err }

// Exchange swaps what stands under name in from with what stands under to in d, whatever the two are: one atomic step.
// errors.ErrUnsupported where the file system knows no such rename.
func (d *Dir) Exchange(from *Dir, name, to string) error {
	err := retry(func() error { return renameat2(from.fd, name, d.fd, to, unix.RENAME_EXCHANGE) })
	if flagsUnknown(err) {
		err = errors.ErrUnsupported
	}
	return d.fail("rename", to, err)
}

// Link makes to in d another name of the inode, a link included, that name in from stands for. It fails if anything is there.
func (d *Dir) Link(from *Dir, name, to string) error {
	return d.fail("link", to, retry(func() error { return unix.Linkat(from.fd, name, d.fd, to, 0) }))
}

// Replace gives the file name of the directory from the name to in d, in place of any file or link that stands there:
// one atomic step. A directory is left.
func (d *Dir) Replace(from *Dir, name, to string) error {
	return d.fail("rename", to, retry(func() error { return unix.Renameat(from.fd, name, d.fd, to) }))
}

// flagsUnknown is what file systems say to flags of rename that they do not have (ZFS before 2.2, NFS, some FUSE).
func flagsUnknown(err error) bool {
	return err == unix.EINVAL || err == unix.ENOSYS || err == unix.EOPNOTSUPP
}

// Remove removes a name that is not a directory.
func (d *Dir) Remove(name string) error {
	return d.fail("remove", name, retry(func() error { return unix.Unlinkat(d.fd, name, 0) }))
}

// RemoveDir removes an empty directory.
func (d *Dir) RemoveDir(name string) error {
	return d.fail("remove", name, retry(func() error { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) }))
}

// RemoveAll removes name and all that is under it, following no link and crossing into no other file system. It goes on
// as far as it can and returns the first error. An absent name is none, also one that somebody else removes meanwhile.
func (d *Dir) RemoveAll(name string) error {
	err := d.removeAll(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d *Dir) removeAll(name string) error {
	e, err := d.Stat(name)
	if err != nil {
		return err
	}
	if e.Kind != Folder {
		return d.Remove(name)
	}
	sub, err := d.Sub(name)
	if err != nil {
		return err
	}
	defer sub.Close()
	// A mount of the same file system has the same device, so that alone does not tell.
	if mounted, err := sub.MountPoint(); err != nil || mounted {
		return errors.Join(err, d.fail("remove", name, unix.EXDEV))
	}
	names, first := sub.Names()
	for _, n := range names {
		if err := sub.RemoveAll(n); err != nil && first == nil {
			first = err
		}
	}
	if first != nil {
		return first
	}
	return d.RemoveDir(name)
}

// Immutable says whether the file name may not be changed, renamed or removed by anybody (chattr +i), as far as the file
// system tells.
func (d *Dir) Immutable(name string) bool {
	var sx unix.Statx_t
	err := retry(func() error { return unix.Statx(d.fd, name, unix.AT_SYMLINK_NOFOLLOW, 0, &sx) })
	return err == nil && sx.Attributes&unix.STATX_ATTR_IMMUTABLE != 0
}

// Sync makes the directory's names durable. The files' bytes are synced through the files. A file system that has nothing
// to sync, such as a read-only image, says EINVAL.
func (d *Dir) Sync() error {
	err := retry(func() error { return unix.Fsync(d.fd) })
	if err == unix.EINVAL {
		return nil
	}
	if err == nil {
		// A file system that has given up its disk has nothing left to sync in a directory, and says so only when it is asked
		// for something else (XFS).
		var st unix.Stat_t
		err = retry(func() error { return unix.Fstat(d.fd, &st) })
	}
	return d.fail("sync", "", err)
}

// ErrLocked says that another process holds a directory's lock.
var ErrLocked = errors.New("locked by another process")

// TryLock takes the directory's exclusive lock (flock), which lasts until Close. It does not wait: ErrLocked.
func (d *Dir) TryLock() error {
	err := retry(func() error { return unix.Flock(d.fd, unix.LOCK_EX|unix.LOCK_NB) })
	if err == unix.EWOULDBLOCK {
		err = ErrLocked
	}
	return d.fail("lock", "", err)
}

// MountPoint says whether the directory is the root of a mount, as a container's volume is.
func (d *Dir) MountPoint() (bool, error) {
	var sx unix.Statx_t
	err := retry(func() error { return unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, 0, &sx) })
	if err == nil && sx.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return sx.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
	}
	// Before Linux 5.8: a host's directory lies on another device than the container's directory above it.
	self, err := d.Self()
	if err != nil {
		return false, err
	}
	above, err := d.Stat("..")
	return err == nil && self.Dev != above.Dev, err
}

// NoExec says whether files in the directory cannot be executed, because of how its file system is mounted here.
func (d *Dir) NoExec() (bool, error) {
	var st unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(d.fd, &st) })
	return st.Flags&unix.ST_NOEXEC != 0, d.fail("statfs", "", err)
}

// Overlay says whether the directory lies on an overlay, whose lower files can be hidden but not changed.
func (d *Dir) Overlay() (bool, error) {
	var st unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(d.fd, &st) })
	return st.Type == unix.OVERLAYFS_SUPER_MAGIC, d.fail("statfs", "", err)
}

func (d *Dir) join(name string) string {
	if name == "" {
		return d.path
	}
	return strings.TrimSuffix(d.path, "/") + "/" + name
}

func (d *Dir) fail(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: d.join(name), Err: err}
}

// retry goes on where a signal interrupted a call: Go's runtime sends itself signals.
func retry(call func() error) error {
	for {
		if err := call(); err != unix.EINTR {
			return err
		}
	}
}

func entry(st *unix.Stat_t) Entry {
	e := Entry{
		Perm: fs.FileMode(st.Mode & 0o7777), UID: st.Uid, GID: st.Gid, Size: st.Size,
		ModTime: time.Unix(st.Mtim.Unix()), Changed: time.Unix(st.Ctim.Unix()), Dev: uint64(st.Dev), Ino: st.Ino, Nlink: uint64(st.Nlink),
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind = File
	case unix.S_IFDIR:
		e.Kind = Folder
	case unix.S_IFLNK:
		e.Kind = Symlink
	case unix.S_IFIFO:
		e.Kind = Fifo
	case unix.S_IFSOCK:
		e.Kind = Socket
	default:
		e.Kind = Device
	}
	return e
}

// ReadFile reads the regular file name, which may hold at most limit bytes.
func (d *Dir) ReadFile(name string, limit int64) ([]byte, error) {
	f, _, err := d.OpenFile(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, d.fail("read", name, unix.EFBIG)
	}
	return data, nil
}
