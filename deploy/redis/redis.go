// Package redis has the users that Sluice's parts are in Redis, for tests with exactly
// these rights.
package redis

import _ "embed"

// Users is the file, in the form of Redis' aclfile. A user in it is off: it has no
// password until the operator gives it one.
//
//go:embed users.acl
var Users string
