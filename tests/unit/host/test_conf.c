/* SPDX-License-Identifier: Apache-2.0 */
#include "host/conf.h"

#include "support/suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char file[64];
static char why[512];

static void write_file(const char *text)
{
	strcpy(file, "/tmp/gacc-conf-XXXXXX");
	int fd = mkstemp(file);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static struct conf *load(const char *text, const char *const *set, const char *const *env)
{
	struct conf *c = NULL;
	write_file(text);
	struct conf_sources from = { file, set, (char *const *)env };
	enum status st = conf_load(&from, &c, why, sizeof(why));
	unlink(file);
	ck_assert_msg(st == ST_OK, "%s", why);
	return c;
}

static void refused(const char *text, const char *const *set, const char *const *env, const char *want)
{
	struct conf *c = NULL;
	char full[600];
	write_file(text);
	struct conf_sources from = { file, set, (char *const *)env };
	ck_assert_int_eq(conf_load(&from, &c, why, sizeof(why)), ST_INVALID_CONFIG);
	ck_assert_ptr_null(c);
	unlink(file);
	snprintf(full, sizeof(full), "%s%s", *want == ':' ? file : "", want);
	ck_assert_str_eq(why, full);
}

START_TEST(defaults_make_a_daemon)
{
	char host[256];
	struct conf *c = load("", NULL, NULL);
	gethostname(host, sizeof(host));
	ck_assert_str_eq(c->node.name, host);
	ck_assert_str_eq(c->listen.socket, "/run/gaccd/gaccd.sock");
	ck_assert_str_eq(c->listen.attach_socket, "/run/gaccd/gaccd.sock.attach");
	ck_assert_uint_eq(c->listen.mode, 0660);
	ck_assert_str_eq(c->listen.tcp, "");
	ck_assert_str_eq(c->tls.cert, "");
	ck_assert_uint_gt(c->limits.host_memory, 1 << 20);
	ck_assert_uint_eq(c->limits.jobs, 32);
	ck_assert_int_eq(c->log.level, LOG_INFO);
	ck_assert_int_eq(c->log.format, LOG_TEXT);
	ck_assert_str_eq(c->state_dir, "/var/lib/gaccd");
	ck_assert_uint_eq(c->engine.threads, 0);
	ck_assert_str_eq(c->engine.kernels, "auto");
	conf_free(c);
}
END_TEST

START_TEST(a_default_follows_what_it_depends_on)
{
	struct conf *c = load("limits: { jobs: 2 }", NULL, NULL);
	ck_assert_uint_eq(c->limits.jobs_per_user, 2);
	conf_free(c);
	c = load("limits: { jobs: 9 }", NULL, NULL);
	ck_assert_uint_eq(c->limits.jobs_per_user, 8);
	conf_free(c);
}
END_TEST

START_TEST(command_line_over_environment_over_file)
{
	static const char text[] = "limits: { jobs: 10, jobs_per_user: 3, host_memory: 64GiB }\nlog: { level: debug }\n"
				   "runtime_dir: /tmp/x\n";
	static const char *const env[] = { "HOME=/root", "GACC_LIMITS_JOBS=11", "GACC_LIMITS_JOBS_PER_USER=4",
					   "GACC_JOB_ID=7" /* a trainer's: not ours */, NULL };
	static const char *const set[] = { "limits.jobs=12", "log.format=json", NULL };
	struct conf *c = load(text, set, env);
	ck_assert_uint_eq(c->limits.jobs, 12);
	ck_assert_uint_eq(c->limits.jobs_per_user, 4);
	ck_assert_uint_eq(c->limits.host_memory, UINT64_C(64) << 30);
	ck_assert_int_eq(c->log.level, LOG_DEBUG);
	ck_assert_int_eq(c->log.format, LOG_JSON);
	ck_assert_str_eq(c->listen.socket, "/tmp/x/gaccd.sock");

	char *out = NULL, want[128];
	size_t n;
	FILE *f = open_memstream(&out, &n);
	conf_print(c, f);
	fclose(f);
	ck_assert_ptr_nonnull(strstr(out, "  jobs: 12  # --set\n"));
	ck_assert_ptr_nonnull(strstr(out, "  jobs_per_user: 4  # GACC_LIMITS_JOBS_PER_USER\n"));
	snprintf(want, sizeof(want), "  level: debug  # %s:2:15\n", file);
	ck_assert_ptr_nonnull(strstr(out, want));
	ck_assert_ptr_nonnull(strstr(out, "  socket: \"/tmp/x/gaccd.sock\"  # default\n"));
	ck_assert_ptr_nonnull(strstr(out, "  format: json  # --set\n"));
	conf_free(c);
	c = load(out, NULL, NULL); /* what it prints is a configuration */
	ck_assert_uint_eq(c->limits.jobs, 12);
	conf_free(c);
	free(out);
}
END_TEST

START_TEST(what_is_resolved_prints_as_written)
{
	struct conf *c = load("log: { format: auto }", NULL, NULL);
	char *out = NULL;
	size_t n;
	FILE *f = open_memstream(&out, &n);
	conf_print(c, f);
	fclose(f);
	ck_assert_ptr_nonnull(strstr(out, "  format: auto  # "));
	ck_assert_int_eq(c->log.format, LOG_TEXT);
	conf_free(c);
	free(out);
}
END_TEST

static bool collect(void *arg, const char *key, const char *value, const char *origin)
{
	fprintf(arg, "%s=%s (%s)\n", key, value, origin);
	return strcmp(key, "log.format") != 0; /* and none after it */
}

START_TEST(each_key_with_value_and_origin)
{
	static const char *const set[] = { "listen.group=a \"b\"", "history.events=5", NULL };
	struct conf *c = load("", set, NULL);
	char *out = NULL;
	size_t n;
	FILE *f = open_memstream(&out, &n);
	ck_assert(!conf_each(c, collect, f));
	fclose(f);
	ck_assert_ptr_nonnull(strstr(out, "\nlisten.mode=0660 (default)\nlisten.group=a \"b\" (--set)\n"));
	ck_assert_ptr_nonnull(strstr(out, "\nhistory.windows=1000 (default)\nhistory.events=5 (--set)\n"));
	ck_assert_str_eq(out + n - strlen("log.format=auto (default)\n"), "log.format=auto (default)\n");
	conf_free(c);
	free(out);
}
END_TEST

START_TEST(a_missing_file_is_an_error_only_if_it_was_named)
{
	struct conf *c = NULL;
	struct conf_sources from = { "/nonexistent/gaccd.yaml", NULL, NULL };
	ck_assert_int_eq(conf_load(&from, &c, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_str_eq(why, "/nonexistent/gaccd.yaml: No such file or directory");
	from.file = "/";
	ck_assert_int_eq(conf_load(&from, &c, why, sizeof(why)), ST_IO_ERROR);
	ck_assert_ptr_null(c);
}
END_TEST

START_TEST(mistakes_are_named_with_their_place)
{
	static const char *const bad_env[] = { "GACC_LIMITS_JOBS=many", NULL };
	static const char *const bad_set[] = { "limit.jobs=1", NULL }, *const no_value[] = { "limits.jobs", NULL };
	static const char *const tcp[] = { "GACC_LISTEN_TCP=127.0.0.1:7420", NULL };
	refused("listen:\n  sokcet: x\n", NULL, NULL,
		":2:3: unknown key \"sokcet\" in listen; did you mean \"socket\"?");
	refused("", NULL, bad_env, "GACC_LIMITS_JOBS: limits.jobs: \"many\" is not a whole number >= 0");
	refused("", bad_set, NULL, "--set: unknown key \"limit\"; did you mean \"limits\"?");
	refused("", no_value, NULL, "--set: \"limits.jobs\" is not KEY=VALUE");
	refused("listen:\n  tcp: 0.0.0.0:1\n", NULL, NULL,
		":2:8: listen.tcp: TCP on 0.0.0.0:1 needs tls.cert, tls.key and tls.ca, or listen.token_file");
	refused("", NULL, tcp,
		"GACC_LISTEN_TCP: listen.tcp: TCP on 127.0.0.1:7420 needs tls.cert, tls.key and tls.ca, or "
		"listen.token_file");
	refused("listen: { tcp: here, token_file: /t }", NULL, NULL, ":1:16: listen.tcp: \"here\" must be HOST:PORT");
	refused("listen: { tcp: \"0.0.0.0:7\", token_file: /t }", NULL, NULL,
		":1:16: listen.tcp: TCP on 0.0.0.0:7 needs tls.cert, tls.key and tls.ca; a token alone is allowed on "
		"127.0.0.1 and [::1] only");
	refused("cluster: { coordinator: \"localhost:7\", token_file: /t }", NULL, NULL,
		":1:25: cluster.coordinator: a link to localhost:7 needs tls.cert, tls.key and tls.ca; a token alone "
		"is "
		"allowed on 127.0.0.1 and [::1] only");
	refused("cluster: { coordinator: here }", NULL, NULL, ":1:25: cluster.coordinator: \"here\" must be HOST:PORT");
	refused("cluster: { coordinator: \"a:7\" }", NULL, NULL,
		":1:25: cluster.coordinator: a link to a:7 needs tls.cert, tls.key and tls.ca, or cluster.token_file");
	refused("cluster: { coordinator: \"a:7\", token_file: /t }\nnode: { name: a b }", NULL, NULL,
		":2:15: node.name: \"a b\" must be 1 to 64 letters, digits and .-_ in a cluster");
	refused("node: { data_address: \"::1\" }\ncluster: { coordinator: \"10.0.0.1:17420\" }\ntls: { cert: /c, key: "
		"/k, ca: /a }",
		NULL, NULL,
		":1:23: node.data_address: the engines of other nodes cannot reach this one's at ::1; set it to this "
		"node's "
		"IP address on the data network, or name the coordinator by 127.0.0.1 or [::1] if it is on this "
		"machine, too");
	/* a name is none of this machine's here either: it may be found in the DNS */
	refused("cluster: { coordinator: \"localhost:7\" }\nnode: { data_address: 127.0.0.1 }\ntls: { cert: /c, key: "
		"/k, "
		"ca: /a }",
		NULL, NULL,
		":2:23: node.data_address: the engines of other nodes cannot reach this one's at 127.0.0.1; set it to "
		"this "
		"node's IP address on the data network, or name the coordinator by 127.0.0.1 or [::1] if it is on this "
		"machine, too");
	const char *const hidden[] = { "0.0.0.0", "::", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1" };
	for (size_t i = 0; i < 4; i++) {
		char text[200], said[300];
		snprintf(said, sizeof(said),
			 ":1:23: node.data_address: the engines of other nodes cannot reach this one's at %s; set it "
			 "to this node's IP address on the data network, or name the coordinator by 127.0.0.1 or [::1] "
			 "if it is on this machine, too",
			 hidden[i]);
		snprintf(text, sizeof(text),
			 "node: { data_address: \"%s\" }\ncluster: { coordinator: \"10.0.0.1:17420\" }\ntls: { cert: "
			 "/c, key: /k, ca: /a }",
			 hidden[i]);
		refused(text, NULL, NULL, said);
	}
	refused("node: { data_address: host }", NULL, NULL,
		":1:23: node.data_address: \"host\" must be an IP address, 10.0.0.7 or fd00::7");
	refused("tls: { cert: a, ca: b }", NULL, NULL, ":1:14: tls: cert, key and ca belong together: key is missing");
	refused("tls: { ca: b }", NULL, NULL, ":1:12: tls: cert, key and ca belong together: cert is missing");
	refused("limits: { jobs: 2, jobs_per_user: 3 }", NULL, NULL,
		":1:35: limits.jobs_per_user: 3 must not exceed limits.jobs (2)");
}
END_TEST

int main(void)
{
	Suite *s = suite_create("conf");
	TCase *c = tcase_create("conf");
	suite_add_tcase(s, c);
	tcase_add_test(c, defaults_make_a_daemon);
	tcase_add_test(c, a_default_follows_what_it_depends_on);
	tcase_add_test(c, command_line_over_environment_over_file);
	tcase_add_test(c, what_is_resolved_prints_as_written);
	tcase_add_test(c, each_key_with_value_and_origin);
	tcase_add_test(c, a_missing_file_is_an_error_only_if_it_was_named);
	tcase_add_test(c, mistakes_are_named_with_their_place);
	return suite_run(s);
}
