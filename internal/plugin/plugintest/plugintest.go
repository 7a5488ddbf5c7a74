// Package plugintest makes executables' files for tests, without a compiler and for any machine.
package plugintest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// ELF returns the smallest file that is an ELF executable for arch, as GOARCH spells it: headers and one segment that
// loads them. With an interpreter it is one that needs a dynamic loader. It is well formed and does nothing useful.
func ELF(arch, interpreter string) []byte {
	machine, class, order := elf.EM_NONE, elf.ELFCLASS64, binary.ByteOrder(binary.LittleEndian)
	switch arch {
	case "386":
		machine, class = elf.EM_386, elf.ELFCLASS32
	case "amd64":
		machine = elf.EM_X86_64
	case "arm":
		machine, class = elf.EM_ARM, elf.ELFCLASS32
	case "arm64":
		machine = elf.EM_AARCH64
	case "mips": // has no nodes
		machine, class, order = elf.EM_MIPS, elf.ELFCLASS32, binary.BigEndian
	case "ppc64le":
		machine = elf.EM_PPC64
	case "riscv64":
		machine = elf.EM_RISCV
	case "s390x":
		machine, order = elf.EM_S390, binary.BigEndian
	default:
		panic(fmt.Sprintf("plugintest: unknown architecture %q", arch))
	}
	if interpreter != "" {
		interpreter += "\x00"
	}
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	if order == binary.BigEndian {
		ident[elf.EI_DATA] = byte(elf.ELFDATA2MSB)
	}
	if class == elf.ELFCLASS32 {
		return elf32(ident, machine, order, interpreter)
	}
	return elf64(ident, machine, order, interpreter)
}

const base = 0x400000 // where the file is loaded

func elf64(ident [elf.EI_NIDENT]byte, machine elf.Machine, order binary.ByteOrder, interpreter string) []byte {
	const header, program = 64, 56
	text := uint64(header + 2*program)
	end := text + uint64(len(interpreter))
	load := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Filesz: end, Memsz: end, Align: 0x1000}
	other := elf.Prog64{Type: uint32(elf.PT_NULL)}
	if interpreter != "" {
		other = elf.Prog64{Type: uint32(elf.PT_INTERP), Off: text, Filesz: uint64(len(interpreter))}
	}
	return encode(order, elf.Header64{
		Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + text, Phoff: header, Ehsize: header, Phentsize: program, Phnum: 2,
	}, other, load, []byte(interpreter))
}

func elf32(ident [elf.EI_NIDENT]byte, machine elf.Machine, order binary.ByteOrder, interpreter string) []byte {
	const header, program = 52, 32
	text := uint32(header + 2*program)
	end := text + uint32(len(interpreter))
	load := elf.Prog32{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Filesz: end, Memsz: end, Align: 0x1000}
	other := elf.Prog32{Type: uint32(elf.PT_NULL)}
	if interpreter != "" {
		other = elf.Prog32{Type: uint32(elf.PT_INTERP), Off: text, Filesz: uint32(len(interpreter))}
	}
	return encode(order, elf.Header32{
		Ident: ident, Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + text, Phoff: header, Ehsize: header, Phentsize: program, Phnum: 2,
	}, other, load, []byte(interpreter))
}

func encode(order binary.ByteOrder, parts ...any) []byte {
	var b bytes.Buffer
	for _, part := range parts {
		if err := binary.Write(&b, order, part); err != nil {
			panic(err) // the parts are of fixed size
		}
	}
	return b.Bytes()
}
