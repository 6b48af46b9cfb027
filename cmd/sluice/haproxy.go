package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/sluice-qos/sluice/cmd/sluice/internal/terms"
	"github.com/sluice-qos/sluice/haproxy"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/internal/terminal"
	"github.com/sluice-qos/sluice/pkg/limits/limitfile"
)

type forHAProxy struct {
	Limits   string `help:"Limit file whose classes, exempt addresses and paths, limits of addresses, and limited classes go into the configuration. Default: none." predictor:"file" placeholder:"FILE"`
	Identify string `help:"How to find the user: header:X-User, s3, jwt:sub, basic, ip, a comma-separated chain of them, or auto (s3,jwt,basic,ip). With :lower or :exact behind header:X-User, jwt:sub or basic, names are in small letters, or as they are; only those of basic are in small letters without." placeholder:"CHAIN"`
	Out      string `help:"The folder to write. Default: print haproxy.cfg." predictor:"file" placeholder:"DIR"`
	Force    bool   `help:"Overwrite files of the same names that are somebody else's, too."`

	intoTheirs `embed:""`
}

// Help tells what the command writes and what to do then.
func (*forHAProxy) Help() string {
	return `With --out, writes all that HAProxy needs: haproxy.cfg, spoe.cfg, the lists (*.lst) and lua. Files of these names are written anew, so keep changes of your own elsewhere. Everything else is set by environment variables; the table at the top of haproxy.cfg lists them.

Run it again, and reload HAProxy, when the classes, the exempt addresses, the exempt paths, failed_auth or per_address of the limit file change; and when its mode does, if it has one of the last two. Everything else in the file, limits and exempt users above all, takes effect without. If a verb or a class is limited that was not limited before, its limit takes effect too, but users with it are asked about with each request until then. If nobody's bandwidth was limited before, it is limited, but large transfers cost HAProxy before 2.7 more until then.

With --into, puts what limits need into a haproxy.cfg of your own, for the frontends that are named: a block of the process, and one or two in each frontend. It shows them as a diff, and says what in that file cannot be beside them, or what to mind. With --write it writes them, if haproxy -c takes the result; with --check it exits with 1 if they are not there; with --remove it takes them out again, byte for byte. haproxy/README.md, "Beside your own HAProxy", has the rest.

The exit code is 1 if the limit file has an error, the folder has files of the same names that are somebody else's, or something in the configuration cannot coexist with the lines, else 0.`
}

func (h *forHAProxy) execute(stdout, stderr io.Writer) int {
	return flags.Exit(stderr, "sluice haproxy", h.writeFiles(stdout, stderr))
}

func (h *forHAProxy) config(stderr io.Writer) (haproxy.Config, error) {
	if h.Limits == "" {
		return haproxy.Config{Identify: h.Identify}, nil
	}
	set, err := limitfile.Load(h.Limits)
	if err != nil {
		return haproxy.Config{}, err
	}
	c := haproxy.ForLimits(set)
	c.Identify = h.Identify
	names, err := haproxy.NeverFound(h.Identify, set)
	if err == nil && len(names) > 0 { // an error is told where the chain is used
		fmt.Fprintf(stderr, "sluice haproxy: %d user(s) are named with capital letters, and this chain finds names in small letters only (%s): write them small, or add :exact in the chain\n", len(names), terminal.SomeNames(names))
	}
	return c, nil
}

func (h *forHAProxy) writeFiles(stdout, stderr io.Writer) error {
	// No chain is safe in front of every origin: with the wrong one, clients choose whose limits they use.
	if h.Identify == "" && !h.Remove {
		return errors.New("--identify is missing: name what your origin knows users by, such as s3, jwt:sub, basic or ip, or auto for all of these; " +
			"header:X-User only behind a gateway that sets this header, for clients can send any")
	}
	c, err := h.config(stderr)
	if err != nil {
		return err
	}
	if h.Into != "" {
		return h.intoTheirs.execute(c, stdout, stderr)
	}
	if h.Write || h.Check || h.Remove || len(h.Frontend) > 0 || len(h.Config) > 0 {
		return errors.New("--frontend, --config, --write, --check and --remove belong to --into FILE")
	}
	addresses, paths := len(c.Exempt.Addresses), len(c.Exempt.Paths)
	if h.Out == "" {
		cfg, err := haproxy.Render(c)
		if err != nil {
			return err
		}
		if addresses+paths > 0 {
			fmt.Fprintln(stderr, "sluice haproxy: the exempt addresses and paths are in files of their own: write them with --out DIR")
		}
		_, err = io.WriteString(stdout, cfg)
		return err
	}
	if !h.Force {
		if foreign := haproxy.Foreign(h.Out); len(foreign) > 0 {
			return fmt.Errorf("%s has files of somebody else's (%s): choose another folder, or overwrite them with --force", h.Out, terminal.SomeNames(foreign))
		}
	}
	file, _, err := haproxy.Write(h.Out, c)
	if err != nil {
		return err
	}
	ofAddresses := ""
	if line := terms.DescribeAddresses(c.Addresses); line != "" {
		ofAddresses = "; each address: " + line
	}
	_, err = fmt.Fprintf(stdout, `%s: %d class(es), %d exempt address(es), %d exempt path(s)%s
Check it, then start HAProxy or reload it:
  SLUICE_CFG_DIR='%s' haproxy -c -f '%s'
Do this again when classes, exempt addresses, exempt paths or limits of addresses change; limits of users take effect by themselves.
`, file, len(c.Classes), addresses, paths, ofAddresses, shellQuoted(filepath.Dir(file)), shellQuoted(file))
	return err
}

func shellQuoted(text string) string { return strings.ReplaceAll(text, "'", `'\''`) }
