package spop

import (
	"net"
	"strconv"

	"github.com/negasus/haproxy-spoe-go/action"
	"github.com/negasus/haproxy-spoe-go/payload/kv"
)

// A Request is one message of HAProxy, and the answer to it. It is valid until
// the handler returns, and must be used by one goroutine at a time; the strings
// that it returns may be kept.
type Request struct {
	name    string
	args    []kv.Item
	actions *action.Actions
	room    int // bytes left in the ACK, which all messages of a NOTIFY share
	server  *Server
}

// Message is the name of the spoe-message.
func (r *Request) Message() string { return r.name }

// Arg is the value of a named argument. It reports false when the message has
// no such argument, or HAProxy had no value for it. Numbers are decimal,
// booleans 1 and 0 as HAProxy writes them, addresses in their usual form, and
// binary data the bytes themselves. Of arguments of one name the first counts.
func (r *Request) Arg(name string) (string, bool) {
	// A message has some ten arguments: to look through them is quicker than to make a map of them.
	for i := range r.args {
		if r.args[i].Name == name {
			return argText(r.args[i].Value)
		}
	}
	return "", false
}

func argText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case int32:
		return strconv.FormatInt(int64(v), 10), true
	case uint32:
		return strconv.FormatUint(uint64(v), 10), true
	case uint64:
		return strconv.FormatUint(v, 10), true
	case bool:
		if v {
			return "1", true
		}
		return "0", true
	case net.IP:
		return v.String(), true
	}
	return "", false // null
}

// SetString sets a variable of the transaction, to which HAProxy adds the
// agent's var-prefix: SetString("reason", …) becomes txn.sluice.reason. A value
// for which the ACK has no room left is dropped and counted: HAProxy would
// otherwise close the connection, with everybody's requests.
func (r *Request) SetString(name, value string) {
	if r.reserve(name, textSize(value)) {
		r.actions.SetVar(action.ScopeTransaction, name, value)
	}
}

// SetUint sets a variable of the transaction to a number, as SetString does.
func (r *Request) SetUint(name string, value uint32) {
	if r.reserve(name, maxVarint) {
		r.actions.SetVar(action.ScopeTransaction, name, value)
	}
}

// reserve takes the room of a set-var action: type, number of arguments, scope, name, data type and value.
func (r *Request) reserve(name string, value int) bool {
	// The action as SPOE.txt has it, section 3.4.
	n := 3 + textSize(name) + 1 + value
	if n > r.room {
		r.server.droppedVariable(name)
		return false
	}
	r.room -= n
	return true
}
