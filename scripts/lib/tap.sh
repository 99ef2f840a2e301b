# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# One TAP stream made of many. Needs common.sh.

TESTS=0 PASSED=0 FAILED=0 SKIPPED=0

# result ok|not-ok NAME [DIRECTIVE]: one test; the directive is what follows the name's #
result() {
	TESTS=$((TESTS + 1))
	case $1,${3:-} in
	*,SKIP* | *,skip* | *,TODO* | *,todo*) SKIPPED=$((SKIPPED + 1)) ;;
	ok,*) PASSED=$((PASSED + 1)) ;;
	*)
		FAILED=$((FAILED + 1))
		FAILURES+=("$2")
		;;
	esac
	echo "${1/-/ } $TESTS - $2${3:+ # $3}"
}
FAILURES=()

# tap_run PREFIX COMMAND...: the TAP that a command prints, as part of ours. That it ends well and keeps its plan is part of it.
tap_run() {
	local prefix=$1 line planned='' seen=0 failed=$FAILED rc=0 pipe
	shift
	pipe=$CACHE/runs/tap.$$
	rm -f "$pipe"
	mkfifo "$pipe"
	"$@" >"$pipe" </dev/null &
	while IFS= read -r line; do
		if [[ $line =~ ^(ok|not\ ok)(\ +[0-9]+)?(\ +-)?\ *([^#]*[^#\ ])?(\ *#\ *(.*))?$ ]]; then
			seen=$((seen + 1))
			result "${BASH_REMATCH[1]/ /-}" "$prefix: ${BASH_REMATCH[4]}" "${BASH_REMATCH[6]}"
		elif [[ $line =~ ^1\.\.([0-9]+) ]]; then
			planned=$((${planned:-0} + BASH_REMATCH[1]))
		elif [[ $line != TAP\ version* ]]; then
			echo "$line"
		fi
	done <"$pipe"
	wait $! || rc=$?
	rm -f "$pipe"
	if [ "$rc" -ge 124 ]; then
		result not-ok "$prefix: runs to its end (exit status $rc)"
	elif [ "$planned" != "$seen" ]; then
		result not-ok "$prefix: keeps its plan (${planned:-no} tests planned, $seen run)"
	elif [ "$rc" -ne 0 ] && [ "$FAILED" -eq "$failed" ]; then
		result not-ok "$prefix: exit status $rc"
	fi
}

# tap_check NAME COMMAND...: one test, passed when the command succeeds; what it says is shown when it does not.
tap_check() {
	local name=$1 log=$CACHE/runs/check.$$
	shift
	if ("$@") >"$log" 2>&1 </dev/null; then
		result ok "$name"
	else
		sed 's/^/# /' "$log"
		result not-ok "$name"
	fi
	rm -f "$log"
}

# tap_cargo PREFIX COMMAND...: the tests that cargo test runs, each by its name
tap_cargo() {
	local prefix=$1 log=$CACHE/runs/cargo.$$ line failed=$FAILED rc=0
	shift
	"$@" >"$log" 2>&1 </dev/null || rc=$?
	while IFS= read -r line; do
		if [[ $line =~ ^test\ (.*)\ \.\.\.\ (ok|FAILED|ignored)(,\ (.*))?$ ]]; then
			case ${BASH_REMATCH[2]} in
			ok) result ok "$prefix: ${BASH_REMATCH[1]}" ;;
			ignored) result ok "$prefix: ${BASH_REMATCH[1]}" "SKIP ${BASH_REMATCH[4]:-ignored}" ;;
			*) result not-ok "$prefix: ${BASH_REMATCH[1]}" ;;
			esac
		fi
	done <"$log"
	if [ "$rc" -ne 0 ]; then
		sed 's/^/# /' "$log"
		[ "$FAILED" -gt "$failed" ] || result not-ok "$prefix: cargo test"
	fi
	rm -f "$log"
}

# tap_end: the plan and the counts; succeeds when nothing failed and something passed
tap_end() {
	local name
	echo "1..$TESTS"
	for name in "${FAILURES[@]}"; do
		echo "# failed: $name"
	done
	echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
	[ "$FAILED" -eq 0 ] && [ "$PASSED" -gt 0 ]
}
