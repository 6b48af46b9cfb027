// Package integration proves the promises of README.md on real processes: redis-server, HAProxy on the shipped files, and our
// commands. A test proves one promise, with many users in one cluster. test/full has tests that take long.
//
// Time-outs of clusters are long (cluster.LongWait), or ten times those that are shipped where parts die (scene.ShortWait), so no
// test depends on the machine's speed.
package integration
