// Package plugin knows what a CNI plugin's file is: Identify reads it without running it, Probe runs it.
package plugin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// Kind is the form of an executable.
type Kind string

const (
	ELF    Kind = "elf"
	Script Kind = "script"
)

// MaxSize bounds the file of one plugin, in bytes. The largest known (cilium-cni, unstripped) is under 100 MB.
const MaxSize = 512 << 20

// ErrNotExecutable says that a file is neither ELF nor a script, so that no kernel would run it by itself.
var ErrNotExecutable = errors.New("neither an ELF executable nor a script")

// FormatError says what is wrong with an ELF file's headers.
type FormatError struct{ Reason string }

func (e *FormatError) Error() string { return "not a usable ELF executable: " + e.Reason }

// validName is narrower than what a file system takes: names are printed in lists separated by spaces and are
// parsed back from them, and a leading dot would be hidden from the operator.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,127}$`)

// CheckName reports why name cannot be a plugin's file name.
func CheckName(name string) error {
	if !validName.MatchString(name) {
		return fmt.Errorf("plugin name %q: want letters, digits and ._+- only, not starting with a punctuation mark, at most 128", name)
	}
	return nil
}

// Info is what a plugin's file says of itself.
type Info struct {
	Kind        Kind
	Arch        string // one of Arches; empty for a script, the ELF name for a machine of another kind
	Interpreter string // of a script, or the dynamic loader of an ELF file
}

// Static says whether the kernel needs no other file to start this one.
func (i Info) Static() bool { return i.Kind == ELF && i.Interpreter == "" }

// CheckArch reports why this file cannot run on a node of the given architecture (as GOARCH spells it).
func (i Info) CheckArch(arch string) error {
	if i.Kind == ELF && i.Arch != arch {
		return &ArchError{File: i.Arch, Node: arch}
	}
	return nil
}

// ArchError says that a file was built for another machine.
type ArchError struct{ File, Node string }

func (e *ArchError) Error() string { return fmt.Sprintf("built for %s, not for %s", e.File, e.Node) }

const (
	maxHeaders    = 1 << 10 // program headers; Go writes under 10
	maxInterp     = 1 << 12 // PATH_MAX
	maxScriptLine = 1 << 8  // BINPRM_BUF_SIZE: the kernel reads no further
)

// Identify reads the headers of a plugin's file of the given size. It reads a bounded amount whatever the file
// claims of itself. debug/elf is not made for hostile input and reads whole tables, so only its types are used.
// Errors are ErrNotExecutable, *FormatError, or the reader's.
func Identify(r io.ReaderAt, size int64) (Info, error) {
	head := make([]byte, maxScriptLine)
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return Info{}, err
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("#!")):
		return identifyScript(head)
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		return identifyELF(r, head, size)
	}
	return Info{}, ErrNotExecutable
}

func identifyScript(head []byte) (Info, error) {
	// As the kernel reads it: blanks are spaces and tabs only, so that a carriage return is part of the interpreter's
	// name; a zero byte ends it; and a name that may go on past what the kernel reads is none.
	line, _, ended := bytes.Cut(head[len("#!"):], []byte("\n"))
	line = bytes.TrimLeft(line, " \t")
	end := bytes.IndexAny(line, " \t\x00")
	switch {
	case end >= 0:
		line = line[:end]
	case !ended && len(head) == maxScriptLine:
		return Info{}, ErrNotExecutable
	}
	if len(line) == 0 {
		return Info{}, ErrNotExecutable
	}
	return Info{Kind: Script, Interpreter: string(line)}, nil
}

// layout says where the fields of the two ELF classes lie.
type layout struct {
	header, program         int
	entry                   int
	phoff, phentsize, phnum int
	offset, filesz          int
	word                    func(binary.ByteOrder, []byte) uint64
}

var (
	layout32 = layout{52, 32, 24, 28, 42, 44, 4, 16,
		func(o binary.ByteOrder, b []byte) uint64 { return uint64(o.Uint32(b)) }}
	layout64 = layout{64, 56, 24, 32, 54, 56, 8, 32,
		func(o binary.ByteOrder, b []byte) uint64 { return o.Uint64(b) }}
)

func identifyELF(r io.ReaderAt, head []byte, size int64) (Info, error) {
	bad := func(format string, args ...any) (Info, error) {
		return Info{}, &FormatError{fmt.Sprintf(format, args...)}
	}
	if len(head) < layout32.header {
		return bad("truncated header")
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch elf.Data(head[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
	case elf.ELFDATA2MSB:
		order = binary.BigEndian
	default:
		return bad("unknown byte order %d", head[elf.EI_DATA])
	}
	l := layout64
	switch elf.Class(head[elf.EI_CLASS]) {
	case elf.ELFCLASS64:
	case elf.ELFCLASS32:
		l = layout32
	default:
		return bad("unknown class %d", head[elf.EI_CLASS])
	}
	if len(head) < l.header {
		return bad("truncated header")
	}
	if t := elf.Type(order.Uint16(head[16:])); t != elf.ET_EXEC && t != elf.ET_DYN {
		return bad("type %s", t)
	}
	if l.word(order, head[l.entry:]) == 0 {
		return bad("no entry point; a shared library?")
	}
	machine := elf.Machine(order.Uint16(head[18:]))
	info := Info{Kind: ELF, Arch: archOf(machine, l, order)}

	phoff := l.word(order, head[l.phoff:])
	phentsize, phnum := int(order.Uint16(head[l.phentsize:])), int(order.Uint16(head[l.phnum:]))
	switch {
	case phnum == 0:
		return bad("no program headers")
	case phnum > maxHeaders:
		return bad("%d program headers", phnum)
	case phentsize != l.program:
		return bad("program headers of %d bytes", phentsize)
	case phoff > uint64(size) || uint64(size)-phoff < uint64(phnum*phentsize):
		return bad("truncated: program headers end past the file")
	}
	headers := make([]byte, phnum*phentsize)
	if _, err := r.ReadAt(headers, int64(phoff)); err != nil {
		return Info{}, fmt.Errorf("read program headers: %w", err)
	}
	loads := 0
	for p := headers; len(p) > 0; p = p[phentsize:] {
		offset, filesz := l.word(order, p[l.offset:]), l.word(order, p[l.filesz:])
		kind := elf.ProgType(order.Uint32(p))
		if kind != elf.PT_LOAD && kind != elf.PT_INTERP {
			continue
		}
		if offset > uint64(size) || uint64(size)-offset < filesz {
			return bad("truncated: a segment ends past the file")
		}
		if kind == elf.PT_LOAD {
			loads++
			continue
		}
		if filesz == 0 || filesz > maxInterp {
			return bad("interpreter of %d bytes", filesz)
		}
		interp := make([]byte, filesz)
		if _, err := r.ReadAt(interp, int64(offset)); err != nil {
			return Info{}, fmt.Errorf("read interpreter: %w", err)
		}
		// The kernel takes the first interpreter, demands a zero byte at its end, and reads up to the first one.
		name, _, ended := bytes.Cut(interp, []byte{0})
		if len(name) == 0 || !ended {
			return bad("an interpreter with no name")
		}
		if info.Interpreter == "" {
			info.Interpreter = string(name)
		}
	}
	if loads == 0 {
		return bad("nothing to load")
	}
	return info, nil
}

// machines are the architectures that Kubernetes has nodes of, as GOARCH spells them.
var machines = []struct {
	arch         string
	machine      elf.Machine
	little, wide bool
}{
	{"386", elf.EM_386, true, false},
	{"amd64", elf.EM_X86_64, true, true},
	{"arm", elf.EM_ARM, true, false},
	{"arm64", elf.EM_AARCH64, true, true},
	{"ppc64le", elf.EM_PPC64, true, true},
	{"riscv64", elf.EM_RISCV, true, true},
	{"s390x", elf.EM_S390, false, true},
}

// Arches lists the architectures that Identify has names for, in order.
func Arches() []string {
	var arches []string
	for _, m := range machines {
		arches = append(arches, m.arch)
	}
	return arches
}

func archOf(machine elf.Machine, l layout, order binary.ByteOrder) string {
	little, wide := order == binary.LittleEndian, l.header == layout64.header
	for _, m := range machines {
		if m.machine == machine && m.little == little && m.wide == wide {
			return m.arch
		}
	}
	return machine.String()
}
