package helm

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// generated is a configuration as HAProxy's ingress controller 3.2 makes it: the order of the lines of a section, in which its
// snippet is the last one, and how it finds the backend of a host and a path.
const generated = `global
  default-path config
  localpeer local
  master-worker
  stats socket DIR/controller.sock level admin expose-fd listeners
  SNIPPET-OF-GLOBAL

defaults haproxytech
  timeout http-request 5000
  timeout connect 5000
  timeout client 50000
  timeout server 50000
  option dontlognull

peers localinstance
  peer local PEERS

frontend http from haproxytech
  mode http
  bind BIND name v4
  http-request set-var(txn.base) base
  http-request set-var(txn.path) path
  http-request set-var(txn.host) req.hdr(Host),field(1,:),lower
  http-request set-var(txn.host_match) var(txn.host),map(DIR/host.map)
  http-request set-var(txn.path_match) var(txn.host_match),concat(,txn.path,),map_beg(DIR/path-prefix.map)
  use_backend %[var(txn.path_match),field(1,.)]
  default_backend default_svc
  ###_config-snippet_### BEGIN
  SNIPPET-OF-FRONTEND
  ###_config-snippet_### END

frontend https from haproxytech
  mode http
  bind OTHER name v4
  http-request set-var(txn.host_match) req.hdr(Host),field(1,:),lower,map(DIR/host.map)
  http-request set-var(txn.path_match) var(txn.host_match),concat(,txn.path,),map_beg(DIR/path-prefix.map)
  use_backend %[var(txn.path_match),field(1,.)]
  default_backend default_svc
  ###_config-snippet_### BEGIN
  SNIPPET-OF-FRONTEND
  ###_config-snippet_### END

backend default_svc from haproxytech
  mode http
  http-request return status 404

backend web_svc_shop_http from haproxytech
  mode http
  server SRV_1 ORIGIN enabled
`

// The limits hold in what HAProxy's ingress controller generates, with the snippets and the file that the script writes: who
// has used them up is refused, and others reach the origin.
func TestIngressController(t *testing.T) {
	bin, err := built()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	limits := filepath.Join(dir, "limits.yaml")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("limits.yaml", "version: 1\ndefault_tier: free\ntiers: {free: {requests: {GET: 10}, bandwidth: {down: 100MiB}}}\n")
	script := exec.Command("../kubernetes/ingress-controller", dir, "--limits", limits, "--identify", "header:X-User", "--haproxy", testkit.HAProxyPath(t))
	script.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	_, redis := testkit.Redis(t)
	origin, _ := origin(t)
	address, admins := testkit.FreeAddr(t), []string{testkit.FreeAddr(t), testkit.FreeAddr(t)}
	write("host.map", "127.0.0.1 shop\n")
	write("path-prefix.map", "shop/ web_svc_shop_http\n")
	cfg := write("haproxy.cfg", strings.NewReplacer("DIR", dir, "PEERS", testkit.FreeAddr(t), "BIND", address, "OTHER", testkit.FreeAddr(t), "ORIGIN", origin,
		"SNIPPET-OF-GLOBAL", readFile(t, filepath.Join(dir, "global-config-snippet")), "SNIPPET-OF-FRONTEND", readFile(t, filepath.Join(dir, "frontend-config-snippet"))).Replace(generated))
	env := []string{"SLUICE_CFG_DIR=" + filepath.Join(dir, "files"), "SLUICE_REDIS=" + redis, "SLUICE_LOCAL_PEER=local",
		"SLUICE_SPOE=unix@" + filepath.Join(dir, "spoa.sock"), "SLUICE_PEER=unix@" + filepath.Join(dir, "peers.sock"), "SLUICE_RUNTIME=" + filepath.Join(dir, "runtime.sock")}
	testkit.Start(t, env, filepath.Join(bin, "polygen"), "--limits", limits, "--admin", admins[0])
	testkit.Start(t, env, filepath.Join(bin, "spoa"), "--admin", admins[1])
	testkit.Start(t, env, testkit.HAProxyPath(t), "-db", "-f", cfg, "-f", filepath.Join(dir, "haproxy-aux.cfg"))
	for _, path := range []string{"spoa", "polygen"} {
		testkit.Eventually(t, path, func() error {
			admin := map[string]string{"polygen": admins[0], "spoa": admins[1]}[path]
			return exec.Command(filepath.Join(bin, path), "--probe", "ready", "--admin", admin).Run()
		})
	}

	url := "http://" + address + "/"
	awaitLimited(t, url, "mary", `"GET";q=10;w=1`)
	// Nobody else is.
	for _, user := range []string{"ann", "bob"} {
		response, err := get(url, user)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%s: %v %v, want it to reach the origin", user, response, err)
		}
	}
}
