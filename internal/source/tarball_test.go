package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// wantTwo wants two members of 1 kB at most and says what was taken.
func wantTwo(t *testing.T) (wanted map[string]member, taken map[string]int) {
	wanted, taken = make(map[string]member), make(map[string]int)
	for _, name := range []string{"one", "LICENSE"} {
		wanted[name] = member{1 << 10, func(r io.Reader) error {
			n, err := io.Copy(io.Discard, r)
			if n > 1<<10 {
				t.Errorf("%s has %d bytes", name, n)
			}
			taken[name]++
			return err
		}}
	}
	return wanted, taken
}

// An error of the file itself stays what it is.
func TestTarballReadError(t *testing.T) {
	broken := errors.New("input/output error")
	wanted, _ := wantTwo(t)
	var tarball *TarballError
	if err := readTarball(iotest.ErrReader(broken), wanted); !errors.Is(err, broken) || errors.As(err, &tarball) {
		t.Error(err)
	}
}

func FuzzTarball(f *testing.F) {
	var good bytes.Buffer
	w := tar.NewWriter(&good)
	for _, h := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir},
		{Name: "./one", Typeflag: tar.TypeReg, Size: 3},
		{Name: "x", Typeflag: tar.TypeReg, Size: 3, PAXRecords: map[string]string{"comment": "c"}},
		{Name: "./LICENSE", Typeflag: tar.TypeReg, Size: 3},
	} {
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, "abc"); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	z, err := gzip.NewWriterLevel(io.Discard, gzip.NoCompression)
	if err != nil {
		f.Fatal(err)
	}
	pack := func(data []byte) []byte {
		var b bytes.Buffer
		z.Reset(&b) // a new one would cost more than all else here
		_, _ = z.Write(data)
		_ = z.Close()
		return b.Bytes()
	}
	f.Add(good.Bytes(), true)
	f.Add(pack(good.Bytes()), false)
	f.Fuzz(func(t *testing.T, data []byte, compress bool) {
		if compress {
			data = pack(data)
		}
		wanted, taken := wantTwo(t)
		err := readTarball(bytes.NewReader(data), wanted)
		for name, n := range taken {
			if n > 1 {
				t.Errorf("%s taken %d times", name, n)
			}
		}
		if err == nil && len(taken) != len(wanted) {
			t.Errorf("took only %v", taken)
		}
	})
}
