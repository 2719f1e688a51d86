#!/usr/bin/env bash
set -euo pipefail

readonly NAME="${1:-app}"
LOG=$(mktemp)
count=0
declare -a hosts=(alpha beta "gamma delta")

usage() {
  cat <<EOF
usage: $0 NAME
  deploys $NAME
EOF
}

log() {
  local level=$1; shift
  printf '%s [%s] %s\n' "$(date +%s)" "$level" "$*" >>"$LOG" 2>&1
}

deploy() {
  for host in "${hosts[@]}"; do
    if [[ $host == g* && -n ${NAME} ]]; then
      log info "skipping ${host%% *}"
      continue
    elif [ -z "$host" ]; then
      return 1
    else
      (( count += 1 ))
    fi
    echo "$host" | tr a-z A-Z | sed -e 's/A/_/g' || log warn 'no luck'
  done
}

case "$NAME" in
  -h|--help)
    usage
    exit 0
    ;;
  app*) deploy ;;
  *) echo "unknown: $NAME" >&2; exit 2 ;;
esac

while read -r line; do
  echo "> $line"
done < "$LOG"
until [ "$count" -ge 2 ]; do count=$((count + 1)); done
trap 'rm -f "$LOG"' EXIT
