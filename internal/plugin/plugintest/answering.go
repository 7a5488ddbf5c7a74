package plugintest

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"
)

// Answer is what a plugin says to CNI_COMMAND=VERSION.
const Answer = `{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`

const (
	header  = 64 // bytes of an ELF file's
	program = 56 // and of each segment's
)

// Answering returns a static executable for arch (as GOARCH spells it: amd64, arm64) that prints answer and exits with code.
// Note is carried along unread: files that differ in it differ in their bytes.
func Answering(arch, answer string, code uint8, note string) []byte {
	return answering(arch, answer, code, note, nil)
}

// Built is Answering for a file that says of itself what the Go command would have written into it: the toolchain, and lines of
// its module list such as "mod\tgithub.com/containernetworking/plugins\tv1.9.1".
func Built(arch, toolchain, note string, modules ...string) []byte {
	mark := strings.Repeat("=", 16)
	info := append([]byte("\xff Go buildinf:\x00\x02"), make([]byte, 16)...)
	for _, s := range []string{toolchain, mark + strings.Join(modules, "\n") + "\n" + mark} {
		info = append(binary.AppendUvarint(info, uint64(len(s))), s...)
	}
	return answering(arch, Answer, 0, note, info)
}

// answering makes the file. Data, if there is any, is loaded into a segment of its own, as what a program may write to is.
func answering(arch, answer string, code uint8, note string, data []byte) []byte {
	segments := uint64(1)
	if data != nil {
		segments = 2
	}
	headers := header + segments*program
	var text []byte
	var machine elf.Machine
	order := binary.LittleEndian
	switch arch {
	case "amd64":
		machine = elf.EM_X86_64
		text = append(text, 0xb8, 1, 0, 0, 0) // mov eax, SYS_write
		text = append(text, 0xbf, 1, 0, 0, 0) // mov edi, 1
		text = append(text, 0x48, 0x8d, 0x35) // lea rsi, [rip+19]: the answer, past the last instruction
		text = order.AppendUint32(text, 19)
		text = append(text, 0xba) // mov edx, len
		text = order.AppendUint32(text, uint32(len(answer)))
		text = append(text, 0x0f, 0x05)          // syscall
		text = append(text, 0xb8, 60, 0, 0, 0)   // mov eax, SYS_exit
		text = append(text, 0xbf, code, 0, 0, 0) // mov edi, code
		text = append(text, 0x0f, 0x05)          // syscall
	case "arm64":
		machine = elf.EM_AARCH64
		for _, word := range []uint32{
			0xd2800808,                          // mov x8, SYS_write
			0xd2800020,                          // mov x0, 1
			0x100000c1,                          // adr x1, .+24: the answer, past the last instruction
			0xd2800002 | uint32(len(answer))<<5, // mov x2, len
			0xd4000001,                          // svc 0
			0xd2800ba8,                          // mov x8, SYS_exit
			0xd2800000 | uint32(code)<<5,        // mov x0, code
			0xd4000001,                          // svc 0
		} {
			text = order.AppendUint32(text, word)
		}
	default:
		panic(fmt.Sprintf("plugintest: no code for %s", arch))
	}
	body := append(append(text, answer...), note...)
	size := headers + uint64(len(body))
	if data != nil { // aligned, as it must be to be found
		body = append(body, make([]byte, -size%16)...)
		size += -size % 16
	}

	f := make([]byte, 0, size)
	f = append(f, elf.ELFMAG...)
	f = append(f, byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT), 0, 0, 0, 0, 0, 0, 0, 0, 0)
	f = order.AppendUint16(f, uint16(elf.ET_EXEC))
	f = order.AppendUint16(f, uint16(machine))
	f = order.AppendUint32(f, uint32(elf.EV_CURRENT))
	f = order.AppendUint64(f, base+headers) // entry
	f = order.AppendUint64(f, 64)           // program headers
	f = order.AppendUint64(f, 0)            // no section headers
	f = order.AppendUint32(f, 0)
	for _, v := range []uint16{header, program, uint16(segments), 0, 0, 0} {
		f = order.AppendUint16(f, v)
	}
	f = order.AppendUint32(f, uint32(elf.PT_LOAD))
	f = order.AppendUint32(f, uint32(elf.PF_R|elf.PF_X))
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		f = order.AppendUint64(f, v)
	}
	if data != nil {
		f = order.AppendUint32(f, uint32(elf.PT_LOAD))
		f = order.AppendUint32(f, uint32(elf.PF_R|elf.PF_W))
		at, n := base+0x100000+size, uint64(len(data))
		for _, v := range []uint64{size, at, at, n, n, 0x1000} {
			f = order.AppendUint64(f, v)
		}
	}
	return append(append(f, body...), data...)
}

// Script returns a shell script that answers as a plugin does, after doing what extra says.
func Script(extra string) []byte {
	return fmt.Appendf(nil, "#!/bin/sh\n%s\necho '%s'\n", extra, Answer)
}
