package testkit

// Theirs is a configuration of HAProxy that knows nothing of Sluice: rules, lists and backends of its own, for requests to "web".
const Theirs = `# Somebody's own.
global
    log stdout format raw daemon
    stats socket "${SLUICE_STATS-/run/haproxy/admin.sock}" mode 600 level admin
    nbthread "${SLUICE_THREADS-1}"

defaults
    mode http
    log global
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    timeout http-request 10s

frontend web
    bind "${SLUICE_BIND-127.0.0.1:1}"
    acl refused path /private # Sluice has a list of this name, too
    http-request deny if refused
    http-request set-header X-Forwarded-Proto http
    use_backend files if { path_beg /files/ }
    default_backend app

backend app
    http-response set-header X-Backend app
    server a "${SLUICE_ORIGIN-127.0.0.1:2}"

backend files
    http-response set-header X-Backend files
    server a "${SLUICE_ORIGIN-127.0.0.1:3}"
`
