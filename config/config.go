// Package config holds the JSON Schema of the limit file (draft 2020-12), which is
// generated: see pkg/limits/limitfile/schemafile_test.go.
package config

import _ "embed"

// Schema is limits.schema.json.
//
//go:embed limits.schema.json
var Schema []byte
