package source

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
)

// TarballError says what is wrong in a tarball. Member is empty where it is wrong as a whole.
type TarballError struct {
	Member string
	Err    error
}

func (e *TarballError) Error() string {
	if e.Member == "" {
		return "the tarball " + e.Err.Error()
	}
	return fmt.Sprintf("%q in the tarball %v", e.Member, e.Err)
}

func (e *TarballError) Unwrap() error { return e.Err }

// What can be wrong in a tarball.
var (
	ErrNotGzip    = errors.New("is not compressed with gzip")
	ErrTwice      = errors.New("is compressed twice")
	ErrTruncated  = errors.New("is truncated")
	ErrCorrupt    = errors.New("is corrupt")
	ErrGarbage    = errors.New("goes on after its end")
	ErrUnpacked   = errors.New("holds too much")
	ErrAbsolute   = errors.New("has an absolute path")
	ErrClimbs     = errors.New("has a path with .. in it")
	ErrLink       = errors.New("is a symbolic link")
	ErrHardLink   = errors.New("is a hard link")
	ErrSpecial    = errors.New("is neither a file nor a folder")
	ErrNotFile    = errors.New("is a folder, and a file is wanted")
	ErrDuplicate  = errors.New("is there twice")
	ErrMissing    = errors.New("is not there")
	ErrMemberSize = errors.New("is too large")
)

// member is a file that is wanted of a tarball.
type member struct {
	limit int64                   // bytes that it may have
	take  func(r io.Reader) error // reads it to its end
}

// readTarball reads one layer of gzip and the tar in it to the very end, and has each wanted member taken, once. Members are
// wanted at the top. What is not wanted is passed over, but held to the rules: a tarball that has a link, a device or a path
// that leads out of it is not what upstream releases, whatever the name. Errors are *TarballError and those of take and r.
func readTarball(r io.Reader, wanted map[string]member) error {
	compressed := bufio.NewReader(&sourceReader{r: r})
	gz, err := gzip.NewReader(compressed)
	switch {
	case errors.Is(err, gzip.ErrHeader):
		return &TarballError{"", ErrNotGzip}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &TarballError{"", ErrTruncated}
	case err != nil:
		return err
	}
	gz.Multistream(false) // one that follows is not a part of this one
	unpacked := &unpackedReader{r: gz}
	plain := bufio.NewReader(unpacked)
	if magic, _ := plain.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		return &TarballError{"", ErrTwice}
	}
	seen, err := readMembers(tar.NewReader(plain), wanted)
	if err != nil {
		return err
	}
	// What follows the mark of the end, as tar fills up its last record.
	for {
		b, err := plain.ReadByte()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if b != 0 {
			return &TarballError{"", ErrGarbage}
		}
	}
	if unpacked.zeros < endMark {
		return &TarballError{"", ErrTruncated}
	}
	switch _, err := compressed.ReadByte(); {
	case err == nil:
		return &TarballError{"", ErrGarbage}
	case err != io.EOF:
		return err
	}
	var missing []error
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if !seen[name] {
			missing = append(missing, &TarballError{name, ErrMissing})
		}
	}
	return errors.Join(missing...)
}

// endMark is what a tar ends with: two blocks of zeros.
const endMark = 2 * 512

// readMembers returns the names of all files that were met.
func readMembers(t *tar.Reader, wanted map[string]member) (seen map[string]bool, err error) {
	seen = make(map[string]bool)
	for n := 0; ; n++ {
		h, err := t.Next()
		if err == io.EOF {
			return seen, nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // which is told below, by its own name
			return nil, tarError("", err)
		}
		if n == maxMembers {
			return nil, &TarballError{"", ErrUnpacked}
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		name := path.Clean(h.Name)
		m, want := wanted[name]
		if err := checkMember(h, want); err != nil {
			return nil, &TarballError{h.Name, err}
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if seen[name] {
			return nil, &TarballError{name, ErrDuplicate}
		}
		seen[name] = true
		if !want {
			continue
		}
		if h.Size > m.limit {
			return nil, &TarballError{name, ErrMemberSize}
		}
		if err := m.take(t); err != nil {
			return nil, tarError(name, err)
		}
	}
}

func checkMember(h *tar.Header, wanted bool) error {
	switch {
	case strings.HasPrefix(h.Name, "/"):
		return ErrAbsolute
	case slices.Contains(strings.Split(h.Name, "/"), ".."):
		return ErrClimbs
	}
	for record := range h.PAXRecords {
		if strings.HasPrefix(record, "GNU.sparse.") {
			return ErrSpecial
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return nil
	case tar.TypeDir:
		if wanted {
			return ErrNotFile
		}
		return nil
	case tar.TypeSymlink:
		return ErrLink
	case tar.TypeLink:
		return ErrHardLink
	}
	return ErrSpecial
}

// tarError gives an error of the tar itself its name. Those of who takes a member and of the file below are what they are.
func tarError(name string, err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &TarballError{name, ErrTruncated}
	case errors.Is(err, tar.ErrHeader):
		return &TarballError{name, ErrCorrupt}
	}
	return err
}

// unpackedReader bounds what comes out of the compression, and tells what is wrong with it.
type unpackedReader struct {
	r     io.Reader
	n     int64
	zeros int // at the end of what was read
}

func (u *unpackedReader) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.n += int64(n)
	if trimmed := len(bytes.TrimRight(p[:n], "\x00")); trimmed > 0 {
		u.zeros = n - trimmed
	} else {
		u.zeros += n
	}
	var corrupt flate.CorruptInputError
	switch {
	case u.n > maxUnpacked:
		return 0, &TarballError{"", ErrUnpacked}
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = &TarballError{"", ErrTruncated}
	case errors.Is(err, gzip.ErrChecksum), errors.As(err, &corrupt):
		err = &TarballError{"", ErrCorrupt}
	}
	return n, err
}

// sourceReader keeps the errors of the file below apart from those of what is in it.
type sourceReader struct{ r io.Reader }

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("read tarball: %w", err)
	}
	return n, err
}
