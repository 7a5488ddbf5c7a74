//go:build linux && amd64

package tracer

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Call is one file system call of the traced program.
type Call struct {
	N, K  int    // the how-manieth of all it is, and of its name, from 1
	Name  string // as the kernel calls it
	Path  string // what is read, written or made
	To    string // of a rename or link the new name, of a copy the source, of an execve the name that is passed on
	Args  [6]uint64
	Child bool // made by a process that the program has started, which has not executed anything yet
	Wrote bool // a close, of a file that was open for writing

	// Set only where the action was Watch. Events are numbered through: what of two calls came first is known only if the one
	// ended before the other began.
	Begin, End int
	Result     int64
}

func (c Call) String() string {
	s := fmt.Sprintf("call %d, %s %d: %s", c.N, c.Name, c.K, c.Path)
	if c.To != "" {
		s += " -> " + c.To
	}
	return s
}

// Action is what is to become of a call.
type Action int

const (
	Go         Action = iota
	Watch             // let it be, and record its result
	Fail              // it returns the errno and is not executed; close is, since a descriptor is gone whatever close returns
	Short             // it moves fewer bytes than it was to
	KillBefore        // the program is killed and the call is not executed
	KillAfter         // it is executed, and the program is killed before it learns the result
)

// Decide says what is to become of a call. It is called by one thread, with the caller stopped; the program's other threads
// go on until they make a call themselves. So whatever it does happens between two calls of the program.
type Decide func(*Call) (Action, unix.Errno)

// Program is what is run. Stdin is /dev/null, the working directory the root.
type Program struct {
	Argv           []string
	Env            []string
	Stdout, Stderr *os.File
	Timeout        time.Duration // after which it is killed; none if 0
}

// Trace is what came of it.
type Trace struct {
	Status syscall.WaitStatus
	Calls  []Call // in the order in which they began
	Hung   bool   // it was killed for its timeout
}

// Run runs the program and returns when it, and whatever it started, has ended. Errors are of the tracing, not of the program.
//
// All children of the calling thread are taken for the program's: whoever starts processes in this one beside Run has to hold
// the thread that started them locked until they have been waited for.
func (p Program) Run(decide Decide) (*Trace, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(p.Argv[0], p.Argv, &syscall.ProcAttr{
		Dir: "/", Env: p.Env, Files: []uintptr{null.Fd(), p.Stdout.Fd(), p.Stderr.Fd()},
		Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", p.Argv[0], err)
	}
	t := &tracer{decide: decide, main: pid, trace: new(Trace), tasks: map[int]*task{pid: {tid: pid, pid: pid}},
		early: make(map[int]bool), names: make(map[string]int)}
	if err := t.begin(); err != nil {
		unix.Kill(pid, unix.SIGKILL)
		t.loop()
		return nil, fmt.Errorf("trace %s: %w", p.Argv[0], err)
	}
	var hung atomic.Bool
	if p.Timeout > 0 {
		timer := time.AfterFunc(p.Timeout, func() {
			hung.Store(true)
			unix.Kill(pid, unix.SIGKILL)
		})
		defer timer.Stop()
	}
	err = t.loop()
	t.trace.Hung = hung.Load()
	return t.trace, err
}

type tracer struct {
	decide Decide
	main   int
	trace  *Trace
	tasks  map[int]*task // by thread
	early  map[int]bool  // threads that stopped before their parent's stop told of them
	names  map[string]int
	events int
	over   bool // the program has ended
}

// task is one thread.
type task struct {
	tid, pid int
	known    bool // its first stop is over
	foreign  bool // it has executed something else: its calls are not the program's

	// A call whose end is waited for.
	call   int // its index, and
	ending func(t *task, regs *unix.PtraceRegs) error
}

// begin takes over the program, which has executed and done nothing yet.
func (t *tracer) begin() error {
	var ws unix.WaitStatus
	if err := wait(t.main, &ws, 0); err != nil {
		return err
	}
	if !ws.Stopped() || ws.StopSignal() != unix.SIGTRAP {
		return fmt.Errorf("it began with %#x", uint32(ws))
	}
	t.tasks[t.main].known = true
	err := unix.PtraceSetOptions(t.main, unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACEFORK|unix.PTRACE_O_TRACEVFORK|
		unix.PTRACE_O_TRACEEXEC|unix.PTRACE_O_TRACESECCOMP|unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_EXITKILL)
	if err != nil {
		return fmt.Errorf("set options: %w", err)
	}
	if err := t.filter(); err != nil {
		return fmt.Errorf("install the filter: %w", err)
	}
	return unix.PtraceCont(t.main, 0)
}

// filter makes the program itself install a seccomp filter, so that only the calls of the table stop it: a system call
// instruction is put where it is to begin, executed with the program's registers, and taken away again.
func (t *tracer) filter() error {
	code := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the call's number
	for nr := range calls {
		code = append(code,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(nr)},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_TRACE})
	}
	code = append(code, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})

	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(t.main, &regs); err != nil {
		return err
	}
	before := regs
	at := uintptr(regs.Rsp) - 16<<10 // the stack has more than that below it
	var program []byte
	program = binary.LittleEndian.AppendUint64(program, uint64(len(code)))
	program = binary.LittleEndian.AppendUint64(program, uint64(at)+16)
	for _, c := range code {
		program = binary.LittleEndian.AppendUint16(program, c.Code)
		program = append(program, c.Jt, c.Jf)
		program = binary.LittleEndian.AppendUint32(program, c.K)
	}
	if _, err := unix.PtracePokeData(t.main, at, program); err != nil {
		return err
	}
	instruction := []byte{0x0f, 0x05} // syscall
	was := make([]byte, len(instruction))
	if _, err := unix.PtracePeekText(t.main, uintptr(regs.Rip), was); err != nil {
		return err
	}
	if _, err := unix.PtracePokeText(t.main, uintptr(regs.Rip), instruction); err != nil {
		return err
	}
	regs.Rax, regs.Orig_rax = unix.SYS_SECCOMP, ^uint64(0)
	regs.Rdi, regs.Rsi, regs.Rdx = unix.SECCOMP_SET_MODE_FILTER, 0, uint64(at)
	if err := unix.PtraceSetRegs(t.main, &regs); err != nil {
		return err
	}
	if err := unix.PtraceSingleStep(t.main); err != nil {
		return err
	}
	var ws unix.WaitStatus
	if err := wait(t.main, &ws, 0); err != nil {
		return err
	}
	if err := unix.PtraceGetRegs(t.main, &regs); err != nil {
		return err
	}
	if regs.Rax != 0 {
		return unix.Errno(-int64(regs.Rax))
	}
	if _, err := unix.PtracePokeText(t.main, uintptr(before.Rip), was); err != nil {
		return err
	}
	return unix.PtraceSetRegs(t.main, &before)
}

// waitNoThread (__WNOTHREAD) leaves alone what other threads of this process have started.
const waitNoThread = 0x20000000

func wait(pid int, ws *unix.WaitStatus, options int) error {
	for {
		if _, err := unix.Wait4(pid, ws, unix.WALL|options, nil); err != unix.EINTR {
			return err
		}
	}
}

// loop goes from stop to stop until nothing is left.
func (t *tracer) loop() error {
	for {
		var ws unix.WaitStatus
		tid, err := unix.Wait4(-1, &ws, unix.WALL|waitNoThread, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ECHILD:
			return nil
		case err != nil:
			return err
		case !ws.Stopped():
			delete(t.tasks, tid)
			delete(t.early, tid)
			if tid == t.main {
				t.trace.Status = syscall.WaitStatus(ws)
				t.end()
			}
			continue
		}
		// One that is killed while it stands still is gone, and its end is told by the next wait.
		if err := t.stopped(tid, ws); err != nil && err != unix.ESRCH {
			unix.Kill(t.main, unix.SIGKILL)
			return fmt.Errorf("thread %d: %w", tid, err)
		}
	}
}

// end ends what the program has started and left: a process that it was just making stands still, and would for ever.
func (t *tracer) end() {
	t.over = true
	for tid := range t.tasks {
		unix.Kill(tid, unix.SIGKILL)
	}
	for tid := range t.early {
		unix.Kill(tid, unix.SIGKILL)
	}
}

func (t *tracer) stopped(tid int, ws unix.WaitStatus) error {
	k := t.tasks[tid]
	switch {
	case t.over:
		return unix.Kill(tid, unix.SIGKILL)
	case k == nil:
		t.early[tid] = true
		return nil
	}
	sig := ws.StopSignal()
	switch {
	case sig == unix.SIGTRAP|0x80:
		return t.ended(k)
	case sig == unix.SIGTRAP && ws.TrapCause() > 0:
		return t.event(k, ws.TrapCause())
	case sig == unix.SIGSTOP && !k.known:
		k.known = true
		sig = 0
	}
	return unix.PtraceCont(tid, int(sig))
}

func (t *tracer) event(k *task, cause int) error {
	switch cause {
	case unix.PTRACE_EVENT_SECCOMP:
		return t.entered(k)
	case unix.PTRACE_EVENT_EXEC:
		k.foreign = k.pid != t.main
		if k.ending != nil {
			return unix.PtraceSyscall(k.tid, 0) // on to the end of the call
		}
	case unix.PTRACE_EVENT_CLONE, unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK:
		msg, err := unix.PtraceGetEventMsg(k.tid)
		if err != nil {
			return err
		}
		made := &task{tid: int(msg), pid: int(msg), foreign: k.foreign}
		if cause == unix.PTRACE_EVENT_CLONE { // Go's threads; its processes are made by vfork
			made.pid = k.pid
		}
		t.tasks[made.tid] = made
		if t.early[made.tid] {
			delete(t.early, made.tid)
			made.known = true
			if err := unix.PtraceCont(made.tid, 0); err != nil && err != unix.ESRCH {
				return err
			}
		}
	}
	return unix.PtraceCont(k.tid, 0)
}

// entered is the beginning of a call.
func (t *tracer) entered(k *task) error {
	if k.foreign {
		return unix.PtraceCont(k.tid, 0)
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(k.tid, &regs); err != nil {
		return err
	}
	about := calls[regs.Orig_rax]
	args := [6]uint64{regs.Rdi, regs.Rsi, regs.Rdx, regs.R10, regs.R8, regs.R9}
	c := Call{Name: about.name, Args: args, Path: about.path(k, args), Child: k.pid != t.main}
	if !counted(c.Path) {
		return unix.PtraceCont(k.tid, 0)
	}
	if about.to != nil {
		c.To = about.to(k, args)
	}
	if c.Name == "close" {
		c.Wrote = k.writable(int32(args[0]))
	}
	t.names[c.Name]++
	t.events++
	c.N, c.K, c.Begin = len(t.trace.Calls)+1, t.names[c.Name], t.events
	t.trace.Calls = append(t.trace.Calls, c)
	at := len(t.trace.Calls) - 1
	action, errno := t.decide(&t.trace.Calls[at])
	switch action {
	case Watch:
		return t.until(k, at, func(*task, *unix.PtraceRegs) error { return nil })
	case Fail:
		if regs.Orig_rax == unix.SYS_CLOSE {
			return t.until(k, at, func(k *task, regs *unix.PtraceRegs) error {
				regs.Rax = uint64(-int64(errno))
				return unix.PtraceSetRegs(k.tid, regs)
			})
		}
		regs.Orig_rax, regs.Rax = ^uint64(0), uint64(-int64(errno))
		if err := unix.PtraceSetRegs(k.tid, &regs); err != nil {
			return err
		}
	case Short:
		length, err := register(&regs, about.length)
		if err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		was := *length
		*length = was / 2
		if was > 1<<20 { // as much as there is
			*length = 1000
		}
		if err := unix.PtraceSetRegs(k.tid, &regs); err != nil {
			return err
		}
		return t.until(k, at, func(k *task, regs *unix.PtraceRegs) error {
			length, _ := register(regs, about.length)
			*length = was
			return unix.PtraceSetRegs(k.tid, regs)
		})
	case KillBefore:
		return unix.Kill(t.main, unix.SIGKILL)
	case KillAfter:
		return t.until(k, at, func(*task, *unix.PtraceRegs) error { return unix.Kill(t.main, unix.SIGKILL) })
	}
	return unix.PtraceCont(k.tid, 0)
}

// until lets a call go on to its end, where then is called.
func (t *tracer) until(k *task, at int, then func(*task, *unix.PtraceRegs) error) error {
	k.call, k.ending = at, then
	return unix.PtraceSyscall(k.tid, 0)
}

// ended is the end of a call.
func (t *tracer) ended(k *task) error {
	if k.ending != nil {
		var regs unix.PtraceRegs
		if err := unix.PtraceGetRegs(k.tid, &regs); err != nil {
			return err
		}
		t.events++
		c := &t.trace.Calls[k.call]
		c.End, c.Result = t.events, int64(regs.Rax)
		err := k.ending(k, &regs)
		k.ending = nil
		if err != nil {
			return err
		}
	}
	return unix.PtraceCont(k.tid, 0)
}

// Moves says whether a call moves bytes and so can be cut short.
func (c Call) Moves() bool {
	for _, about := range calls {
		if about.name == c.Name {
			return about.length > 0 && c.Args[about.length] > 1
		}
	}
	return false
}

func register(regs *unix.PtraceRegs, arg int) (*uint64, error) {
	switch arg {
	case 2:
		return &regs.Rdx, nil
	case 3:
		return &regs.R10, nil
	case 4:
		return &regs.R8, nil
	}
	return nil, fmt.Errorf("moves no bytes")
}

// descriptor is the path of an open file.
func (k *task) descriptor(fd int32) string {
	if fd < 0 {
		return ""
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", k.tid, fd))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(path, " (deleted)")
}

// writable says whether an open file may be written to.
func (k *task) writable(fd int32) bool {
	info, err := os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", k.tid, fd))
	return err == nil && info.Mode()&0o200 != 0
}

// text is a string in the program's memory.
func (k *task) text(at uintptr) string {
	var s []byte
	for len(s) < unix.PathMax {
		buf := make([]byte, 256-at%256) // never beyond the end of a page
		n, err := k.memory(at, buf)
		if err != nil || n == 0 {
			return ""
		}
		for i, b := range buf[:n] {
			if b == 0 {
				return string(append(s, buf[:i]...))
			}
		}
		s, at = append(s, buf[:n]...), at+uintptr(n)
	}
	return string(s)
}

func (k *task) word(at uintptr) uintptr {
	var buf [8]byte
	if n, err := k.memory(at, buf[:]); err != nil || n != len(buf) {
		return 0
	}
	return uintptr(binary.LittleEndian.Uint64(buf[:]))
}

func (k *task) memory(at uintptr, buf []byte) (int, error) {
	local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
	return unix.ProcessVMReadv(k.tid, local, []unix.RemoteIovec{{Base: at, Len: len(buf)}}, 0)
}
