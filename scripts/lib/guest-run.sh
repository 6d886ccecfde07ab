# Boots the guest, passes its output on, ends it. Started by scripts/soft-roce; the first process of a PID namespace, in a
# mount namespace of its own, or in a folder of its own where namespaces are not allowed.
set -euo pipefail
kernel=$1 folder=$2 devices=$3 kind=$4 ipv4=$5 ipv6=$6 memory_mib=$7 limit_s=$8 results=$9 console=${10} merged=${11} lib=${12}
shift 12
directory=$(pwd -P)
parent=$PPID # 0 in a namespace, which goes with it anyway
boot_limit_s=180 # 3 s on an idle machine
end_limit_s=15   # from the command's end to the kernel's
say() { echo "soft-roce: $*" >&2; }

# What the guest takes as its memory, and the files that both sides use. /dev/shm is hidden by a file system of our own,
# of which the guest sees nothing either way.
if [ -z "$folder" ]; then
  mount -t tmpfs -o "mode=700,size=$((memory_mib + 1024))m" soft-roce /dev/shm
  folder=/dev/shm
fi
memory_folder=$folder
# In a container /dev/shm may be as small as 64 MiB; the temporary folder then stands in, at the disk's speed.
if [ "$folder" != /dev/shm ] && [ "$(df --output=avail -m /dev/shm | tail -1)" -gt "$memory_mib" ]; then
  memory_folder=/dev/shm
fi

exchange=$folder/exchange
mkdir "$exchange" "$folder/uml"
cp "$lib/guest-init.sh" "$exchange/init"
cp "$lib/guest-session.sh" "$exchange/session"
chmod +x "$exchange/init"
declare -p devices kind ipv4 ipv6 results directory merged > "$exchange/settings"
printf '%s\0' "$@" > "$exchange/command"
env -0 > "$exchange/environment"
: > "$exchange/out"
: > "$exchange/err"
console=${console:-$folder/console}

TMPDIR=$memory_folder "$kernel" "mem=${memory_mib}M" root=/dev/root rootfstype=hostfs rootflags=/ ro devtmpfs.mount=0 "init=$exchange/init" \
  "uml_dir=$folder/uml/" umid=guest con=null con0=null,fd:2 quiet panic=1 < /dev/null > "$console" 2>&1 &
guest=$!
tail -q -c +1 -f -s 0.1 --pid="$guest" "$exchange/out" &
followers=($!)
if [ "$merged" = no ]; then
  tail -q -c +1 -f -s 0.1 --pid="$guest" "$exchange/err" >&2 &
  followers+=($!)
fi

# Every process of the guest at once: one that outlived its kernel would run on as a process of this machine, with the
# next system call of the guest's program.
end_guest() {
  if [ "$$" = 1 ]; then
    kill -KILL -1 # all of the namespace but this shell
    return
  fi
  kill -STOP "$guest"
  local children
  children=$(cat "/proc/$guest"/task/*/children 2> /dev/null || true)
  # shellcheck disable=SC2086
  kill -KILL $children "$guest" 2> /dev/null || true
}

disown -a # else bash reports of each how it ended

exec {idle}<> <(:) # nothing is ever written to it: a wait without a process
status='' started='' ended=''
while kill -0 "$guest" 2> /dev/null; do
  read -rt 0.1 -u "$idle" || true
  [ -n "$started" ] || [ ! -e "$exchange/started" ] || started=$SECONDS
  [ -n "$ended" ] || [ ! -s "$exchange/status" ] || ended=$SECONDS
  if [ -n "$ended" ]; then
    [ $((SECONDS - ended)) -lt "$end_limit_s" ] || break
  elif [ -n "$started" ]; then
    if [ $((SECONDS - started)) -ge "$limit_s" ]; then
      say "the time limit of $limit_s s is reached; the guest is ended"
      status=124
      break
    fi
  elif [ "$SECONDS" -ge "$boot_limit_s" ]; then
    say "the guest has not booted within $boot_limit_s s"
    status=125
    break
  fi
  for follower in "${followers[@]}"; do
    # Nobody reads the output any more (a closed pipe); as for any command, that is the end.
    if ! kill -0 "$follower" 2> /dev/null && kill -0 "$guest" 2> /dev/null; then status=141; break 2; fi
  done
  if [ "$parent" != 0 ] && ! kill -0 "$parent" 2> /dev/null; then status=137; break; fi
done
if kill -0 "$guest" 2> /dev/null; then
  sleep 0.3 # the followers read what has come
  end_guest
fi
# They read the rest and end, having seen that the guest has.
for follower in "${followers[@]}"; do
  while kill -0 "$follower" 2> /dev/null; do read -rt 0.1 -u "$idle" || true; done
done
if [ "$status" = 137 ]; then rm -rf "$folder"; fi

if [ -z "$status" ] && [ -s "$exchange/status" ]; then
  status=$(cat "$exchange/status")
elif [ -z "$status" ]; then
  say "the guest ended without a result"
  status=125
fi
if [ "$status" = 125 ] && [ -s "$console" ]; then
  say "the last messages of its kernel:"
  tail -20 "$console" >&2
fi
exit "$status"
