package testkit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	File string // with its own certificate, in PEM form

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority whose file lies in a folder.
func NewAuthority(t testing.TB, dir string) *Authority {
	t.Helper()
	a := &Authority{File: filepath.Join(dir, "ca.pem"), key: newKey(t)}
	der := sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotAfter: time.Now().Add(time.Hour),
	}, nil, a.key, a.key)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	write(t, a.File, "CERTIFICATE", der)
	return a
}

// Issue writes a certificate for 127.0.0.1 and names, which is good until an instant,
// to DIR/cert.pem, and its key to DIR/key.pem.
func (a *Authority) Issue(t testing.TB, dir string, until time.Time, names ...string) (cert, key string) {
	t.Helper()
	own := newKey(t)
	der := sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: until,
	}, a.cert, own, a.key)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, cert, "CERTIFICATE", der)
	write(t, key, "PRIVATE KEY", pkcs8)
	return cert, key
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// sign signs what a key has with that of a parent; nil is itself.
func sign(t testing.TB, c, parent *x509.Certificate, key, by *ecdsa.PrivateKey) []byte {
	t.Helper()
	var err error
	if c.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)); err != nil {
		t.Fatal(err)
	}
	c.NotBefore = c.NotAfter.Add(-1000 * time.Hour)
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// write replaces a file at once, as who rotates certificates does.
func write(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}
