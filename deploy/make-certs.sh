#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Certificates of a cluster, with an authority of their own.
#   make-certs.sh [-c CLUSTER] [-d DAYS] DIR ROLE/NAME[=ADDRESS,...]...
#   make-certs.sh revoke DIR ROLE/NAME...
#   make-certs.sh certs coordinator/a=10.0.0.1 node/b=10.0.0.2 node/c=10.0.0.3,c.example admin/ana
# ROLE is coordinator, node or admin, and NAME the node.name of that gaccd or a user's name; each certificate has one role, as the URI
# spiffe://CLUSTER/ROLE/NAME. The ADDRESSes (IP addresses or host names) are those by which others dial it, besides NAME.
# DIR gets ca.pem and ca.key, if they are not there yet, and ROLE-NAME.pem and .key for each, all with mode 600. What is there is never
# overwritten: it is said, and it is an error if it is for other names. CLUSTER (gacc) is fixed with the authority.
# revoke adds the certificates' serial numbers to DIR/revoked, which is for the coordinator's tls.revoked, and renames their files, so that new ones
# can be made.
# Keep ca.key away from the nodes: who has it can be any of them.
set -eu
umask 077

fail() {
	echo "make-certs: $*" >&2
	exit 1
}
usage() {
	sed -n 's/^#   //p' "$0" >&2
	exit 2
}

cluster= days=825
while getopts c:d: option; do
	case $option in
	c) cluster=$OPTARG ;;
	d) days=$OPTARG ;;
	*) usage ;;
	esac
done
shift $((OPTIND - 1))
revoke=
if [ "${1:-}" = revoke ]; then
	revoke=1
	shift
fi
[ $# -ge 2 ] || usage
dir=$1
shift
command -v openssl >/dev/null || fail "openssl is not installed"

# 1 to 64 letters, digits and ".-_", as gaccd wants them
check_name() {
	case $1 in
	'' | *[!A-Za-z0-9._-]*) fail "\"$1\": a name of letters, digits and .-_ is needed" ;;
	esac
	[ ${#1} -le 64 ] || fail "\"$1\": longer than 64 characters"
}
case $days in
'' | *[!0-9]*) fail "-d $days: a number of days is needed" ;;
esac

[ -z "$revoke" ] || [ -e "$dir/ca.pem" ] || fail "$dir/ca.pem: there is no authority"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
new=$(mktemp -d "$dir/.new.XXXXXX")
trap 'rm -rf "$new"' EXIT

run() {
	"$@" >"$new/said" 2>&1 || { cat "$new/said" >&2; fail "openssl failed"; }
}
new_key() {
	run openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:prime256v1 -out "$1"
}

# ---- the authority ----

if [ -e "$dir/ca.pem" ] && [ -e "$dir/ca.key" ]; then
	known=$(openssl x509 -in "$dir/ca.pem" -noout -subject -nameopt multiline | sed -n 's/^ *commonName *= gacc cluster //p')
	[ -n "$known" ] || fail "$dir/ca.pem is not of make-certs.sh"
	[ -z "$cluster" ] || [ "$cluster" = "$known" ] || fail "$dir is of cluster $known, not $cluster"
	cluster=$known
	echo "ca: is there (cluster $cluster)"
elif [ -e "$dir/ca.pem" ] || [ -e "$dir/ca.key" ]; then
	fail "of $dir/ca.pem and $dir/ca.key there is only one"
else
	cluster=${cluster:-gacc}
	check_name "$cluster"
	[ ${#cluster} -le 50 ] || fail "-c $cluster: longer than 50 characters"
	new_key "$new/ca.key"
	run openssl req -x509 -new -key "$new/ca.key" -sha256 -days 3650 -subj "/CN=gacc cluster $cluster" -out "$new/ca.pem" \
		-addext basicConstraints=critical,CA:TRUE,pathlen:0 -addext keyUsage=critical,keyCertSign,cRLSign
	mv -n "$new/ca.key" "$new/ca.pem" "$dir"
	echo "ca: made (cluster $cluster)"
fi

# ---- one certificate ----

# "URI:spiffe://gacc/node/b,DNS:b,IP:10.0.0.2" of role, name, addresses
names_of() {
	printf 'URI:spiffe://%s/%s/%s,DNS:%s' "$cluster" "$1" "$2" "$2"
	for address in $(echo "$3" | tr , ' '); do
		case $address in
		*:*) printf ',IP:%s' "$address" ;;
		*[!0-9.]*) check_name "$address"; printf ',DNS:%s' "$address" ;;
		*) printf ',IP:%s' "$address" ;;
		esac
	done
}
make() {
	file=$dir/$1-$2
	names=$(names_of "$1" "$2" "$3")
	if [ -e "$file.pem" ] && [ -e "$file.key" ]; then
		# a certificate says in its own words for what it was asked
		asked=$(openssl x509 -in "$file.pem" -noout -ext nsComment | sed -n '2s/^ *//p')
		[ "$asked" = "$names" ] || fail "$file.pem is for other names ($asked): move it away first"
		openssl x509 -in "$file.pem" -noout -checkend 2592000 >/dev/null ||
			echo "$1/$2: ends within 30 days: move $file.pem and $file.key away, and run this again" >&2
		echo "$1/$2: is there"
		return
	fi
	[ ! -e "$file.pem" ] && [ ! -e "$file.key" ] || fail "of $file.pem and $file.key there is only one"
	new_key "$new/key"
	run openssl req -new -key "$new/key" -subj "/CN=$2" -out "$new/csr"
	printf '%s\n' basicConstraints=critical,CA:FALSE keyUsage=critical,digitalSignature extendedKeyUsage=serverAuth,clientAuth \
		"subjectAltName=$names" "nsComment=$names" >"$new/extensions"
	run openssl x509 -req -in "$new/csr" -CA "$dir/ca.pem" -CAkey "$dir/ca.key" -sha256 -days "$days" -set_serial "0x$(openssl rand -hex 16)" \
		-extfile "$new/extensions" -out "$new/pem"
	run openssl verify -CAfile "$dir/ca.pem" "$new/pem"
	mv -n "$new/key" "$file.key"
	mv -n "$new/pem" "$file.pem"
	echo "$1/$2: made"
}
take_back() {
	file=$dir/$1-$2
	[ -e "$file.pem" ] || fail "$file.pem: there is no such certificate"
	serial=$(openssl x509 -in "$file.pem" -noout -serial)
	serial=${serial#serial=}
	printf '# %s/%s\n%s\n' "$1" "$2" "$serial" >>"$dir/revoked"
	for end in pem key; do
		[ ! -e "$file.$end" ] || mv -n "$file.$end" "$file-$serial.$end"
	done
	echo "$1/$2: $serial is in $dir/revoked: copy that to the coordinator's tls.revoked, and send its gaccd SIGHUP"
}
tell() {
	if [ "$1" = admin ]; then
		echo "    GACC_TLS_CERT=$dir/$1-$2.pem GACC_TLS_KEY=$dir/$1-$2.key GACC_TLS_CA=$dir/ca.pem gaccctl ..."
	else
		printf '    node:\n      name: %s\n    tls:\n      cert: %s\n      key: %s\n      ca: %s\n' "$2" "$dir/$1-$2.pem" "$dir/$1-$2.key" "$dir/ca.pem"
	fi
}

for one; do
	role=${one%%/*} rest=${one#*/}
	name=${rest%%=*} addresses=${rest#"$name"}
	case $one in
	coordinator/* | node/* | admin/*) ;;
	*) fail "$one: coordinator/NAME, node/NAME or admin/NAME is needed" ;;
	esac
	check_name "$name"
	case $addresses in
	*[!A-Za-z0-9.:_,=-]*) fail "$one: IP addresses or host names with commas between them are needed" ;;
	esac
	if [ -n "$revoke" ]; then
		take_back "$role" "$name"
		continue
	fi
	make "$role" "$name" "${addresses#=}"
	tell "$role" "$name"
done
