# Runs on a rented machine, as root, at every start; `script.py` puts settings in front:
# NAME FOLDER RESULTS WHEEL MAX_SECONDS WORK, functions delete_machine and train.
set -uo pipefail
RETRY_SECONDS=${RETRY_SECONDS:-5}
mkdir -p "$WORK"
cd "$WORK" || exit 1
exec >>"$WORK/log.txt" 2>&1
say() { echo "$(date -u +%FT%TZ) $*"; }
is_first_host() { [ "$(cat "$WORK/host" 2>/dev/null || echo 0)" = 0 ]; }
upload() { is_first_host && gcloud storage cp "$WORK/log.txt" "$FOLDER/" >/dev/null 2>&1; }
is_done() { gcloud storage ls "$RESULTS" >/dev/null 2>&1; }

pid='' helpers=()
end() {
  trap - EXIT TERM
  # Training saves its last step when it is asked to end.
  if [ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null; then
    for _ in $(seq 90); do kill -0 "$pid" 2>/dev/null || break; sleep 1; done
    kill -KILL "$pid" 2>/dev/null
  fi
  for helper in "${helpers[@]}"; do kill "$helper" 2>/dev/null; done
  say "the machine is given back"
  upload
  # Whatever happened, nothing stays rented: a machine that cannot be deleted is shut down.
  if is_first_host; then
    for _ in 1 2 3; do delete_machine && return; sleep 5; done
    shutdown -h now
  fi
}
trap end EXIT
trap 'say "asked to end"; exit 143' TERM

fail() {
  say "failed: $*"
  echo "$*" >"$WORK/failed.txt"
  is_first_host && gcloud storage cp "$WORK/failed.txt" "$FOLDER/"
  exit 1
}

# Where there are several hosts, their agent's number; only the first one deletes and reports.
curl -sf -m 5 -H 'Metadata-Flavor: Google' \
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent-worker-number \
  >"$WORK/host" || echo 0 >"$WORK/host"

parent=$$
(sleep "$MAX_SECONDS" & wait $!; say "max_hours are over"; kill -TERM "$parent") &
helpers+=($!)
(while sleep 60; do upload; done) &
helpers+=($!)

find_python() {
  for name in python3.12 python3.11; do command -v "$name" && return; done
  apt-get update >&2 && apt-get install -y python3.11 python3.11-venv >&2 && command -v python3.11
}

install() {
  python=$(find_python) || return 1
  gcloud storage cp "$FOLDER/$WHEEL" "$FOLDER/constraints.txt" "$FOLDER/tpu.txt" . || return 1
  "$python" -m venv env || return 1
  env/bin/python -m pip install --constraint constraints.txt "./$WHEEL[tpu,gcp]" --requirement tpu.txt || return 1
  env/bin/python -m pip install --constraint constraints.txt --no-deps tensorflow-text || return 1
  touch installed
}

say "start of $NAME"
if [ ! -e installed ]; then
  # In the background, as training: a signal to end need not wait for it.
  install &
  pid=$!
  wait "$pid" || { pid=''; fail "the installation failed: see log.txt"; }
  pid=''
fi
tries=0
until is_done; do
  train &
  pid=$!
  wait "$pid"
  code=$?
  pid=''
  say "training ended with code $code"
  upload
  # The user's mistake: again it would be the same.
  [ "$code" = 2 ] && fail "$(tail -n 1 log-of-training.txt)"
  is_done && break
  tries=$((tries + 1))
  [ "$tries" -ge 5 ] && fail "training ended $tries times without results, the last time with code $code"
  sleep $((tries * RETRY_SECONDS))
done
say "results are there"
