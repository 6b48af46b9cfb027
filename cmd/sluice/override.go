package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sluice-qos/sluice/internal/api"
	"github.com/sluice-qos/sluice/internal/daemon/flags"
	"github.com/sluice-qos/sluice/internal/terminal"
)

type override struct {
	User   string        `arg:"" optional:"" help:"The user, named as in the limit file."`
	Limits []string      `arg:"" optional:"" name:"field=value" help:"Limits to set: tier=pro, concurrent=50, requests.GET=200, requests.GET/minute=1000, bandwidth.down=10MiB, costs.tokens.day=1M, requests=unlimited, requests=0 to refuse every request, …"`
	For    time.Duration `help:"Duration, from 1s to 168h." default:"1h" placeholder:"TIME"`
	Reason string        `help:"Reason, one line, which the list of overrides and the audit log show." placeholder:"TEXT"`
	List   bool          `help:"List the overrides that there are."`
	Remove bool          `help:"End the user's override now."`
	Admin  string        `help:"Where the admin API of polygen, or of sluice up, listens: host:port, or https://host:port." default:"127.0.0.1:9090" placeholder:"HOST:PORT"`

	Access `embed:""`
}

// Help tells what it does.
func (*override) Help() string {
	return `Sets limits of one user for a time, over what the limit file says of that user; every other limit stays as it is there. A tier replaces all of them. The override is in force on all instances, and in workers of background jobs that follow polygen, within a second or two, outlives restarts, and ends by itself. Another one for the same user replaces it.

sluice override bob concurrent=50 requests.GET=200 --for 15m --reason "launch, see ticket 42"

sluice override bob tier=pro --reason "trial"

sluice override bob costs.tokens.minute=50k costs.tokens.day=1M --reason "evaluation"

sluice override --list

sluice override --remove bob

Fields and values are those of the limit file; a dot leads into a mapping.`
}

// Validate checks what goes with what.
func (o *override) Validate() error {
	switch {
	case o.List && (o.Remove || o.User != ""):
		return errors.New("--list lists all overrides: leave out the rest")
	case o.List:
		return nil
	case o.User == "":
		return errors.New("name a user, or say --list")
	case o.Remove && len(o.Limits) > 0:
		return errors.New("--remove ends the whole override: leave out the fields")
	case o.Remove:
		return nil
	case len(o.Limits) == 0:
		return errors.New("say what to set, such as concurrent=50, or --remove")
	case o.Reason == "":
		return errors.New("say why, with --reason")
	}
	return nil
}

func (o *override) execute(stdout, stderr io.Writer) int {
	return flags.Exit(stderr, "sluice override", o.changeOverride(stdout))
}

func (o *override) changeOverride(stdout io.Writer) error {
	limits, err := limitsOf(o.Limits)
	if err != nil {
		return err
	}
	a, err := o.client(o.Admin)
	if err != nil {
		return err
	}
	defer a.Close()
	ctx, path := context.Background(), api.OverridePath(o.User)
	switch {
	case o.List:
		var all api.Overrides
		if err := a.GetJSON(ctx, "/api/v1/overrides", &all); err != nil {
			return err
		}
		return listOverrides(stdout, all)
	case o.Remove:
		var gone api.Override
		if err := a.SendJSON(ctx, http.MethodDelete, path, map[string]any{"reason": o.Reason}, &gone); err != nil {
			return err
		}
		_, err = fmt.Fprintf(stdout, "%s has the limits of the limit file again; the override said %s: %s\n", terminal.QuoteName(gone.User), describeFields(gone.Limits), terminal.QuoteName(gone.Reason))
		return err
	}
	var set api.Override
	if err := a.SendJSON(ctx, http.MethodPut, path, map[string]any{"for": o.For.String(), "reason": o.Reason, "limits": limits}, &set); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s has %s until %s\n", terminal.QuoteName(set.User), describeFields(set.Limits), set.Until.Format(time.RFC3339))
	return err
}

func listOverrides(stdout io.Writer, all api.Overrides) error {
	if len(all.Overrides) == 0 {
		_, err := fmt.Fprintln(stdout, "no overrides")
		return err
	}
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "USER\tUNTIL\tLIMITS\tBY\tREASON")
	for _, o := range all.Overrides {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", terminal.QuoteName(o.User), o.Until.Format(time.RFC3339), describeFields(o.Limits), terminal.QuoteName(o.By), terminal.QuoteName(o.Reason))
		if o.Problem != "" {
			fmt.Fprintf(w, "  not in force: %s\n", terminal.Printable(o.Problem))
		}
	}
	return w.Flush()
}

func describeFields(limits json.RawMessage) string {
	var v any
	if json.Unmarshal(limits, &v) != nil {
		return terminal.QuoteName(string(limits))
	}
	tier, ok := v.(string)
	if ok {
		return terminal.QuoteName("tier=" + tier)
	}
	var fields []string
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if m, ok := v.(map[string]any); ok && len(m) > 0 {
			for name, v := range m {
				walk(strings.TrimPrefix(path+"."+name, "."), v)
			}
			return
		}
		text, ok := v.(string)
		if !ok {
			data, _ := json.Marshal(v)
			text = string(data)
		}
		fields = append(fields, path+"="+text)
	}
	walk("", v)
	slices.Sort(fields)
	return terminal.Printable(strings.Join(fields, " "))
}

// limitsOf makes limits of words such as requests.GET=200.
func limitsOf(words []string) (map[string]any, error) {
	limits := map[string]any{}
	for _, word := range words {
		path, text, ok := strings.Cut(word, "=")
		names := strings.Split(strings.ReplaceAll(path, "/", "."), ".")
		if !ok || text == "" || slices.Contains(names, "") {
			return nil, fmt.Errorf("%q: want FIELD=VALUE, such as concurrent=50 or requests.GET=200", word)
		}
		var value any = text
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && strconv.FormatInt(n, 10) == text && path != "tier" {
			value = json.Number(text)
		}
		into := limits
		for i, name := range names[:len(names)-1] {
			switch was := into[name].(type) {
			case nil:
				below := map[string]any{}
				into[name], into = below, below
			case map[string]any:
				into = was
			default:
				if i != 1 || names[0] != "requests" { // requests.GET is requests.GET.second
					return nil, fmt.Errorf("%q: %s has a value already", word, strings.Join(names[:i+1], "."))
				}
				below := map[string]any{"second": was}
				into[name], into = below, below
			}
		}
		last := names[len(names)-1]
		if below, ok := into[last].(map[string]any); ok && names[0] == "requests" && len(names) == 2 {
			into, last = below, "second"
		}
		if _, twice := into[last]; twice {
			return nil, fmt.Errorf("%q: %s has a value already", word, path)
		}
		into[last] = value
	}
	return limits, nil
}

type unblock struct {
	User   string `arg:"" help:"The user, named as in the limit file, or ~HASH as sluice top shows them."`
	Reason string `required:"" help:"Reason, one line, which the list of overrides and the audit log show." placeholder:"TEXT"`
	Admin  string `help:"Where the admin API of polygen, or of sluice up, listens: host:port, or https://host:port." default:"127.0.0.1:9090" placeholder:"HOST:PORT"`

	Access `embed:""`
}

// Help tells what it does and what not.
func (*unblock) Help() string {
	return `Lets a user in who is blocked because the requests in progress reached the limit. The user is judged anew: while as many are in progress, they are blocked again at once. To allow more, see "sluice override".`
}

func (u *unblock) execute(stdout, stderr io.Writer) int {
	return flags.Exit(stderr, "sluice unblock", u.unblockUser(stdout))
}

func (u *unblock) unblockUser(stdout io.Writer) error {
	a, err := u.client(u.Admin)
	if err != nil {
		return err
	}
	defer a.Close()
	var out api.Unblocked
	path := api.UnblockPath(u.User)
	if err := a.SendJSON(context.Background(), http.MethodPost, path, map[string]any{"reason": u.Reason}, &out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: unblocked: %s\n", terminal.QuoteName(out.User), terminal.Printable(out.Note))
	return err
}
