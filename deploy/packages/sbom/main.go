// Command sbom prints what Go programs are made of, as a CycloneDX bill of materials.
// It has no serial number and no time, so that one set of programs makes one bill.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Package string `json:"purl"`
}

func main() {
	if err := printBill(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func printBill(version string, programs []string) error {
	found := map[string]component{}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return err
		}
		add(found, "std", strings.TrimPrefix(info.GoVersion, "go"))
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			add(found, m.Path, m.Version)
		}
	}
	bill := map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":   map[string]any{"component": library("application", "github.com/sluice-qos/sluice", "v"+version)},
		"components": slices.SortedFunc(maps.Values(found), func(a, b component) int { return strings.Compare(a.Ref, b.Ref) }),
	}
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(bill)
}

func add(found map[string]component, path, version string) {
	c := library("library", path, version)
	found[c.Ref] = c
}

func library(kind, path, version string) component {
	url := fmt.Sprintf("pkg:golang/%s@%s", path, version)
	return component{Type: kind, Ref: url, Name: path, Version: version, Package: url}
}
