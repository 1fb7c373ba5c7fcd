#!/bin/sh
# Health of the container: /live of the server, which answers from its start on. It knows the SPINDLE_* variables of the container,
# not flags: where the port, the prefix, TLS or a Unix socket is set by flags, or clients need certificates, use --no-healthcheck.
set -eu
host=${SPINDLE_HOST:-0.0.0.0}
case $host in
  0.0.0.0 | ::) host=127.0.0.1 ;;
  *:*) host="[$host]" ;;
esac
scheme=http
[ -z "${SPINDLE_TLS_CERT:-}" ] || scheme=https
set -- -fsSk -o /dev/null --max-time 2
[ -z "${SPINDLE_UDS:-}" ] || set -- "$@" --unix-socket "$SPINDLE_UDS"
exec curl "$@" "$scheme://$host:${SPINDLE_PORT:-8000}${SPINDLE_ROOT_PATH:-}/live"
