package node

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// makeCredentials writes an authority, the API server's certificate, the key of service accounts, and two users' tokens
// with their kubeconfigs: an administrator and the kubelet. Every start makes them anew.
func makeCredentials(dir Dir) error {
	secrets := dir.join("state", "secrets")
	for _, d := range []string{secrets, dir.join("state", "home")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "kube-apiserver"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(apiService), net.ParseIP(Address)},
	}
	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	accountsKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	authorityBytes, err := x509.CreateCertificate(rand.Reader, authority, authority, &authorityKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	serverBytes, err := x509.CreateCertificate(rand.Reader, server, authority, &serverKey.PublicKey, authorityKey)
	if err != nil {
		return err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authorityBytes})
	files := map[string][]byte{
		filepath.Join(secrets, "ca.crt"):        ca,
		filepath.Join(secrets, "apiserver.crt"): pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: serverBytes}),
	}
	for name, key := range map[string]*ecdsa.PrivateKey{"apiserver.key": serverKey, "accounts.key": accountsKey} {
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return err
		}
		files[filepath.Join(secrets, name)] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	}
	var tokens string
	for _, user := range []struct{ name, group, file string }{
		{"admin", "system:masters", dir.Kubeconfig()},
		{"system:node:" + Name, "system:nodes", dir.join("state", "kubelet.kubeconfig")},
	} {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			return err
		}
		token := hex.EncodeToString(random)
		tokens += fmt.Sprintf("%s,%s,%s,%s\n", token, user.name, user.name, user.group)
		if files[user.file], err = kubeconfig(token, ca); err != nil {
			return err
		}
	}
	files[filepath.Join(secrets, "tokens.csv")] = []byte(tokens)
	for name, data := range files {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig is JSON, which is YAML too.
func kubeconfig(token string, ca []byte) ([]byte, error) {
	return json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "node",
		"clusters": []any{map[string]any{"name": "node", "cluster": map[string]any{
			"server": "https://127.0.0.1:" + apiPort, "certificate-authority-data": ca,
		}}},
		"users":    []any{map[string]any{"name": "node", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "node", "context": map[string]any{"cluster": "node", "user": "node"}}},
	}, "", "  ")
}
