# SPDX-License-Identifier: Apache-2.0
# Adds up the summary lines of one or more runs of pytest: "== 1 failed, 20 passed, 2 skipped, 1 error in 3.45s ==".
# Prints shell assignments: p=passed f=failed s=skipped
/^=.* in [0-9.]+s/ && /(passed|failed|skipped|error)/ {
	n = split($0, word, /[ ,=]+/)
	for (i = 2; i <= n; i++) {
		if (word[i] ~ /^(passed|xfailed)$/)
			p += word[i - 1]
		else if (word[i] ~ /^(failed|errors?|xpassed)$/)
			f += word[i - 1]
		else if (word[i] == "skipped")
			s += word[i - 1]
	}
}
END { printf "p=%d f=%d s=%d\n", p, f, s }
