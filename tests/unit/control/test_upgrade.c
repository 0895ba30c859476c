/* SPDX-License-Identifier: Apache-2.0 */
/* Whether another build may take over: each row of the table alone, the worst of several, and the note of a build as
 * text. */
#include "control/upgrade.h"
#include "support/suite.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

static const struct upgrade_build base = { "1.0.0", "gloo/3", 6, 5, 3, 1, 1, 2 };
static enum upgrade_verdict verdict[8];
static char line[8][400];
static int n_lines;

static void note(void *arg, enum upgrade_verdict v, const char *text)
{
	ck_assert_ptr_eq(arg, &n_lines);
	verdict[n_lines] = v;
	snprintf(line[n_lines++], sizeof(line[0]), "%s", text);
}

static enum upgrade_verdict judge_at(struct upgrade_build next, uint32_t schema)
{
	n_lines = 0;
	const enum upgrade_verdict v = upgrade_judge(&base, &next, schema, note, &n_lines);
	ck_assert_int_eq(n_lines, 5);
	return v;
}

static enum upgrade_verdict judge(struct upgrade_build next)
{
	return judge_at(next, base.journal);
}

START_TEST(the_same_build_fits)
{
	ck_assert_int_eq(judge(base), UPGRADE_FITS);
}
END_TEST

/* Only this line is another one. */
#define DIFFERS(at, verdict_, text, change)                                                                            \
	do {                                                                                                           \
		struct upgrade_build next = base;                                                                      \
		change;                                                                                                \
		ck_assert_int_eq(judge(next), verdict_);                                                               \
		for (int i_ = 0; i_ < 5; i_++)                                                                         \
			ck_assert_int_eq(verdict[i_], i_ == (at) ? (verdict_) : UPGRADE_FITS);                         \
		ck_assert_msg(strstr(line[at], text), "%s", line[at]);                                                 \
	} while (0)

START_TEST(each_difference_has_its_consequence)
{
	DIFFERS(0, UPGRADE_LOSES, "memory: layout 6, and this build has 7", next.segments = 7);
	DIFFERS(0, UPGRADE_LOSES, "gaccctl pause, checkpoint save, cancel", next.segments = 5);
	DIFFERS(1, UPGRADE_FITS, "schema 5 becomes 6; gaccd 1.0.0 cannot read it any more", next.journal = 6);
	DIFFERS(1, UPGRADE_LOSES, "it would not start. Install gaccd 1.0.0 or a later one", next.journal = 4);
	DIFFERS(2, UPGRADE_WAITS, "launched ranks are started again", next.launchers++);
	DIFFERS(3, UPGRADE_WAITS, "gloo/3 and kernels of revision 1, and this build has gloo/4 and 1",
		strcpy(next.coll, "gloo/4"));
	DIFFERS(3, UPGRADE_WAITS, "this build has gloo/3 and 2; jobs on several nodes wait", next.kernels++);
	DIFFERS(4, UPGRADE_FITS, "a common protocol", (next.protocol_min = 2, next.protocol_max = 9));
	DIFFERS(4, UPGRADE_WAITS, "links: protocol 1 to 2, and this build has 3 to 9",
		(next.protocol_min = 3, next.protocol_max = 9));
	DIFFERS(4, UPGRADE_WAITS, "links: ", (next.protocol_min = 0, next.protocol_max = 0));
}
END_TEST

/* A gaccd has changed the journal and has not noted itself, or the journal was brought back from a copy. */
START_TEST(the_journal_as_it_is_counts)
{
	struct upgrade_build next = base;
	ck_assert_int_eq(judge_at(next, 6), UPGRADE_LOSES);
	ck_assert_str_eq(line[1],
			 "journal: schema 6, and this build knows 5; it would not start. Install the gaccd that has "
			 "brought it there, which is newer than 1.0.0 and has not run");
	ck_assert_int_eq(judge_at(next, 4), UPGRADE_FITS);
	ck_assert_str_eq(line[1], "journal: schema 4 becomes 5");
	ck_assert_int_eq(judge_at(next, 0), UPGRADE_FITS);
	ck_assert_str_eq(line[1], "journal: there is none, and one is made");
	next.journal = 6;
	ck_assert_int_eq(judge_at(next, 6), UPGRADE_FITS);
	ck_assert_str_eq(line[1],
			 "journal: the same schema; a gaccd newer than 1.0.0 has changed it, and has not run: there is "
			 "no way back");
	next.journal = 4; /* older than the note, and so is the journal */
	ck_assert_int_eq(judge_at(next, 4), UPGRADE_FITS);
	ck_assert_str_eq(line[1], "journal: the same schema");
}
END_TEST

START_TEST(a_journal_that_is_too_new_is_told_without_a_note)
{
	n_lines = 0;
	ck_assert_int_eq(upgrade_judge_unknown(&base, 5, note, &n_lines), UPGRADE_FITS);
	ck_assert_int_eq(n_lines, 0);
	ck_assert_int_eq(upgrade_judge_unknown(&base, 6, note, &n_lines), UPGRADE_LOSES);
	ck_assert_int_eq(n_lines, 1);
	ck_assert_msg(strstr(line[0], "schema 6, and this build knows 5; it would not start"), "%s", line[0]);
}
END_TEST

START_TEST(the_worst_counts)
{
	struct upgrade_build next = base;
	next.segments++;
	next.kernels++;
	ck_assert_int_eq(judge(next), UPGRADE_LOSES);
}
END_TEST

START_TEST(a_build_is_read_as_it_was_written)
{
	struct upgrade_build back;
	char text[400], why[80];
	ck_assert_uint_eq(upgrade_write(&base, text, sizeof(text)), strlen(text));
	ck_assert(upgrade_read(text, &back, why, sizeof(why)));
	ck_assert(!strcmp(back.version, base.version) && !strcmp(back.coll, base.coll));
	ck_assert(back.segments == 6 && back.journal == 5 && back.launchers == 3 && back.kernels == 1);
	ck_assert(back.protocol_min == 1 && back.protocol_max == 2);
	strcat(text, "later 7\nversions 8");
	ck_assert(upgrade_read(text, &back, why, sizeof(why)));
}
END_TEST

START_TEST(what_is_no_build_is_refused)
{
	static const char good[] = "version 1\ncoll g\nsegments 6\njournal 5\nlaunchers 3\nkernels 1\nprotocol_min 1\n"
				   "protocol_max 2\n";
	struct upgrade_build back;
	char text[sizeof(good)], why[80];
	ck_assert(upgrade_read(good, &back, why, sizeof(why)));
	for (size_t n = 0; n < sizeof(good) - 3; n++) { /* cut short; the last number may lose its line's end */
		memcpy(text, good, n);
		text[n] = '\0';
		ck_assert_msg(!upgrade_read(text, &back, why, sizeof(why)), "%s", text);
		ck_assert(strstr(why, " is missing or wrong"));
	}
	ck_assert(!upgrade_read("version 1\ncoll g\nsegments 6x\n", &back, why, sizeof(why)));
	ck_assert_str_eq(why, "segments is missing or wrong");
	ck_assert(!upgrade_read("version 1\ncoll g\nsegments 99999999999\n", &back, why, sizeof(why)));
	ck_assert_str_eq(why, "segments is missing or wrong");
	ck_assert(!upgrade_read("version 123456789012345678901234567890123\n", &back, why, sizeof(why)));
	ck_assert_str_eq(why, "version is missing or wrong");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("upgrade");
	TCase *c = tcase_create("upgrade");
	suite_add_tcase(s, c);
	tcase_add_test(c, the_same_build_fits);
	tcase_add_test(c, each_difference_has_its_consequence);
	tcase_add_test(c, the_journal_as_it_is_counts);
	tcase_add_test(c, a_journal_that_is_too_new_is_told_without_a_note);
	tcase_add_test(c, the_worst_counts);
	tcase_add_test(c, a_build_is_read_as_it_was_written);
	tcase_add_test(c, what_is_no_build_is_refused);
	return suite_run(s);
}
