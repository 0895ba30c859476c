/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two builds of gaccd by the table of upgrade.h, and writes what a build is as text and back. For
 * edge/upgrade_check.c. Pure, no state; any thread. */
#include "control/upgrade.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

struct judging {
	upgrade_tell *tell;
	void *arg;
	enum upgrade_verdict worst;
};

static void say(struct judging *j, enum upgrade_verdict v, const char *line)
{
	j->worst = v > j->worst ? v : j->worst;
	j->tell(j->arg, v, line);
}

static void judge_memory(struct judging *j, const struct upgrade_build *a, const struct upgrade_build *b)
{
	char line[400];
	if (a->segments == b->segments) {
		say(j, UPGRADE_FITS, "memory: the same layout; jobs keep what they have");
		return;
	}
	snprintf(line, sizeof(line),
		 "memory: layout %" PRIu32 ", and this build has %" PRIu32
		 "; jobs with memory here would end with NODE_FAIL. Before the upgrade, for each: gaccctl pause, "
		 "checkpoint save, cancel; after it: gaccctl checkpoint restore",
		 a->segments, b->segments);
	say(j, UPGRADE_LOSES, line);
}

/* `install`: the build that can read it. */
static void say_too_new(struct judging *j, const struct upgrade_build *b, uint32_t schema, const char *install)
{
	char line[400];
	snprintf(line, sizeof(line),
		 "journal: schema %" PRIu32 ", and this build knows %" PRIu32 "; it would not start. Install %s",
		 schema, b->journal, install);
	say(j, UPGRADE_LOSES, line);
}

static void judge_newer(struct judging *j, const struct upgrade_build *a, const struct upgrade_build *b,
			uint32_t schema)
{
	char install[120];
	snprintf(install, sizeof(install),
		 a->journal < schema ? "the gaccd that has brought it there, which is newer than %s and has not run"
				     : "gaccd %s or a later one",
		 a->version);
	say_too_new(j, b, schema, install);
}

static void judge_journal(struct judging *j, const struct upgrade_build *a, const struct upgrade_build *b,
			  uint32_t schema)
{
	char line[400], back[160] = "";
	if (schema > b->journal) {
		judge_newer(j, a, b, schema);
		return;
	}
	if (a->journal < schema)
		snprintf(back, sizeof(back),
			 "; a gaccd newer than %s has changed it, and has not run: there is no way back", a->version);
	else if (a->journal < b->journal)
		snprintf(back, sizeof(back), "; gaccd %s cannot read it any more then, so there is no way back",
			 a->version);
	if (!schema)
		snprintf(line, sizeof(line), "journal: there is none, and one is made");
	else if (schema == b->journal)
		snprintf(line, sizeof(line), "journal: the same schema%s", back);
	else
		snprintf(line, sizeof(line), "journal: schema %" PRIu32 " becomes %" PRIu32 "%s", schema, b->journal,
			 back);
	say(j, UPGRADE_FITS, line);
}

static void judge_launchers(struct judging *j, const struct upgrade_build *a, const struct upgrade_build *b)
{
	if (a->launchers == b->launchers)
		say(j, UPGRADE_FITS, "launchers: launched ranks run on");
	else
		say(j, UPGRADE_WAITS,
		    "launchers: another version; launched ranks are started again, and take up the open window");
}

static void judge_engines(struct judging *j, const struct upgrade_build *a, const struct upgrade_build *b)
{
	char line[400];
	if (!strcmp(a->coll, b->coll) && a->kernels == b->kernels) {
		say(j, UPGRADE_FITS, "engines: the same collectives and kernels; jobs on several nodes go on");
		return;
	}
	snprintf(line, sizeof(line),
		 "engines: %s and kernels of revision %" PRIu32 ", and this build has %s and %" PRIu32
		 "; jobs on several nodes wait, STALLED, until all their nodes are upgraded",
		 a->coll, a->kernels, b->coll, b->kernels);
	say(j, UPGRADE_WAITS, line);
}

static void judge_links(struct judging *j, const struct upgrade_build *a, const struct upgrade_build *b)
{
	char line[400];
	if (b->protocol_min <= a->protocol_max && a->protocol_min <= b->protocol_max) {
		say(j, UPGRADE_FITS, "links: a common protocol; nodes may be upgraded one after the other");
		return;
	}
	snprintf(line, sizeof(line),
		 "links: protocol %" PRIu32 " to %" PRIu32 ", and this build has %" PRIu32 " to %" PRIu32
		 "; nodes that are upgraded link with their coordinator when it is, too",
		 a->protocol_min, a->protocol_max, b->protocol_min, b->protocol_max);
	say(j, UPGRADE_WAITS, line);
}

enum upgrade_verdict upgrade_judge(const struct upgrade_build *runs, const struct upgrade_build *next, uint32_t schema,
				   upgrade_tell *tell, void *arg)
{
	struct judging j = { tell, arg, UPGRADE_FITS };
	judge_memory(&j, runs, next);
	judge_journal(&j, runs, next, schema);
	judge_launchers(&j, runs, next);
	judge_engines(&j, runs, next);
	judge_links(&j, runs, next);
	return j.worst;
}

enum upgrade_verdict upgrade_judge_unknown(const struct upgrade_build *next, uint32_t schema, upgrade_tell *tell,
					   void *arg)
{
	struct judging j = { tell, arg, UPGRADE_FITS };
	if (schema > next->journal)
		say_too_new(&j, next, schema, "the gaccd that has written it, or a later one");
	return j.worst;
}

/* ---- text ---- */

#define WORDS(X) X(version) X(coll)
#define NUMBERS(X) X(segments) X(journal) X(launchers) X(kernels) X(protocol_min) X(protocol_max)

size_t upgrade_write(const struct upgrade_build *b, char *out, size_t n)
{
	size_t at = 0;
#define X(key) at += (size_t)snprintf(out + at, n - at, #key " %s\n", b->key);
	WORDS(X)
#undef X
#define X(key) at += (size_t)snprintf(out + at, n - at, #key " %" PRIu32 "\n", b->key);
	NUMBERS(X)
#undef X
	return at;
}

/* The value behind this key, at most n - 1 bytes of it; false: there is none, or it is longer. */
static bool find(const char *text, const char *key, char *out, size_t n)
{
	const size_t n_key = strlen(key);
	for (const char *line = text; *line; line += *line == '\n') {
		const char *end = line + strcspn(line, "\n");
		const size_t n_value = (size_t)(end - line) > n_key ? (size_t)(end - line) - n_key - 1 : 0;
		if (n_value && n_value < n && !strncmp(line, key, n_key) && line[n_key] == ' ') {
			memcpy(out, line + n_key + 1, n_value);
			out[n_value] = '\0';
			return true;
		}
		line = end;
	}
	return false;
}

static bool find_number(const char *text, const char *key, uint32_t *out)
{
	char value[16];
	int used = 0;
	return find(text, key, value, sizeof(value)) && strspn(value, "0123456789") == strlen(value) &&
	       strlen(value) < 10 && sscanf(value, "%" SCNu32 "%n", out, &used) == 1;
}

bool upgrade_read(const char *text, struct upgrade_build *out, char *why, size_t n_why)
{
	const char *missing = NULL;
#define X(key)                                                                                                         \
	if (!missing && !find(text, #key, out->key, sizeof(out->key)))                                                 \
		missing = #key;
	WORDS(X)
#undef X
#define X(key)                                                                                                         \
	if (!missing && !find_number(text, #key, &out->key))                                                           \
		missing = #key;
	NUMBERS(X)
#undef X
	if (missing)
		snprintf(why, n_why, "%s is missing or wrong", missing);
	return !missing;
}
