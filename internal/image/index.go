package image

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// index is a v1.ImageIndex. The library's own names an artifact's type on every manifest, which these are not, and writes
// fields in an order of its own: tools that copy an index by digest have to come to the very bytes from what they read,
// and those that stood before artifacts had types do not.
type index struct {
	manifests []descriptor
	images    map[v1.Hash]v1.Image
	raw       []byte
	parsed    *v1.IndexManifest
}

// descriptor has its fields in the order of the specification's own Go types.
type descriptor struct {
	MediaType   types.MediaType   `json:"mediaType"`
	Digest      v1.Hash           `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Platform    *platform         `json:"platform,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type indexManifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     types.MediaType   `json:"mediaType"`
	Manifests     []descriptor      `json:"manifests"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

func (i *index) add(img v1.Image, arch string) error {
	d, err := partial.Descriptor(img)
	if err != nil {
		return err
	}
	i.images[d.Digest] = img
	i.manifests = append(i.manifests, descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size,
		Platform: &platform{Architecture: arch, OS: "linux"}})
	return nil
}

// close fixes the index's bytes, after which nothing is added, and returns their digest.
func (i *index) close(annotations map[string]string) (digest v1.Hash, err error) {
	m := indexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: i.manifests, Annotations: annotations}
	if i.raw, err = json.Marshal(m); err != nil {
		return v1.Hash{}, err
	}
	if i.parsed, err = v1.ParseIndexManifest(bytes.NewReader(i.raw)); err != nil {
		return v1.Hash{}, err
	}
	return i.Digest()
}

func (i *index) MediaType() (types.MediaType, error)       { return types.OCIImageIndex, nil }
func (i *index) Digest() (v1.Hash, error)                  { return partial.Digest(i) }
func (i *index) Size() (int64, error)                      { return int64(len(i.raw)), nil }
func (i *index) RawManifest() ([]byte, error)              { return i.raw, nil }
func (i *index) IndexManifest() (*v1.IndexManifest, error) { return i.parsed.DeepCopy(), nil }
func (i *index) ImageIndex(digest v1.Hash) (v1.ImageIndex, error) {
	return nil, fmt.Errorf("no index %s", digest)
}

func (i *index) Image(digest v1.Hash) (v1.Image, error) {
	if img, ok := i.images[digest]; ok {
		return img, nil
	}
	return nil, fmt.Errorf("no image %s", digest)
}
