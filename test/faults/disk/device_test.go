//go:build faults

package disk

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/rpc"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/chandler-cni/chandler/test/rig"
)

const pageSize = 4096 // what is lost or kept as one by a power cut

type page [pageSize]byte

// image is what a disk holds, by page. Pages are never written to, so that a copy of the map is a copy of the disk.
type image map[int64]*page

func (m image) read(buf []byte, off int64) {
	for done := 0; done < len(buf); {
		n, at := (off+int64(done))/pageSize, (off+int64(done))%pageSize
		if p := m[n]; p != nil {
			done += copy(buf[done:], p[at:])
			continue
		}
		zero := buf[done:min(len(buf), done+int(pageSize-at))]
		clear(zero)
		done += len(zero)
	}
}

// piece is the part of a write that lies in one page. Data is nil where the page was discarded.
type piece struct {
	page int64
	at   int
	data []byte
}

func (m image) apply(p piece) {
	if p.data == nil {
		delete(m, p.page)
		return
	}
	if len(p.data) == pageSize {
		m[p.page] = (*page)(p.data)
		return
	}
	next := new(page)
	if was := m[p.page]; was != nil {
		*next = *was
	}
	copy(next[p.at:], p.data)
	m[p.page] = next
}

// pieces cuts a write at the pages' borders. It keeps data.
func pieces(data []byte, off int64) (all []piece) {
	for len(data) > 0 {
		at := int(off % pageSize)
		n := min(len(data), pageSize-at)
		all = append(all, piece{off / pageSize, at, data[:n:n]})
		data, off = data[n:], off+int64(n)
	}
	return all
}

// Step is one entry of the disk's log.
type Step struct {
	Pieces int    // of a write
	Flush  bool   // all that was written before it is on the disk
	Mark   string // what the test had to say
}

// Slow is how long a disk takes. It does one thing at a time.
type Slow struct {
	Write, Flush time.Duration // each
	PerMB        time.Duration // of what a flush has to bring out of the disk's cache
}

// Cut is a power cut: what came after the first At steps never happened, and of what was written since the last flush among
// these, each piece was lost with the probability Lose.
type Cut struct {
	At   int
	Lose float64
	Seed uint64
}

const (
	diskNode = 2 // the file that is the disk
	cutNode  = 3 // the file that is what a power cut has left of it
)

// device is a file system of two files that are disks. Of the one it keeps every write and every flush in order.
type device struct {
	fuse.RawFileSystem
	size int64

	mu    sync.Mutex
	disks map[uint64]image // by node
	base  image            // the disk when the log began
	log   []entry          // nil while nothing is logged
	slow  Slow
	dirty int64 // bytes since the last flush
	dies  int   // flushes until the disk dies; 0 if it does not
	dead  bool

	busy sync.Mutex // held while the slow disk does something
}

type entry struct {
	Step
	pieces []piece
}

func (d *device) attr(node uint64, out *fuse.Attr) {
	*out = fuse.Attr{Ino: node, Mode: syscall.S_IFREG | 0o600, Nlink: 1, Size: uint64(d.size), Blksize: pageSize}
	if node == fuse.FUSE_ROOT_ID {
		out.Mode, out.Size = syscall.S_IFDIR|0o700, 0
	}
}

func (d *device) Lookup(_ <-chan struct{}, _ *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	node, ok := map[string]uint64{"disk": diskNode, "cut": cutNode}[name]
	if !ok {
		return fuse.ENOENT
	}
	out.NodeId = node
	out.SetEntryTimeout(time.Hour)
	out.SetAttrTimeout(time.Hour)
	d.attr(node, &out.Attr)
	return fuse.OK
}

func (d *device) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	out.SetTimeout(time.Hour)
	d.attr(in.NodeId, &out.Attr)
	return fuse.OK
}

// Open makes every read and write pass through here, whoever opens the file.
func (d *device) Open(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	return fuse.OK
}

func (d *device) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK } // of a descriptor, at its close

func (d *device) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	buf = buf[:max(0, min(int64(len(buf)), d.size-int64(in.Offset)))]
	d.disks[in.NodeId].read(buf, int64(in.Offset))
	return fuse.ReadResultData(buf), fuse.OK
}

func (d *device) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	return uint32(len(data)), d.store(in.NodeId, pieces(append([]byte(nil), data...), int64(in.Offset)), int64(len(data)))
}

// Fallocate is what the loop device makes of a discard and of zeros to be written.
func (d *device) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if in.Mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) == 0 {
		return fuse.Status(syscall.EOPNOTSUPP)
	}
	zeros := pieces(make([]byte, in.Length), int64(in.Offset))
	for i, p := range zeros {
		if len(p.data) == pageSize {
			zeros[i].data = nil
		}
	}
	return d.store(in.NodeId, zeros, 0)
}

func (d *device) store(node uint64, what []piece, bytes int64) fuse.Status {
	if node == diskNode {
		d.take(func(s Slow) time.Duration { return s.Write })
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if node == diskNode && d.dead {
		return fuse.EIO
	}
	for _, p := range what {
		d.disks[node].apply(p)
	}
	if node != diskNode {
		return fuse.OK
	}
	d.dirty += bytes
	if d.log != nil {
		d.log = append(d.log, entry{Step{Pieces: len(what)}, what})
	}
	return fuse.OK
}

func (d *device) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if in.NodeId != diskNode {
		return fuse.OK
	}
	d.take(func(s Slow) time.Duration { return s.Flush + time.Duration(float64(s.PerMB)*float64(d.dirty)/1e6) })
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirty = 0
	if d.dies > 0 {
		d.dies--
		d.dead = d.dies == 0
	}
	if d.dead {
		return fuse.EIO
	}
	if d.log != nil {
		d.log = append(d.log, entry{Step: Step{Flush: true}})
	}
	return fuse.OK
}

// take lets as much time pass as the disk needs.
func (d *device) take(needs func(Slow) time.Duration) {
	d.busy.Lock()
	defer d.busy.Unlock()
	d.mu.Lock()
	took := needs(d.slow)
	d.mu.Unlock()
	time.Sleep(took)
}

// Control is what a test may ask of the process that serves a disk.
type Control struct{ d *device }

// Begin begins the log: what was written before is on the disk.
func (c Control) Begin(bool, *bool) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.base, c.d.log = maps.Clone(c.d.disks[diskNode]), []entry{}
	return nil
}

func (c Control) Mark(what string, _ *bool) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.log = append(c.d.log, entry{Step: Step{Mark: what}})
	return nil
}

// Log returns the log.
func (c Control) Log(_ bool, steps *[]Step) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	for _, e := range c.d.log {
		*steps = append(*steps, e.Step)
	}
	return nil
}

// Cut makes the file cut what the power cut has left, and says how many pieces it lost.
func (c Control) Cut(cut Cut, lost *int) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	log := c.d.log[:cut.At]
	flushed := len(log)
	for flushed > 0 && !log[flushed-1].Flush {
		flushed--
	}
	lot := rand.New(rand.NewPCG(cut.Seed, uint64(cut.At)))
	left := maps.Clone(c.d.base)
	for i, e := range log {
		for _, p := range e.pieces {
			if i >= flushed && lot.Float64() < cut.Lose {
				*lost++
				continue
			}
			left.apply(p)
		}
	}
	c.d.disks[cutNode] = left
	return nil
}

func (c Control) Slow(slow Slow, _ *bool) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.slow = slow
	return nil
}

// Die makes the n-th flush from now on, and every write and flush after it, fail.
func (c Control) Die(n int, _ *bool) error {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	c.d.dies = n
	return nil
}

// serveDisk is the program of the process that serves a disk: arguments are where to mount its file system, and the disk's
// size. It answers on its standard output, and ends when its standard input does.
func serveDisk() int {
	size, err := strconv.ParseInt(os.Args[2], 10, 64)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	d := &device{RawFileSystem: fuse.NewDefaultRawFileSystem(), size: size, disks: map[uint64]image{diskNode: {}, cutNode: {}}}
	server, err := fuse.NewServer(d, os.Args[1], &fuse.MountOptions{
		DirectMountStrict: true, MaxWrite: 1 << 20, DisableSplice: true, DisableXAttrs: true, FsName: "disk", Name: "disk",
	})
	if err == nil {
		go server.Serve()
		err = server.WaitMount()
	}
	control := rpc.NewServer()
	if err == nil {
		err = control.Register(Control{d})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	control.ServeConn(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	return 0
}

// disk is a disk with a file system on it.
type disk struct {
	t       testing.TB
	kind    string
	dir     string // where the two files are
	at      string // where its file system is mounted
	mounted bool
	rpc     *rpc.Client
}

// sizes are the smallest that the tools make a file system of, or that the plugins fit in.
var sizes = map[string]int64{"ext4": 96 << 20, "xfs": 320 << 20, "btrfs": 256 << 20}

// newDisk makes a disk of zeros that lasts as long as the test. It has no file system yet.
func newDisk(t testing.TB, size int64) *disk {
	t.Helper()
	dir, err := os.MkdirTemp(rig.Dir, "disk-")
	rig.Must(t, err)
	d := &disk{t: t, dir: rig.Mkdir(t, filepath.Join(dir, "files")), at: rig.Mkdir(t, filepath.Join(dir, "at"))}
	cmd := rig.Role(t, "disk", d.dir, fmt.Sprint(size))
	cmd.Stderr = os.Stderr
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	rig.Must(t, inErr, outErr, cmd.Start())
	d.rpc = rpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})
	t.Cleanup(func() {
		rig.Unmount(t, d.dir)
		d.rpc.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the disk's process: %v", err)
		}
		os.RemoveAll(dir)
	})
	d.slow(Slow{}) // it is there once it answers
	return d
}

// format makes a file system on the disk and mounts it for as long as the test lasts.
func (d *disk) format(kind string) {
	d.t.Helper()
	d.kind = kind
	rig.Must(d.t, rig.Format(kind, filepath.Join(d.dir, "disk")))
	d.mount("disk")
	d.t.Cleanup(func() {
		if d.mounted {
			d.unmount()
		}
	})
}

// mount mounts the file system of one of the two files.
func (d *disk) mount(file string) {
	d.t.Helper()
	loop, err := attach(filepath.Join(d.dir, file))
	rig.Must(d.t, err)
	err = unix.Mount(loop.Name(), d.at, d.kind, 0, "")
	loop.Close()
	if err != nil {
		d.t.Fatalf("mount %s of the file %s: %v", d.kind, file, err)
	}
	d.mounted = true
}

// attach makes a loop device of a file. It goes with the last that has it open or mounted, also if that is killed.
func attach(path string) (*os.File, error) {
	control, err := os.Open("/dev/loop-control")
	if err != nil {
		return nil, err
	}
	defer control.Close()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, &os.PathError{Op: "get a free device from", Path: control.Name(), Err: err}
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(file.Fd()),
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}})
		if err == nil {
			return loop, nil
		}
		loop.Close()
		if err != unix.EBUSY { // somebody was quicker
			return nil, &os.PathError{Op: "attach", Path: path, Err: err}
		}
	}
}

func (d *disk) unmount() {
	d.t.Helper()
	d.mounted = false
	rig.Unmount(d.t, d.at)
}

func (d *disk) ask(what string, args, reply any) {
	d.t.Helper()
	if err := d.rpc.Call("Control."+what, args, reply); err != nil {
		d.t.Fatalf("the disk's process: %s: %v", what, err)
	}
}

func (d *disk) slow(s Slow)      { d.t.Helper(); d.ask("Slow", s, new(bool)) }
func (d *disk) mark(what string) { d.t.Helper(); d.ask("Mark", what, new(bool)) }

// sync has all that was written to the file system on the disk.
func (d *disk) sync() {
	d.t.Helper()
	f, err := os.Open(d.at)
	rig.Must(d.t, err)
	defer f.Close()
	rig.Must(d.t, unix.Syncfs(int(f.Fd())))
}
