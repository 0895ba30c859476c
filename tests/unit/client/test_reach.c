/* SPDX-License-Identifier: Apache-2.0 */
/* What libgacc says and does when gaccd cannot be reached: connect() and the calls are a script (-Wl,--wrap). */
#include "gacc/gacc_admin.h"
#include "lib/channel.h"
#include "lib/internal.h"
#include "support/suite.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define ENDPOINT "unix:/nonexistent/gaccd.sock"

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t n);
enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure);

static int errors[4]; /* of connect(); the last one repeats */
static size_t attempts;

int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t n)
{
	errno = errors[attempts < 3 ? attempts : 3];
	attempts++;
	return errno ? -1 : 0;
}

static struct rpc_failure wait_says, get_says;

enum status __wrap_rpc_channel_call(struct rpc_channel *channel, const struct ProtobufCServiceDescriptor *service,
				    const char *method, const struct ProtobufCMessage *request, int64_t timeout_ms,
				    struct ProtobufCMessage **out_reply, struct rpc_failure *failure)
{
	*failure = strcmp(method, "Wait") ? get_says : wait_says;
	return failure->status;
}

static struct gacc_client *client;

static void setup(void)
{
	memset(errors, 0, sizeof(errors));
	attempts = 0;
	ck_assert_int_eq(gacc_open(ENDPOINT, &client), GACC_OK);
}

static void teardown(void)
{
	gacc_close(client);
}

/* ---- words ---- */

static const struct {
	int error; /* of connect() */
	struct rpc_failure before;
	enum status status;
	const char *message, *hint;
} cases[] = {
	{ ENOENT,
	  { .status = ST_UNAVAILABLE, .message = "failed" },
	  ST_UNAVAILABLE,
	  "cannot reach gaccd at " ENDPOINT ": No such file",
	  "is gaccd running?" },
	{ EACCES,
	  { .status = ST_UNAVAILABLE },
	  ST_PERMISSION_DENIED,
	  "cannot reach gaccd at " ENDPOINT ": Permission denied",
	  "you are not in the socket's group" },
	{ EAGAIN,
	  { .status = ST_UNAVAILABLE, .message = "failed" },
	  ST_UNAVAILABLE,
	  "gaccd at " ENDPOINT " does not answer",
	  "it is stopped, hangs" },
	{ 0,
	  { .status = ST_UNAVAILABLE, .message = "Socket closed" },
	  ST_UNAVAILABLE,
	  "gaccd at " ENDPOINT " did not answer: Socket closed",
	  "it may have been restarted just now: repeat" },
	{ 0,
	  { .status = ST_UNAVAILABLE, .message = "connection attempt timed out before receiving SETTINGS frame" },
	  ST_UNAVAILABLE,
	  "gaccd at " ENDPOINT " does not answer",
	  "it is stopped, hangs" },
	{ 0,
	  { .status = ST_UNAVAILABLE },
	  ST_UNAVAILABLE,
	  "gaccd at " ENDPOINT " did not answer",
	  "it may have been restarted" },
	{ 0, { .status = ST_UNAVAILABLE, .message = "own", .hint = "words" }, ST_UNAVAILABLE, "own", "words" },
	{ 0,
	  { .status = ST_CANCELLED, .message = "Cancelled" },
	  ST_UNAVAILABLE,
	  "gaccd at " ENDPOINT " did not answer: Cancelled",
	  "it may have been restarted" },
	{ 0, { .status = ST_CANCELLED, .reason = "CANCELLED", .message = "own" }, ST_CANCELLED, "own", "" },
	{ 0,
	  { .status = ST_STALLED },
	  ST_DEADLINE,
	  "gaccd at " ENDPOINT " did not answer in time",
	  "it is stopped, hangs" },
};

START_TEST(names_the_cause)
{
	struct rpc_failure rpc = cases[_i].before;

	errors[0] = cases[_i].error;
	explain_unreachable(ENDPOINT, &rpc);
	ck_assert_int_eq(rpc.status, cases[_i].status);
	ck_assert_msg(!strncmp(rpc.message, cases[_i].message, strlen(cases[_i].message)), "%s", rpc.message);
	ck_assert_msg(!strncmp(rpc.hint, cases[_i].hint, strlen(cases[_i].hint)), "%s", rpc.hint);
}
END_TEST

START_TEST(names_the_cause_over_tcp)
{
	struct rpc_failure rpc = { .status = ST_UNAVAILABLE, .message = "Connection refused" };

	explain_unreachable("dns:localhost:1", &rpc);
	ck_assert_str_eq(rpc.message, "cannot reach gaccd at dns:localhost:1: Connection refused");
	ck_assert_msg(strstr(rpc.hint, "listen.tcp"), "%s", rpc.hint);
	rpc = (struct rpc_failure){ .status = ST_UNAVAILABLE, .message = "own", .hint = "words" };
	explain_unreachable("dns:localhost:1", &rpc);
	ck_assert_str_eq(rpc.message, "own");
	ck_assert_str_eq(rpc.hint, "words");
}
END_TEST

START_TEST(long_words_are_cut)
{
	struct rpc_failure rpc = { .status = ST_UNAVAILABLE };
	char endpoint[300] = "unix:";

	memset(rpc.message, 'm', sizeof(rpc.message) - 1);
	memset(endpoint + 5, 'e', 100);
	explain_unreachable(endpoint, &rpc);
	ck_assert_uint_eq(strlen(rpc.message), strlen("gaccd at  did not answer: ") + 105 + 250);
}
END_TEST

/* ---- watching ---- */

static gacc_status first_news(gacc_watch *w)
{
	struct pollfd p = { .fd = gacc_watch_fd(w), .events = POLLIN };
	gacc_jobs *jobs;

	ck_assert_int_eq(poll(&p, 1, 10000), 1);
	return gacc_watch_next(w, &jobs);
}

START_TEST(a_watch_ends_before_the_first_answer)
{
	gacc_watch *w;

	errors[0] = _i ? EACCES : ENOENT;
	ck_assert_int_eq(gacc_job_watch(client, "1", &w), GACC_OK);
	ck_assert_int_eq(first_news(w), _i ? GACC_EPERM : GACC_EUNAVAIL);
	ck_assert_ptr_nonnull(strstr(gacc_client_error(client), "cannot reach gaccd at " ENDPOINT));
	ck_assert_uint_eq(attempts, 1);
	gacc_watch_close(w);
}
END_TEST

START_TEST(a_watch_waits_for_who_has_answered)
{
	gacc_watch *w;

	memcpy(errors, (int[]){ ENOENT, EACCES, ECONNREFUSED, EACCES }, sizeof(errors));
	client->answered = true;
	ck_assert_int_eq(gacc_job_watch(client, "1", &w), GACC_OK);
	ck_assert_int_eq(first_news(w), GACC_EPERM); /* not for a moment only */
	ck_assert_uint_eq(attempts, 5);
	gacc_watch_close(w);
}
END_TEST

/* ---- waiting for a job that has ended: Get fails. *out stays as it was, and the status says so. ---- */

static const struct {
	struct rpc_failure wait, get;
	gacc_status want;
} ends[] = {
	{ { .status = ST_JOB_ENDED, .grpc_code = 9 }, { .status = ST_JOB_NOT_FOUND, .grpc_code = 5 }, GACC_ENOTFOUND },
	{ { .status = ST_JOB_ENDED, .grpc_code = 9 }, { .status = ST_UNAVAILABLE, .grpc_code = 14 }, GACC_EUNAVAIL },
	{ { .status = ST_JOB_ENDED, .grpc_code = 9 }, { .status = ST_CANCELLED, .grpc_code = 1 }, GACC_EUNAVAIL },
	{ { .status = ST_CANCELLED, .grpc_code = 1, .reason = "CANCELLED" },
	  { .status = ST_JOB_NOT_FOUND, .grpc_code = 5 },
	  GACC_ENOTFOUND },
	{ { .status = ST_JOB_NOT_FOUND, .grpc_code = 5 }, { .status = ST_OK }, GACC_ENOTFOUND },
};

START_TEST(no_job_no_cancelled)
{
	gacc_jobs unset, *jobs = &unset;

	wait_says = ends[_i].wait;
	get_says = ends[_i].get;
	ck_assert_int_eq(gacc_job_wait(client, "1", 0, 5, 1000, &jobs), ends[_i].want);
	ck_assert_ptr_eq(jobs, &unset);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("client reach");
	TCase *tc = tcase_create("all");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, names_the_cause, 0, sizeof(cases) / sizeof(cases[0]));
	tcase_add_test(tc, long_words_are_cut);
	tcase_add_test(tc, names_the_cause_over_tcp);
	tcase_add_loop_test(tc, a_watch_ends_before_the_first_answer, 0, 2);
	tcase_add_test(tc, a_watch_waits_for_who_has_answered);
	tcase_add_loop_test(tc, no_job_no_cancelled, 0, sizeof(ends) / sizeof(ends[0]));
	suite_add_tcase(suite, tc);
	return suite_run(suite);
}
