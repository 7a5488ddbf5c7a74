package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// AuthError says that a registry did not take the credentials it was shown, or none. It holds no credential.
type AuthError struct {
	Registry string
	Denied   bool // it knows who asks, and does not let them
	Err      error
}

func (e *AuthError) Error() string {
	if e.Denied {
		return fmt.Sprintf("%s does not allow this: %v", e.Registry, e.Err)
	}
	return fmt.Sprintf("%s does not accept the login: %v", e.Registry, e.Err)
}

func (e *AuthError) Unwrap() error { return e.Err }

// CheckName reports why an image cannot be called name, and returns the name in full, with its registry and tag.
func CheckName(ref string) (string, error) {
	tag, err := name.NewTag(ref)
	if err != nil {
		return "", err
	}
	return tag.Name(), nil
}

// Push says how images get into a registry. The zero value uses the user's login, as docker and podman keep it.
type Push struct {
	PlainHTTP bool              // no TLS; registries on the loopback never have it
	Keychain  authn.Keychain    // nil: the user's own
	Pause     time.Duration     // before the first retry, doubled for each further one; 0: one second
	Progress  func(Done)        // called now and then, never at the same time, and not after Push returns
	Transport http.RoundTripper // nil: the default one
}

// Done is how far a push has got, in bytes of what the registry did not have yet.
type Done struct{ Bytes, Total int64 }

// attempts is how often a request is made that fails for a reason that may pass.
const attempts = 5

// Push brings the image to where ref, a repository with a tag, says, and returns its reference by digest. What the
// registry has already is not sent again. Requests that fail for a reason that may pass are made again. A login that is
// not accepted is an *AuthError.
func (p Push) Push(ctx context.Context, i *Image, ref string) (string, error) {
	var nameOptions []name.Option
	if p.PlainHTTP {
		nameOptions = append(nameOptions, name.Insecure)
	}
	tag, err := name.NewTag(ref, nameOptions...)
	if err != nil {
		return "", err
	}
	digest := tag.Context().Digest(i.Digest)
	options := p.options(ctx)
	if err := p.write(tag, i, options); err != nil {
		return "", fmt.Errorf("push %s: %w", tag.Name(), explain(tag, err))
	}
	// What a registry says it has stored is asked for once: a proxy may say so of what never arrives.
	there, err := remote.Head(digest, options...)
	if err != nil {
		return "", fmt.Errorf("read back %s: %w", digest.Name(), explain(tag, err))
	}
	if there.Digest.String() != i.Digest {
		return "", fmt.Errorf("read back %s: the registry has %s", digest.Name(), there.Digest)
	}
	return digest.Name(), nil
}

func (p Push) options(ctx context.Context) []remote.Option {
	keychain, pause, rt := p.Keychain, p.Pause, p.Transport
	if keychain == nil {
		keychain = authn.DefaultKeychain
	}
	if pause == 0 {
		pause = time.Second
	}
	if rt == nil {
		rt = remote.DefaultTransport
	}
	return []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(keychain), remote.WithTransport(rt),
		remote.WithUserAgent("chandlerctl"),
		remote.WithRetryBackoff(remote.Backoff{Duration: pause, Factor: 2, Jitter: 0.1, Steps: attempts}),
	}
}

func (p Push) write(tag name.Tag, i *Image, options []remote.Option) error {
	if p.Progress == nil {
		return remote.WriteIndex(tag, i.index, options...)
	}
	updates := make(chan v1.Update, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for u := range updates {
			if u.Error == nil { // what WriteIndex returns too
				p.Progress(Done{u.Complete, u.Total})
			}
		}
	}()
	err := remote.WriteIndex(tag, i.index, append(options, remote.WithProgress(updates))...)
	<-done
	return err
}

// explain makes an *AuthError of what a registry says to a login it does not accept.
func explain(tag name.Tag, err error) error {
	var answer *transport.Error
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized:
		return &AuthError{Registry: tag.RegistryStr(), Err: err}
	case http.StatusForbidden:
		return &AuthError{Registry: tag.RegistryStr(), Denied: true, Err: err}
	}
	return err
}
