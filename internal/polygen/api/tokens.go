package api

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"

	"github.com/sluice-qos/sluice/internal/daemon"
)

// tokens are the good tokens. They are kept as digests, so that the time that a comparison
// takes tells nothing of them, not even their length.
type tokens []digested

type digested struct {
	name   string
	digest [sha256.Size]byte
}

func digestTokens(path string, file []byte) (*tokens, error) {
	all, err := daemon.ParseTokens(file)
	if err != nil {
		return nil, fmt.Errorf("token file %s: %w", path, err)
	}
	var good tokens
	for _, s := range all {
		good = append(good, digested{s.Name, sha256.Sum256([]byte(s.Token))})
	}
	return &good, nil
}

// ownerOf returns the name of a token's owner. It compares all tokens in any case, so that
// its time does not tell which one is near.
func (all tokens) ownerOf(token string) (name string, ok bool) {
	// Of equal length whatever the client sent, which ConstantTimeCompare needs.
	given := sha256.Sum256([]byte(token))
	for _, t := range all {
		if subtle.ConstantTimeCompare(given[:], t.digest[:]) == 1 {
			name, ok = t.name, true
		}
	}
	return name, ok
}
