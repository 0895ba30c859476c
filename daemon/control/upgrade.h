/* SPDX-License-Identifier: Apache-2.0 */
/* Whether another build of gaccd may take over a node: what it shares with the build before, and what becomes of jobs
 * where that differs. Pure; any thread.
 *
 *   what                     if it differs
 *   layout of segments       LOSES: jobs with memory here end with NODE_FAIL
 *   schema of the journal    an older build: LOSES, it does not start; a newer one: FITS, and there is no way back
 *   words of launchers       WAITS: ranks that gaccd has launched are started again
 *   collectives, kernels     WAITS: jobs on several nodes wait until all their nodes have the same
 *   protocol between gaccds  no common version: WAITS: nodes link again when they have the same
 *   else                     FITS
 */
#ifndef GACC_CONTROL_UPGRADE_H
#define GACC_CONTROL_UPGRADE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UPGRADE_TEXT 32

struct upgrade_build {
	char version[UPGRADE_TEXT], coll[UPGRADE_TEXT]; /* words of letters, digits and signs */
	uint32_t segments, journal, launchers, kernels, protocol_min, protocol_max;
};

enum upgrade_verdict { UPGRADE_FITS, UPGRADE_WAITS, UPGRADE_LOSES };

/* A line: what it is about, and what becomes of jobs. */
typedef void upgrade_tell(void *arg, enum upgrade_verdict, const char *line);
/* The worst of the lines; all are told. `schema`: that of the journal as it is now, 0: there is none. It may be newer
 * than `runs` says: a gaccd changes the journal at its start, and it may then fail before it notes what it is. */
enum upgrade_verdict upgrade_judge(const struct upgrade_build *runs, const struct upgrade_build *next, uint32_t schema,
				   upgrade_tell *, void *arg);
/* Where no note says what has run: tells only that the journal is too new for `next`, if it is. */
enum upgrade_verdict upgrade_judge_unknown(const struct upgrade_build *next, uint32_t schema, upgrade_tell *,
					   void *arg);

/* As lines "key value"; how many bytes, without the end. */
size_t upgrade_write(const struct upgrade_build *, char *out, size_t n);
/* Keys of later builds are passed over. false: `why` names the key that is missing or wrong. */
bool upgrade_read(const char *text, struct upgrade_build *out, char *why, size_t n_why);

#endif
