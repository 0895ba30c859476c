# SPDX-License-Identifier: Apache-2.0
# Counts test cases in what `ctest --output-junit` wrote: those that a Check program reports, else one for the program.
# Prints shell assignments: p=passed f=failed s=skipped
/<testcase / { checks = bad = 0; ok = /status="run"/; skip = /status="disabled"/ }
match($0, /Checks: [0-9]+, Failures: [0-9]+, Errors: [0-9]+/) {
	split(substr($0, RSTART), n, /[^0-9]+/)
	checks += n[2]
	bad += n[3] + n[4]
}
/<skipped message="SKIP_/ { skip = 1 } # others could not run: failures
/<\/testcase>/ {
	if (skip) {
		s++
		next
	}
	p += checks ? checks - bad : ok
	f += bad
	if (!ok && !bad) # a crash, a limit, or a sanitizer's report after the last case
		f++
}
END { printf "p=%d f=%d s=%d\n", p, f, s }
