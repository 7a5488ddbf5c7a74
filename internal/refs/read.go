package refs

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// readAll reads r whole, at most maxFile. size is a guess.
func readAll(r io.Reader, size int64) ([]byte, error) {
	if size > maxFile {
		return nil, errSize
	}
	var b bytes.Buffer
	b.Grow(int(size) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(r, maxFile+1)); err != nil {
		return nil, err
	}
	if b.Len() > maxFile {
		return nil, errSize
	}
	return b.Bytes(), nil
}

// unpack returns what a gzip file holds, and other bytes as they are.
func unpack(src []byte) (content []byte, packed bool, err error) {
	if !bytes.HasPrefix(src, []byte("\x1f\x8b")) {
		return src, false, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(src))
	if err == nil {
		content, err = readAll(z, 0)
	}
	if err != nil {
		return nil, true, fmt.Errorf("unpack gzip: %w", err)
	}
	return content, true, nil
}
