package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-qos/sluice/internal/api"
)

// fieldsOf are the fields of a body.
var fieldsOf = map[api.Action][]string{
	api.SetOverride:    {"for", "reason", "limits"},
	api.RemoveOverride: {"reason"},
	api.UnblockUser:    {"reason"},
}

func parseBody(body []byte, a *api.OverrideRequest) error {
	values, err := parseFields(body, fieldsOf[a.Action])
	if err != nil {
		return err
	}
	if err := textField(values, "reason", &a.Reason); err != nil {
		return err
	}
	// Never without an end: who forgets an override would have it forever.
	a.For = defaultFor
	if value, ok := values["for"]; ok {
		var text string
		if err := textField(values, "for", &text); err != nil {
			return err
		}
		// What is to hold for longer than a week belongs into the limit file.
		if a.For, err = time.ParseDuration(text); err != nil || a.For < minFor || a.For > maxFor {
			return fmt.Errorf("for must be a time from 1s to 168h, such as 15m, got %.60s", value)
		}
	}
	// What they say is judged by polygen, against the limit file that is in force.
	if a.Limits = values["limits"]; a.Limits == nil && a.Action == api.SetOverride {
		return errors.New(`limits is missing; write them as in the limit file, such as {"concurrent": 50}`)
	}
	// In characters, as people count.
	n := utf8.RuneCountInString(a.Reason)
	needed := a.Action != api.RemoveOverride || n > 0
	// The reason is shown in the log and on the page, where control characters could forge a line.
	if needed && (strings.TrimSpace(a.Reason) == "" || n > maxReason || strings.ContainsFunc(a.Reason, func(r rune) bool { return !unicode.IsPrint(r) })) {
		return fmt.Errorf("reason must be 1 to %d printable characters, got %s", maxReason, strconv.Itoa(n))
	}
	return nil
}

// parseFields reads the fields of a JSON object. Fields are each there once, and none is unknown:
// json.Unmarshal would take the last of two, and an operator could not tell which limits hold.
func parseFields(body []byte, valid []string) (map[string]json.RawMessage, error) {
	// encoding/json would put U+FFFD in place of other bytes, without a word.
	if !utf8.Valid(body) {
		return nil, errors.New("the body is not UTF-8 text")
	}
	// Token by token, because a map does not tell that a field was there twice.
	d := json.NewDecoder(bytes.NewReader(body))
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return nil, fmt.Errorf("the body must be a JSON object with %s", strings.Join(valid, ", "))
	}
	values := map[string]json.RawMessage{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		field, _ := token.(string)
		// An override with a misspelled field would hold, and not do what it says.
		if !slices.Contains(valid, field) {
			return nil, fmt.Errorf("unknown field %.60q (valid: %s)", field, strings.Join(valid, ", "))
		}
		if _, twice := values[field]; twice {
			return nil, fmt.Errorf("%s is there twice", field)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, notJSON(err)
		}
		values[field] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, notJSON(err)
	}
	// As twice the same field: nobody could tell which of the two objects is meant.
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON object")
	}
	return values, nil
}

func notJSON(err error) error { return fmt.Errorf("the body is not JSON: %w", err) }

// textField reads a text; "" if the field is missing.
func textField(values map[string]json.RawMessage, field string, to *string) error {
	value, ok := values[field]
	// null would pass for an empty text.
	if ok && (len(value) == 0 || value[0] != '"' || json.Unmarshal(value, to) != nil) {
		return fmt.Errorf("%s must be text, got %.60s", field, value)
	}
	return nil
}
