package plugin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chandler-cni/chandler/internal/plugin/plugintest"
)

func TestCheckName(t *testing.T) {
	for _, name := range []string{"bridge", "host-local", "10-x", "a", "A.b_c+d", strings.Repeat("a", 128)} {
		if err := CheckName(name); err != nil {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", ".hidden", "-flag", "a/b", "/", "a b", "a\n", "a\x00", "ä", "a:b", strings.Repeat("a", 129)} {
		if CheckName(name) == nil {
			t.Errorf("CheckName(%q) = nil", name)
		}
	}
}

func identify(b []byte) (Info, error) { return Identify(bytes.NewReader(b), int64(len(b))) }

func TestIdentifyELF(t *testing.T) {
	for _, arch := range Arches() {
		for _, interpreter := range []string{"", "/lib64/ld-linux-x86-64.so.2"} {
			got, err := identify(plugintest.ELF(arch, interpreter))
			want := Info{Kind: ELF, Arch: arch, Interpreter: interpreter}
			if err != nil || got != want {
				t.Errorf("%s %q: %+v, %v", arch, interpreter, got, err)
			}
			if got.Static() != (interpreter == "") {
				t.Errorf("%s %q: Static() = %v", arch, interpreter, got.Static())
			}
			var wrong *ArchError
			if err := got.CheckArch("other"); !errors.As(err, &wrong) || got.CheckArch(arch) != nil {
				t.Errorf("%s: CheckArch = %v, %v", arch, err, got.CheckArch(arch))
			}
		}
	}
}

func TestIdentifyUnknownMachine(t *testing.T) {
	x32 := plugintest.ELF("386", "")
	binary.LittleEndian.PutUint16(x32[18:], uint16(elf.EM_X86_64))
	for want, file := range map[string][]byte{"EM_MIPS": plugintest.ELF("mips", ""), "EM_X86_64": x32} {
		if info, err := identify(file); err != nil || info.Arch != want {
			t.Errorf("%+v, %v; want arch %s", info, err, want)
		}
	}
}

// The program that runs this test was made by a real linker.
func TestIdentifyReal(t *testing.T) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	info, err := Identify(f, st.Size())
	if err != nil || info.Kind != ELF {
		t.Fatalf("%+v, %v", info, err)
	}
	real, err := elf.NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	var interpreter string
	for _, p := range real.Progs {
		if p.Type == elf.PT_INTERP {
			b, err := io.ReadAll(p.Open())
			if err != nil {
				t.Fatal(err)
			}
			interpreter = strings.TrimRight(string(b), "\x00")
		}
	}
	if info.Interpreter != interpreter {
		t.Errorf("interpreter %q, want %q", info.Interpreter, interpreter)
	}
}

// Each case changes one thing in a good file of 64 bits whose second program header, at 120, loads.
func TestIdentifyHostileELF(t *testing.T) {
	le := binary.LittleEndian
	interpreter := "/lib/ld.so"
	for _, test := range []struct {
		name   string
		change func(b []byte) []byte
		want   string // in the reason
	}{
		{"magic only", func(b []byte) []byte { return b[:4] }, "truncated header"},
		{"half a header", func(b []byte) []byte { return b[:60] }, "truncated header"},
		{"header only", func(b []byte) []byte { return b[:64] }, "program headers end past the file"},
		{"one byte short of headers", func(b []byte) []byte { return b[:64+2*56-1] }, "program headers end past the file"},
		{"one byte short", func(b []byte) []byte { return b[:len(b)-1] }, "a segment ends past the file"},
		{"class 0", func(b []byte) []byte { b[elf.EI_CLASS] = 0; return b }, "unknown class 0"},
		{"class 3", func(b []byte) []byte { b[elf.EI_CLASS] = 3; return b }, "unknown class 3"},
		{"byte order 9", func(b []byte) []byte { b[elf.EI_DATA] = 9; return b }, "unknown byte order 9"},
		{"class of 32 bits", func(b []byte) []byte { b[elf.EI_CLASS] = byte(elf.ELFCLASS32); return b }, "program headers"},
		{"object file", func(b []byte) []byte { le.PutUint16(b[16:], uint16(elf.ET_REL)); return b }, "type ET_REL"},
		{"core file", func(b []byte) []byte { le.PutUint16(b[16:], uint16(elf.ET_CORE)); return b }, "type ET_CORE"},
		{"shared library", func(b []byte) []byte { le.PutUint64(b[24:], 0); return b }, "no entry point"},
		{"no program headers", func(b []byte) []byte { le.PutUint16(b[56:], 0); return b }, "no program headers"},
		{"many program headers", func(b []byte) []byte { le.PutUint16(b[56:], 0xffff); return b }, "65535 program headers"},
		{"small program headers", func(b []byte) []byte { le.PutUint16(b[54:], 1); return b }, "program headers of 1 bytes"},
		{"headers at the end", func(b []byte) []byte { le.PutUint64(b[32:], uint64(len(b))); return b }, "program headers end past the file"},
		{"headers at the end of the world", func(b []byte) []byte { le.PutUint64(b[32:], 1<<64-1); return b }, "program headers end past the file"},
		{"headers before zero", func(b []byte) []byte { le.PutUint64(b[32:], 1<<63); return b }, "program headers end past the file"},
		{"nothing to load", func(b []byte) []byte { le.PutUint32(b[120:], uint32(elf.PT_NOTE)); return b }, "nothing to load"},
		{"segment past the file", func(b []byte) []byte { le.PutUint64(b[120+8:], 1<<40); return b }, "a segment ends past the file"},
		{"segment around the world", func(b []byte) []byte { le.PutUint64(b[120+8:], 8); le.PutUint64(b[120+32:], 1<<64-4); return b }, "a segment ends past the file"},
		{"long interpreter", func(b []byte) []byte {
			le.PutUint64(b[64+32:], maxInterp+1)
			return append(b, make([]byte, maxInterp+1)...)
		}, "interpreter of 4097 bytes"},
		{"empty interpreter", func(b []byte) []byte { le.PutUint64(b[64+32:], 0); return b }, "interpreter of 0 bytes"},
		{"empty interpreter at the end", func(b []byte) []byte {
			le.PutUint64(b[64+8:], uint64(len(b)))
			le.PutUint64(b[64+32:], 0)
			return b
		}, "interpreter of 0 bytes"},
		{"interpreter of zeros", func(b []byte) []byte { clear(b[len(b)-len(interpreter)-1:]); return b }, "interpreter with no name"},
		{"endless interpreter", func(b []byte) []byte { b[len(b)-1] = 'x'; return b }, "interpreter with no name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			info, err := identify(test.change(plugintest.ELF("amd64", interpreter)))
			var format *FormatError
			if !errors.As(err, &format) || !strings.Contains(format.Reason, test.want) {
				t.Errorf("%+v, %v; want a FormatError with %q", info, err, test.want)
			}
			if info != (Info{}) {
				t.Errorf("an error and %+v", info)
			}
		})
	}
}

func TestIdentifyFirstInterpreter(t *testing.T) {
	b := plugintest.ELF("amd64", "/lib/first\x00/lib/rest")
	if info, err := identify(b); err != nil || info.Interpreter != "/lib/first" {
		t.Errorf("%+v, %v; the kernel reads up to the first zero byte", info, err)
	}
	// Two interpreters: the loading segment's header, made a second one, names what follows.
	b = append(b, "/lib/second\x00"...)
	load := bytes.Clone(b[120 : 120+56])
	binary.LittleEndian.PutUint32(b[120:], uint32(elf.PT_INTERP))
	binary.LittleEndian.PutUint64(b[120+8:], uint64(len(b)-len("/lib/second\x00")))
	binary.LittleEndian.PutUint64(b[120+32:], uint64(len("/lib/second\x00")))
	// The headers move to the end, where there is room for a third.
	headers := append(bytes.Clone(b[64:64+2*56]), load...)
	binary.LittleEndian.PutUint64(b[32:], uint64(len(b)))
	binary.LittleEndian.PutUint16(b[56:], 3)
	b = append(b, headers...)
	if info, err := identify(b); err != nil || info.Interpreter != "/lib/first" {
		t.Errorf("%+v, %v; the kernel takes the first interpreter", info, err)
	}
}

func TestIdentifyScript(t *testing.T) {
	long := strings.Repeat("x", 300)
	for _, test := range []struct {
		file, interpreter string // no interpreter: not a script
	}{
		{"#!/bin/sh\necho\n", "/bin/sh"},
		{"#! \t/bin/sh -e\n", "/bin/sh"},
		{"#!/usr/bin/env python3\n", "/usr/bin/env"},
		{"#!/bin/sh", "/bin/sh"},
		{"#!sh\n", "sh"},
		{"#!/bin/sh\r\n", "/bin/sh\r"},
		{"#!/bin/\u00a0sh\n", "/bin/\u00a0sh"},
		{"#!/bin/sh\x00rest\n", "/bin/sh"},
		{"#!/bin/sh " + long, "/bin/sh"},
		{"#!/" + long + "\n", ""},
		{"#!\n/bin/sh\n", ""},
		{"#!  \t \n", ""},
		{"#!", ""},
		{"#", ""},
		{" #!/bin/sh\n", ""},
		{"", ""},
		{"plain text\n", ""},
		{"\x7fELg" + long, ""},
		{"\x1f\x8b\x08gzip", ""},
	} {
		info, err := identify([]byte(test.file))
		if test.interpreter == "" {
			if !errors.Is(err, ErrNotExecutable) {
				t.Errorf("%.20q: %+v, %v; want ErrNotExecutable", test.file, info, err)
			}
			continue
		}
		want := Info{Kind: Script, Interpreter: test.interpreter}
		if err != nil || info != want {
			t.Errorf("%.20q: %+v, %v; want %+v", test.file, info, err, want)
		}
		if info.Static() || info.CheckArch("any") != nil {
			t.Errorf("%.20q: static %v, arch %v", test.file, info.Static(), info.CheckArch("any"))
		}
	}
}

// failingReader fails after so many bytes, as a disk does.
type failingReader struct {
	io.ReaderAt
	from int64
}

var errDisk = errors.New("input/output error")

func (r failingReader) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > r.from {
		return 0, errDisk
	}
	return r.ReaderAt.ReadAt(p, off)
}

func TestIdentifyReadError(t *testing.T) {
	b := append(plugintest.ELF("amd64", "/lib/ld.so"), make([]byte, 1<<10)...)
	binary.LittleEndian.PutUint64(b[64+8:], 600) // the interpreter
	binary.LittleEndian.PutUint64(b[32:], 300)   // the headers
	copy(b[300:], b[64:64+2*56])
	for _, from := range []int64{0, 256, 300 + 2*56} {
		if _, err := Identify(failingReader{bytes.NewReader(b), from}, int64(len(b))); !errors.Is(err, errDisk) {
			t.Errorf("read fails after %d bytes: %v", from, err)
		}
	}
	if _, err := Identify(bytes.NewReader(nil), 100); !errors.Is(err, ErrNotExecutable) {
		t.Errorf("a file that became empty: %v", err)
	}
}

// readCounter counts what is read.
type readCounter struct {
	io.ReaderAt
	n int
}

func (r *readCounter) ReadAt(p []byte, off int64) (int, error) {
	r.n += len(p)
	return r.ReaderAt.ReadAt(p, off)
}

func FuzzIdentify(f *testing.F) {
	for _, arch := range Arches() {
		f.Add(plugintest.ELF(arch, ""))
		f.Add(plugintest.ELF(arch, "/lib/ld.so.1"))
	}
	f.Add([]byte("#!/bin/sh\n"))
	f.Add([]byte("#! \t/usr/bin/env -S x\r\n"))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &readCounter{ReaderAt: bytes.NewReader(b)}
		info, err := Identify(r, int64(len(b)))
		if limit := maxScriptLine + maxHeaders*(layout64.program+maxInterp); r.n > limit {
			t.Errorf("read %d bytes", r.n)
		}
		if err != nil {
			var format *FormatError
			if !errors.Is(err, ErrNotExecutable) && !errors.As(err, &format) {
				t.Errorf("error of no kind: %v", err)
			}
			if info != (Info{}) {
				t.Errorf("an error and %+v", info)
			}
			return
		}
		switch {
		case info.Kind == Script && (info.Arch != "" || info.Interpreter == ""),
			info.Kind == ELF && info.Arch == "",
			info.Kind != Script && info.Kind != ELF,
			strings.ContainsAny(info.Interpreter, "\x00"):
			t.Errorf("%+v", info)
		}
		// Where the standard library can read it too, both see an interpreter or none.
		if real, err := elf.NewFile(bytes.NewReader(b)); err == nil && info.Kind == ELF {
			dynamic := slices.ContainsFunc(real.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
			if dynamic == info.Static() {
				t.Errorf("%+v, and debug/elf says dynamic: %v", info, dynamic)
			}
		}
	})
}
