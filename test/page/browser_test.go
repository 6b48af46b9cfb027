// Package page opens polygen's page in a real Chromium: on a whole `sluice up` with
// real HAProxies, and on a small server of its own for what those do not do on demand.
package page

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/sluice-qos/sluice/internal/testkit"
)

// Sizes of a window.
type size struct{ width, height int64 }

var (
	desktop = size{1280, 840}
	phone   = size{360, 740}
)

// tab is a tab of a browser of its own.
type tab struct {
	t   testing.TB
	ctx context.Context

	mu     sync.Mutex
	errors []string // of the console, and of scripts
	asked  []string // addresses
}

// newTab starts Chromium. Its end fails the test if anything went wrong in the page:
// an error of a script or on the console, or a request to anywhere but to this host.
// Errors that contain one of the allowed words are expected.
func newTab(t testing.TB, host string, s size, allowed ...string) *tab {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal("chromium is not installed: run 'scripts/setup chromium', or as root 'apt-get install chromium'")
	}
	alloc, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(chromium), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(3*testkit.Patience),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.NoDefaultBrowserCheck,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("disable-extensions", true), chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("lang", "en"),
		chromedp.Env("TZ=UTC"),
		chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }),
	)
	ctx, cancelTab := chromedp.NewContext(alloc)
	b := &tab{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.listen); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b.shoot("failed-" + strings.ReplaceAll(t.Name(), "/", "-"))
		}
		b.mu.Lock()
		wrong, asked := b.errors, b.asked
		b.mu.Unlock()
		for _, e := range wrong {
			if !slices.ContainsFunc(allowed, func(word string) bool { return strings.Contains(e, word) }) {
				t.Errorf("in the page: %s", e)
			}
		}
		if len(asked) < 5 {
			t.Errorf("the page asked for %q, want its files at least", asked)
		}
		for _, a := range asked {
			if u, err := url.Parse(a); err != nil || u.Scheme != "data" && u.Host != host {
				t.Errorf("the page asked for %s, want nothing but http://%s", a, host)
			}
		}
		cancelTab()
		cancel()
	})
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	call(b, runtime.Enable, cdp.Empty{})
	b.size(s)
	return b
}

func (b *tab) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.asked = append(b.asked, e.Request.URL)
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		b.errors = append(b.errors, "exception: "+text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning || e.Type == runtime.ConsoleAPICalledTypeAssert {
			var args []string
			for _, a := range e.Args {
				args = append(args, string(a.Value)+a.Description)
			}
			b.errors = append(b.errors, "console: "+strings.Join(args, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.errors = append(b.errors, fmt.Sprintf("log: %s (%s)", e.Entry.Text, e.Entry.URL))
		}
	}
}

// run does something in the tab, for as long as is patient.
func run[T any](b *tab, what string, action func(context.Context) (T, error)) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 3*testkit.Patience)
	defer cancel()
	out, err := action(ctx)
	if err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	return out
}

// call sends Chromium a command.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	return run(b, command.Method, func(ctx context.Context) (R, error) { return chromedp.Call(ctx, command, params) })
}

func do[T any](b *tab, what string, action chromedp.Action[T]) T {
	b.t.Helper()
	return run(b, what, func(ctx context.Context) (T, error) { return chromedp.Run(ctx, action) })
}

func (b *tab) size(s size) {
	b.t.Helper()
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{
		Width: s.width, Height: s.height, DeviceScaleFactor: 1, Mobile: s.width < 500,
	})
}

// theme is what the machine prefers.
func (b *tab) theme(scheme string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
}

func (b *tab) open(address string) {
	b.t.Helper()
	do(b, "open "+address, chromedp.Navigate(address))
}

// eval evaluates an expression, or waits for a promise.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	return do(b, "evaluate "+expression, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// text is an element's text as it is seen, "" if there is none.
func (b *tab) text(selector string) string {
	b.t.Helper()
	return eval[string](b, "document.querySelector("+quote(selector)+")?.innerText ?? ''")
}

// await waits until an expression is true, and shows another one where it never is.
func (b *tab) await(what, expression, show string) {
	b.t.Helper()
	testkit.Eventually(b.t, what, func() error {
		if !eval[bool](b, "Boolean("+expression+")") {
			return fmt.Errorf("%s is %q", show, eval[string](b, "String("+show+")"))
		}
		return nil
	})
}

// awaitText waits until an element's text contains another.
func (b *tab) awaitText(selector, want string) {
	b.t.Helper()
	text := "(document.querySelector(" + quote(selector) + ")?.innerText ?? 'nothing')"
	b.await(selector+" says "+want, text+".includes("+quote(want)+")", text)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings can be encoded
	}
	return string(b)
}

var reload = chromedp.Reload()

// press presses a key, such as "\t" or "\r", where the focus is.
func (b *tab) press(keys string) {
	b.t.Helper()
	do(b, "press keys", chromedp.KeyEvent(keys))
}

// shoot keeps a picture of the window among the test's artifacts.
func (b *tab) shoot(name string) []byte {
	b.t.Helper()
	png := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng}).Data
	dir := os.Getenv("SLUICE_ARTIFACTS")
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)); err != nil {
		b.t.Fatal(err)
	}
	return png
}

//go:embed testdata/check.js
var checks string

// check looks for what keeps people from using the page: see testdata/check.js.
func (b *tab) check(where string) {
	b.t.Helper()
	for _, problem := range eval[[]string](b, checks) {
		b.t.Errorf("%s: %s", where, problem)
	}
	if wide := eval[int](b, "document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide > 0 {
		b.t.Errorf("%s: the page is %d px wider than its window", where, wide)
	}
}
