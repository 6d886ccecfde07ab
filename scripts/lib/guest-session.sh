# In the guest, after guest-init.sh: network, RDMA devices, then the command; its status goes to the host, and the guest off.
exchange=/run/soft-roce
. "$exchange/settings"
off() {
  sync # what was written through a mapping into the results folder
  echo "$1" > "$exchange/status"
  exec busybox poweroff -f
}
fail() {
  echo "soft-roce: the guest cannot $*" >> "$exchange/err"
  off 125
}

hostname soft-roce
echo "127.0.1.1 soft-roce" >> /etc/hosts
ulimit -l unlimited
ulimit -Hn 524288
# Both ends of a connection are addresses of this one kernel. Packets take the bridge all the same if ARP answers for the
# asked device alone and a sender with an address of ours is believed.
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.arp_ignore=1 \
  net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.accept_local=1 \
  net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 || fail "set up its network"
ip link set lo up || fail "set up its network"

add_device() {
  local host=h$1 port=p$1
  ip link add "$host" mtu 9000 type veth peer name "$port" mtu 9000 &&
    ip link set "$port" master br0 && ip link set "$port" up && ip link set "$host" up || return
  if [ "$ipv4" = yes ]; then
    ip address add "10.77.0.$1/24" dev "$host" && echo "10.77.0.$1 $host" >> /etc/hosts || return
  fi
  if [ "$ipv6" = yes ]; then
    ip address add "fd00:77::$1/64" dev "$host" nodad && echo "fd00:77::$1 $host" >> /etc/hosts || return
  fi
  rdma link add "$kind$1" type "$kind" netdev "$host"
}
# A port is up a moment after its device.
wait_until_active() {
  local try
  for try in {1..50}; do
    [[ $(cat "/sys/class/infiniband/$kind$1/ports/1/state" 2> /dev/null) != *ACTIVE ]] || return 0
    sleep 0.1
  done
  return 1
}
if [ "$devices" -gt 0 ]; then
  ip link add br0 mtu 9000 type bridge && ip link set br0 up || fail "make its bridge"
  for ((i = 1; i <= devices; ++i)); do add_device "$i" || fail "make $kind$i"; done
  for ((i = 1; i <= devices; ++i)); do wait_until_active "$i" || fail "bring up $kind$i"; done
fi
if [ -n "$results" ]; then
  mkdir -p "$results" && mount -t hostfs -o "$results" results "$results" || fail "reach the results folder $results"
fi

# The caller's environment, in a shell that has nothing else.
run() {
  local name pair command
  for name in $(compgen -e); do unset "$name"; done
  while IFS= read -rd '' pair; do
    [[ $pair =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] && export "${pair?}"
  done < "$exchange/environment"
  mapfile -d '' -t command < "$exchange/command"
  cd "$directory" || exit 125
  exec "${command[@]}"
}
exec < /dev/null >> "$exchange/out"
if [ "$merged" = yes ]; then exec 2>&1; else exec 2>> "$exchange/err"; fi
: > "$exchange/started"
setsid bash -c "$(declare -f run); $(declare -p exchange directory); run" soft-roce &
wait $!
off $?
