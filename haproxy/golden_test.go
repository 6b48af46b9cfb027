package haproxy

import (
	"os"
	"testing"
)

// files are what Write writes for c.
func files(c Config) (map[string]string, error) {
	v, err := c.newView()
	if err != nil {
		return nil, err
	}
	return c.filesOf(v)
}

// The shipped haproxy.cfg and spoe.cfg are what the templates render without a limit file.
func TestShippedFilesAreRendered(t *testing.T) {
	files, err := files(Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"haproxy.cfg", "spoe.cfg"} {
		if *update {
			if err := os.WriteFile(name, []byte(files[name]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if files[name] != shipped(t, name) {
			t.Errorf("%s is not what the template renders for the zero Config; run go test ./haproxy -run ShippedFiles -update", name)
		}
	}
}
