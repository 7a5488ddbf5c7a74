// Package download gets files by HTTP whose digests somebody else knows: what it returns is whole, and not yet trusted.
package download

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

const (
	maxRedirects = 5
	attempts     = 5 // the first one and those after a broken transfer
)

// Tests have less of these: the pause before the second attempt, which doubles with each, and how long a server may send nothing.
var (
	pause   = time.Second
	silence = 60 * time.Second
)

// Request is one file to get.
type Request struct {
	URL   string
	Limit int64 // bytes that the file may have

	// Progress, if set, is called now and then with the bytes that are there and those there will be, -1 if that is unknown.
	Progress func(done, total int64)
}

// StatusError says that a server answered something other than the file.
type StatusError struct {
	URL    string // without a password
	Code   int
	Status string
}

func (e *StatusError) Error() string { return fmt.Sprintf("get %s: %s", e.URL, e.Status) }

// TooLargeError says that a file is larger than its limit.
type TooLargeError struct {
	URL   string
	Limit int64
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("get %s: more than %d bytes", e.URL, e.Limit)
}

// CheckURL reports why a text cannot be the address of a file.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		return withoutURL(err)
	}
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return fmt.Errorf("%q is not an http or https address", u.Redacted())
	}
	return nil
}

// Shown is an address as it may be shown: without a password.
func Shown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "an address that is none"
	}
	return u.Redacted()
}

// Bytes gets a small file into memory.
func (r Request) Bytes(ctx context.Context) ([]byte, error) {
	var b buffer
	err := r.get(ctx, &b)
	return b.Bytes(), err
}

// File gets a file into f, which is empty and stays the caller's. After an error its content means nothing.
func (r Request) File(ctx context.Context, f *os.File) error { return r.get(ctx, file{f}) }

// target is where a file goes. Reset makes it empty again.
type target interface {
	io.Writer
	reset() error
}

type buffer struct{ bytes.Buffer }

func (b *buffer) reset() error { b.Buffer.Reset(); return nil }

type file struct{ *os.File }

func (f file) reset() error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return f.Truncate(0)
}

// get tries until the file is whole, the fault is not one that passes, or the attempts are used up. What a broken transfer
// has brought is kept where the server sends the rest of it.
func (r Request) get(ctx context.Context, to target) error {
	if err := CheckURL(r.URL); err != nil {
		return fmt.Errorf("get: %w", err)
	}
	t := transfer{Request: r, client: newClient(), shown: Shown(r.URL), to: to}
	defer t.client.CloseIdleConnections()
	wait := pause
	for i := 1; ; i++ {
		err := t.try(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case i == attempts:
			return fmt.Errorf("%w (the last of %d attempts)", err, attempts)
		case !passing(err):
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
		wait *= 2
	}
}

func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone() // with the proxy that the environment names
	transport.ResponseHeaderTimeout = silence
	transport.DisableCompression = true // the file as it is, not what a server's header makes of it
	return &http.Client{
		Transport: transport,
		CheckRedirect: func(_ *http.Request, via []*http.Request) error {
			if len(via) > maxRedirects {
				return fmt.Errorf("more than %d redirects", maxRedirects)
			}
			return nil
		},
	}
}

// brokenError is a transfer that ended before the file did.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// passing says whether trying again may help.
func passing(err error) bool {
	var status *StatusError
	var broken *brokenError
	var cert *tls.CertificateVerificationError
	var dns *net.DNSError
	var network net.Error
	switch {
	case errors.As(err, &status):
		return status.Code >= 500 || status.Code == http.StatusRequestTimeout || status.Code == http.StatusTooManyRequests
	case errors.As(err, &broken):
		return true
	case errors.As(err, &cert), errors.As(err, &dns) && dns.IsNotFound:
		return false
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	var op *net.OpError
	return errors.As(err, &op) || errors.As(err, &network) && network.Timeout()
}

// transfer is one file on its way.
type transfer struct {
	Request
	client *http.Client
	shown  string // the address, without a password
	to     target
	done   int64  // bytes of the file that are there
	tag    string // the server's name for this content, if it can send a part of it
}

func (t *transfer) try(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.URL, nil)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if t.done > 0 && t.tag != "" {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", t.done))
		req.Header.Set("If-Range", t.tag)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return fmt.Errorf("get %s: %w", t.shown, withoutURL(err))
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusPartialContent && req.Header.Get("Range") != "" &&
		strings.HasPrefix(resp.Header.Get("Content-Range"), "bytes "+strconv.FormatInt(t.done, 10)+"-"):
	case resp.StatusCode == http.StatusOK:
		if err := t.to.reset(); err != nil {
			return err
		}
		t.done, t.tag = 0, ""
		if tag := resp.Header.Get("ETag"); strings.HasPrefix(tag, `"`) && resp.Header.Get("Accept-Ranges") == "bytes" {
			t.tag = tag
		}
	default:
		t.tag = ""
		return &StatusError{t.shown, resp.StatusCode, resp.Status}
	}
	total := int64(-1)
	if resp.ContentLength >= 0 {
		total = t.done + resp.ContentLength
	}
	if total > t.Limit {
		return &TooLargeError{t.shown, t.Limit}
	}
	return t.copy(resp.Body, total, cancel)
}

var errSilent = errors.New("the server has stopped sending")

// copy takes what the server sends, until it sends nothing for too long.
func (t *transfer) copy(body io.Reader, total int64, cancel context.CancelCauseFunc) error {
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	buf := make([]byte, 64<<10)
	progress := t.Progress
	if progress == nil {
		progress = func(done, total int64) {}
	}
	for {
		progress(t.done, total)
		n, err := body.Read(buf)
		silent.Reset(silence)
		if t.done+int64(n) > t.Limit {
			return &TooLargeError{t.shown, t.Limit}
		}
		if _, err := t.to.Write(buf[:n]); err != nil {
			return fmt.Errorf("keep %s: %w", t.shown, err)
		}
		t.done += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			if errors.Is(err, context.Canceled) {
				err = errSilent // or the caller's end, which the caller knows
			}
			return &brokenError{fmt.Errorf("get %s: after %d bytes: %w", t.shown, t.done, err)}
		}
	}
	progress(t.done, total)
	if total >= 0 && t.done != total {
		return &brokenError{fmt.Errorf("get %s: %d bytes of %d: %w", t.shown, t.done, total, io.ErrUnexpectedEOF)}
	}
	return nil
}

// withoutURL drops the address from the client's error: it may hold a password, and stands beside it.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
