# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# One TAP stream made of many. Needs common.sh.

TESTS=0 PASSED=0 FAILED=0 SKIPPED=0 FAILURES=()

# How many of the last lines of a failed test are printed again at the end.
REASON_LINES=60

# result ok|not-ok NAME [DIRECTIVE [REASON]]: one test; the directive is what follows the name's #.
# The lines of the REASON of a failure are printed again at the end.
result() {
	TESTS=$((TESTS + 1))
	case $1,${3:-} in
	*,SKIP* | *,skip* | *,TODO* | *,todo*) SKIPPED=$((SKIPPED + 1)) ;;
	ok,*) PASSED=$((PASSED + 1)) ;;
	*)
		FAILED=$((FAILED + 1))
		FAILURES+=("$2${4:+$'\n'$4}")
		;;
	esac
	echo "${1/-/ } $TESTS - $2${3:+ # $3}"
}

# tap_start NAME COMMAND...: starts a command that prints TAP; tap_finish NAME makes it part of
# ours. So several run at once, as many as the processors can serve without tests taking a slow
# machine for a hang: they wait often, so one more than there are.
tap_start() {
	local name=$1
	shift
	until [ "$(tap_running)" -le "$(nproc)" ]; do
		sleep 0.5
	done
	say "testing: $name"
	local output=$TAP_DIR/${name//\//-}
	: >"$output"
	tap_run "$output" "$@" &
	TAP_PIDS[$name]=$!
	TAP_NAMES+=("$name")
}
declare -A TAP_PIDS=()
TAP_NAMES=()

# tap_run OUTPUT COMMAND...: the exit status goes to a file, since the shell forgets the status of a
# process whose number is used again.
tap_run() {
	local output=$1 pid rc=0
	shift
	"$@" >"$output" </dev/null &
	pid=$!
	trap 'kill "$pid" 2>/dev/null; exit 143' TERM
	wait "$pid" || rc=$?
	times >"$output.cpu"
	echo "$rc" >"$output.status"
}

# cpu_of FILE: the seconds of processor time that `times` says a shell's children have used
cpu_of() {
	awk 'NR == 2 {
		for (i = 1; i <= 2; i++) {
			split($i, part, /[ms]/)
			sum += 60 * part[1] + part[2]
		}
		print int(sum)
	}' "$1"
}

tap_running() {
	local name count=0
	for name in "${!TAP_PIDS[@]}"; do
		[ -e "$TAP_DIR/${name//\//-}.status" ] || count=$((count + 1))
	done
	echo "$count"
}

# tap_follow OUTPUT PID: prints it while it grows, to its end
tap_follow() {
	local from=0 size end=
	until [ -n "$end" ]; do
		# First: what was written before is there then.
		if [ -e "$1.status" ] || ! kill -0 "$2" 2>/dev/null; then
			end=y
		fi
		size=$(stat -c %s "$1")
		# In this order: tail reads all that head writes, whereas head would end a tail that
		# has more to write with SIGPIPE.
		head -c "$size" "$1" | tail -c "+$((from + 1))"
		from=$size
		[ -n "$end" ] || sleep 0.5
	done
}

# tap_parse LINE: takes the line of a test apart into TAP_VERDICT (ok or not-ok), TAP_NUMBER,
# TAP_NAME and TAP_DIRECTIVE (what follows a #); fails if it is no such line.
TAP_LINE='^(ok|not ok)( +([0-9]+))?( +-)? *([^#]*[^# ])?( *# *(.*))?$'
tap_parse() {
	[[ $1 =~ $TAP_LINE ]] || return 1
	TAP_VERDICT=${BASH_REMATCH[1]/ /-}
	TAP_NUMBER=${BASH_REMATCH[3]}
	TAP_NAME=${BASH_REMATCH[5]}
	TAP_DIRECTIVE=${BASH_REMATCH[7]}
}

# tap_read NAME: makes the stream on standard input part of ours, and sets TAP_FAULT to a fault of
# the stream itself, or to nothing. Lines that are not TAP are passed on.
tap_read() {
	local line reason planned='' seen=0 said=()
	TAP_FAULT=
	while IFS= read -r line || [ -n "$line" ]; do
		if tap_parse "$line"; then
			seen=$((seen + 1))
			[ "${TAP_NUMBER:-$seen}" = "$seen" ] ||
				tap_fault "counts its tests (number $TAP_NUMBER for test $seen)"
			reason=
			[ "$TAP_VERDICT" = ok ] ||
				reason=$(printf '%s\n' "${said[@]#\# }" | tail -n "$REASON_LINES")
			result "$TAP_VERDICT" "$1: $TAP_NAME" "$TAP_DIRECTIVE" "$reason"
			said=()
		elif [[ $line =~ ^1\.\.([0-9]+) ]]; then
			[ -z "$planned" ] || tap_fault "has one plan"
			planned=${BASH_REMATCH[1]}
		elif [[ $line == 'Bail out!'* ]]; then
			echo "# $line"
			tap_fault "does not give up (${line#Bail out! })"
		elif [[ $line != 'TAP version'* ]]; then
			echo "$line"
			said+=("$line")
		fi
	done
	[ "$planned" = "$seen" ] ||
		tap_fault "keeps its plan (${planned:-no} tests planned, $seen run)"
}

tap_fault() { # WHAT: the first thing that is wrong counts
	TAP_FAULT=${TAP_FAULT:-$1}
}

# tap_finish NAME: it is part of the test that the command ended well, and that its stream is whole.
tap_finish() {
	local name=$1 failed=$FAILED rc
	local pid=${TAP_PIDS[$name]} output=$TAP_DIR/${1//\//-}
	tap_read "$name" < <(tap_follow "$output" "$pid")
	rc=$(cat "$output.status" 2>/dev/null || echo 255)
	unset "TAP_PIDS[$name]"
	if [ "$rc" -eq 123 ]; then
		result not-ok "$name: the kernel has nothing to complain of when it is switched off"
	elif [ "$rc" -ge 124 ]; then
		result not-ok "$name: runs to its end (exit status $rc)"
	elif [ -n "$TAP_FAULT" ]; then
		result not-ok "$name: $TAP_FAULT"
	elif [ "$rc" -ne 0 ] && [ "$FAILED" -eq "$failed" ]; then
		result not-ok "$name: exit status $rc"
	fi
}

tap_begin() {
	TAP_DIR=$(mktemp -d "$CACHE/runs/tap-XXXXXX")
	at_exit tap_clean_up
	echo "TAP version 13"
}

tap_clean_up() {
	local pid
	for pid in "${TAP_PIDS[@]}"; do
		! jobs -pr | grep -qx "$pid" || kill "$pid" || :
	done
	rm -rf "$TAP_DIR"
}

# tap_costs: what each part has cost, in minutes of one processor, and how long all of it took
tap_costs() {
	local name
	times >"$TAP_DIR/cpu"
	echo "# processor time, in minutes:"
	for name in "${TAP_NAMES[@]}"; do
		cpu_of "$TAP_DIR/${name//\//-}.cpu" |
			awk -v name="$name" '{ printf "#   %5.1f  %s\n", $1 / 60, name }'
	done
	cpu_of "$TAP_DIR/cpu" | awk -v seconds="$SECONDS" \
		'{ printf "#   %5.1f  all, in %.1f minutes\n", $1 / 60, seconds / 60 }'
}

# tap_check NAME COMMAND...: one test, passed when the command succeeds; its output is shown when it
# does not.
tap_check() {
	local name=$1 log=$TAP_DIR/check
	shift
	if ("$@") >"$log" 2>&1 </dev/null; then
		result ok "$name"
	else
		sed 's/^/# /' "$log"
		result not-ok "$name" '' "$(tail -n "$REASON_LINES" "$log")"
	fi
}

# tap_cargo PREFIX COMMAND...: the tests that cargo test runs, each by its name
tap_cargo() {
	local prefix=$1 log=$TAP_DIR/cargo line failed=$FAILED rc=0
	shift
	"$@" >"$log" 2>&1 </dev/null || rc=$?
	while IFS= read -r line; do
		if [[ $line =~ ^test\ (.*)\ \.\.\.\ (ok|FAILED|ignored)(,\ (.*))?$ ]]; then
			case ${BASH_REMATCH[2]} in
			ok) result ok "$prefix: ${BASH_REMATCH[1]}" ;;
			ignored)
				result ok "$prefix: ${BASH_REMATCH[1]}" \
					"SKIP ${BASH_REMATCH[4]:-ignored}"
				;;
			*) result not-ok "$prefix: ${BASH_REMATCH[1]}" ;;
			esac
		fi
	done <"$log"
	if [ "$rc" -ne 0 ]; then
		sed 's/^/# /' "$log"
		[ "$FAILED" -gt "$failed" ] || result not-ok "$prefix: cargo test"
		FAILURES[-1]+=$'\n'$(grep -v '^test .* ok$' "$log" | tail -n "$REASON_LINES")
	fi
}

# tap_end: the plan and the counts; succeeds when nothing failed and something passed. Where the
# stream is a part of another one (TAP_PART), that one counts.
tap_end() {
	local name
	echo "1..$TESTS"
	if [ -n "${TAP_PART:-}" ]; then
		[ "$FAILED" -eq 0 ]
		return
	fi
	for name in "${FAILURES[@]}"; do
		echo "# failed: ${name//$'\n'/$'\n'#   }"
	done
	echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
	[ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
}
