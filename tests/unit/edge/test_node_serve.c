/* SPDX-License-Identifier: Apache-2.0 */
/* The coordinator's side of its links to nodes, over real sockets: who is believed, and what a node hears that is back;
 * and on which nodes the parts of a job are. */
#include "../rpc/certificates.h"
#include "cluster/placed_message.h"
#include "cluster/placement_message.h"
#include "edge/hosted_nodes.h"
#include "edge/hosted_life.h"
#include "edge/hosted_ports.h"
#include "edge/node_serve.h"
#include "edge/peer_link.h"
#include "edge/placing.h"
#include "far_rig.h"
#include "gacc/v1/common.pb-c.h"
#include "rpc/upstream.h"
#include "support/suite.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOB = 5, SECOND_JOB = 6 };

static struct hosted *h;

static void on_b_and_c(Gacc__V1__JobSpec *spec)
{
	static char nodes[] = "b,c";
	spec->ranks = 5;
	spec->parts = 2;
	spec->nodes = nodes;
}

static void on_c_and_here(Gacc__V1__JobSpec *spec)
{
	static char nodes[] = "c,a";
	spec->ranks = 5;
	spec->parts = 2;
	spec->nodes = nodes;
}

static void open_job(void)
{
	rig_open();
	free(conf->node.name);
	conf->node.name = strdup("a");
	ck_assert_int_eq(node_serve_new(&d), ST_OK);
	h = rig_job(JOB, getuid(), "ana", on_b_and_c);
}

static void close_job(void)
{
	rig_close();
	node_serve_free(&d);
}

static void setup(void)
{
	open_job();
	far_serve(false);
}

static void teardown(void)
{
	far_close();
	close_job();
}

static void hello(struct far *f, const char *name, uint64_t job)
{
	far_link(f, NULL);
	far_hello(f, name, 1, job);
	FAR_UNTIL(f->n[PEER_WELCOME]);
}

/* As long as a wrong answer would take to come. */
static void a_while(void)
{
	for (int i = 0; i < 50; i++)
		far_turn();
}

/* ---- Hello ---- */

START_TEST(a_node_is_welcomed)
{
	hello(&far[1], "b", 0);
	ck_assert_str_eq(far[1].welcome.coordinator, "a");
	ck_assert_uint_eq(far[1].welcome.term, d.term);
	ck_assert_uint_eq(far[1].welcome.lease_ms, conf->cluster.lease_ms);
	const struct member *m = members_find(d.members, "b");
	ck_assert(m && m->known && m->state == MEMBER_UP);
	ck_assert_uint_eq(m->link, far[1].welcome.link);
	ck_assert_ptr_nonnull(d.node_link[h->part[0].node]);
	rpc_outgoing_cancel(far[1].stream);
	FAR_UNTIL(!d.node_link[h->part[0].node]);
	ck_assert_int_eq(members_find(d.members, "b")->state, MEMBER_SUSPECT);
	ck_assert_uint_eq(members_find(d.members, "b")->link, 0);
}
END_TEST

START_TEST(hello_comes_once)
{
	hello(&far[1], "b", 0);
	far_hello(&far[1], "b", 2, 0);
	FAR_ENDED(&far[1], ST_VERSION_SKEW, "Hello has come twice");
}
END_TEST

START_TEST(hello_comes_first)
{
	const struct peer_message beat = { .kind = PEER_BEAT };
	const struct peer_message welcome = {
		.kind = PEER_WELCOME, .welcome = { .link = 1, .term = 1, .coordinator = "a", .lease_ms = 9000 }
	};
	far_link(&far[1], NULL);
	far_say(&far[1], _i ? &welcome : &beat);
	FAR_ENDED(&far[1], ST_VERSION_SKEW, "something else than Hello has come first");
	ck_assert_uint_eq(d.n_node_links, 0);
}
END_TEST

START_TEST(nodes_send_no_welcome)
{
	const struct peer_message welcome = {
		.kind = PEER_WELCOME, .welcome = { .link = 1, .term = 1, .coordinator = "a", .lease_ms = 9000 }
	};
	hello(&far[1], "b", 0);
	far_say(&far[1], &welcome);
	FAR_ENDED(&far[1], ST_VERSION_SKEW, "Welcome has come from a node");
}
END_TEST

START_TEST(a_newer_link_fences_the_older)
{
	hello(&far[1], "b", 0);
	far_link(&far[2], NULL);
	far_hello(&far[2], "b", 2, 0);
	FAR_ENDED(&far[1], ST_SESSION_FENCED, "a newer link of this node has taken its place");
	FAR_UNTIL(far[2].n[PEER_WELCOME]);
	ck_assert_uint_gt(far[2].welcome.link, far[1].welcome.link);
	ck_assert_ptr_nonnull(d.node_link[h->part[0].node]); /* the end of the older one leaves the newer */
	placing_send(h, daemon_now(&d));
	FAR_UNTIL(far[2].carried[LINK_PLACEMENT]);
}
END_TEST

START_TEST(a_name_that_is_up_is_taken)
{
	hello(&far[1], "b", 0);
	far_link(&far[2], NULL);
	far_hello(&far[2], "b", 1, 0);
	FAR_ENDED(&far[2], ST_ALREADY_EXISTS, "b");
	ck_assert_ptr_nonnull(d.node_link[h->part[0].node]);
}
END_TEST

START_TEST(a_gaccd_that_does_not_coordinate_welcomes_nobody)
{
	d.away = true;
	far_link(&far[1], NULL);
	far_hello(&far[1], "b", 1, 0);
	FAR_ENDED(&far[1], ST_NOT_SUPPORTED, "this gaccd coordinates nothing");
	d.away = false;
}
END_TEST

START_TEST(the_certificate_says_which_node_it_is)
{
	open_job();
	certify_all();
	far_serve(true);
	far_link(&far[1], "a"); /* which is a certificate of node a */
	far_hello(&far[1], "b", 1, 0);
	FAR_ENDED(&far[1], ST_PERMISSION_DENIED, "the certificate is of node a, and Hello.node is b");
	ck_assert(!members_find(d.members, "b")->known);
	teardown();
}
END_TEST

START_TEST(beats_go_to_the_nodes)
{
	struct now now = daemon_now(&d);
	hello(&far[1], "b", 0);
	node_serve_tick(&d, now);
	FAR_UNTIL(far[1].n[PEER_BEAT] == 1);
	now.mono_ns += PEER_LINK_BEAT_NS;
	node_serve_tick(&d, now);
	FAR_UNTIL(far[1].n[PEER_BEAT] == 2);
}
END_TEST

/* ---- what a node hears that is back ---- */

START_TEST(parts_are_placed_again_with_a_link)
{
	hello(&far[1], "b", 0);
	a_while();
	ck_assert_uint_eq(far[1].carried[LINK_PLACEMENT], 0); /* so far nobody wants them */
	placing_send(h, daemon_now(&d));
	FAR_UNTIL(far[1].carried[LINK_PLACEMENT]);
	placing_answered(h, 0);
	ck_assert(!h->part[1].answered);
	hello(&far[2], "c", 0); /* this one has missed it */
	FAR_UNTIL(far[2].carried[LINK_PLACEMENT]);
	ck_assert_uint_eq(far[2].part, 1);
	placing_answered(h, 1);
	rpc_outgoing_cancel(far[2].stream);
	FAR_UNTIL(far[2].ended && !d.node_link[h->part[1].node]);
	hello(&far[2], "c", 0); /* its answer may be old: it answers again */
	FAR_UNTIL(far[2].carried[LINK_PLACEMENT]);
	ck_assert(h->part[0].answered && !h->part[1].answered);
	a_while();
	ck_assert_uint_eq(far[1].carried[LINK_PLACEMENT], 1);
}
END_TEST

START_TEST(a_refused_part_of_a_job_that_has_begun_is_awaited)
{
	const char *reason;
	hello(&far[1], "b", 0);
	h->part[0].wanted = h->params_durable = true;
	placing_refused(h, 0, ST_VERSION_SKEW, "it is too new");
	ck_assert(!h->place.refused && !h->part[0].answered);
	node_serve_tick(&d, daemon_now(&d));
	hosted_state(h, &reason, NULL);
	ck_assert_str_eq(reason, "part 0: node b does not take it: it is too new");
	placing_answered(h, 0);
	ck_assert_ptr_null(h->part[0].refusal);
}
END_TEST

START_TEST(a_part_that_is_wanted_elsewhere_is_dropped)
{
	h->part[0].wanted = true;
	hello(&far[2], "c", JOB); /* which is on b */
	FAR_UNTIL(far[2].carried[LINK_DROP]);
}
END_TEST

START_TEST(parts_of_jobs_that_nobody_knows_stay)
{
	hello(&far[1], "b", JOB + 10);
	h->uuid[15] ^= _i; /* another job has the id */
	if (_i)
		hello(&far[2], "c", JOB);
	a_while();
	ck_assert_uint_eq(far[1].carried[LINK_DROP] + far[2].carried[LINK_DROP], 0);
}
END_TEST

START_TEST(a_part_that_is_no_longer_wanted_is_dropped)
{
	h->part[0].wanted = _i;
	hello(&far[1], "b", JOB);
	FAR_UNTIL(far[1].carried[_i ? LINK_PLACEMENT : LINK_DROP]);
	a_while();
	ck_assert_uint_eq(far[1].carried[LINK_DROP], !_i);
}
END_TEST

/* Of a job whose record cannot be read now: nobody knows whether it is wanted. */
START_TEST(parts_of_a_job_that_is_set_aside_stay)
{
	h->aside = true;
	hello(&far[1], "b", JOB);
	a_while();
	ck_assert_uint_eq(far[1].carried[LINK_DROP], 0);
	h->aside = false;
}
END_TEST

START_TEST(an_end_goes_to_the_parts_node)
{
	hello(&far[1], "b", 0);
	hello(&far[2], "c", 0);
	h->part[1].wanted = true;
	placing_drop(h);
	FAR_UNTIL(far[2].carried[LINK_DROP]);
	ck_assert_uint_eq(far[2].part, 1);
	a_while();
	ck_assert_uint_eq(far[1].carried[LINK_DROP], 0);
}
END_TEST

/* Over a link that loses nothing while it lives, and not where there is none. */
START_TEST(far_placements_are_seldom_repeated)
{
	struct now now = daemon_now(&d);
	hello(&far[1], "b", 0);
	placing_send(h, now);
	FAR_UNTIL(far[1].carried[LINK_PLACEMENT] == 1);
	now.mono_ns += INT64_C(29000000000);
	placing_tick(h, now);
	a_while();
	ck_assert_uint_eq(far[1].carried[LINK_PLACEMENT], 1);
	const int64_t before = h->part[1].sent_ns;
	now.mono_ns += INT64_C(1000000000);
	placing_tick(h, now);
	FAR_UNTIL(far[1].carried[LINK_PLACEMENT] == 2);
	ck_assert_int_eq(h->part[1].sent_ns, before);
}
END_TEST

/* A node elsewhere may come back without them. */
START_TEST(what_a_placement_says_is_kept_for_nodes_elsewhere)
{
	const uint32_t n_words = (uint32_t)control_words(5, h->spec->max_micro_size);
	struct decided k = { .commit = { .job_id = JOB,
					 .window = 3,
					 .outcome = OUTCOME_APPLIED,
					 .micro_size = 1,
					 .next_micro_size = 1,
					 .next.scale.scale = 1 },
			     .counted = calloc(n_words, sizeof(uint64_t)),
			     .n_words = n_words };
	ck_assert(placing_note_window(h, &k));
	placing_answered(h, 0);
	placing_answered(h, 1);
	ck_assert_uint_eq(h->place.n_windows, 1);
}
END_TEST

/* ---- who is believed ---- */

START_TEST(nodes_do_not_send_what_coordinators_send)
{
	static const enum link_kind kinds[] = { LINK_ORDER, LINK_PLACEMENT, LINK_DROP,	  LINK_KEPT,	 LINK_SAVE,
						LINK_BOARD, LINK_LAUNCH,    LINK_LOG_ASK, LINK_NORMS_ASK };
	hello(&far[1], "b", 0);
	far_carry(&far[1], kinds[_i], JOB, 0, "x", 1);
	FAR_ENDED(&far[1], ST_VERSION_SKEW, "which coordinators send");
}
END_TEST

static uint32_t n_taken[LINK_KINDS];
static uint32_t taken_from;

static void count(struct daemon *to, const struct link_message *m)
{
	n_taken[m->kind]++;
	taken_from = m->node;
	ck_assert(!m->away);
}

START_TEST(each_kind_that_goes_up_is_taken)
{
	static const enum link_kind kinds[] = { LINK_REPORT,   LINK_PLACED,    LINK_EVENT,  LINK_TENSORS,
						LINK_SAVED,    LINK_VIEW,      LINK_LEDGER, LINK_BLOB,
						LINK_LAUNCHED, LINK_LOG_PIECE, LINK_NORMS };
	links_take *takes[LINK_KINDS];
	for (int i = 0; i < LINK_KINDS; i++)
		takes[i] = count;
	links_take *const *before = d.link_takes;
	d.link_takes = takes;
	hello(&far[2], "c", 0);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		far_carry(&far[2], kinds[i], JOB, 1, "x", 1);
		FAR_UNTIL(n_taken[kinds[i]] == 1);
		ck_assert_uint_eq(taken_from, h->part[1].node);
	}
	d.link_takes = before;
}
END_TEST

static void refuse_part(struct far *f, uint32_t part)
{
	const struct placed p = { .job_id = JOB,
				  .epoch = coord_epoch(h->coord),
				  .part = part,
				  .refused = true,
				  .status = ST_INTERNAL,
				  .text = "no" };
	size_t n;
	void *bytes = placed_pack(&p, &n);
	far_carry(f, LINK_PLACED, JOB, part, bytes, n);
	free(bytes);
}

START_TEST(a_node_speaks_for_its_own_parts)
{
	hello(&far[1], "b", 0);
	hello(&far[2], "c", 0);
	refuse_part(&far[2], 0); /* c speaks of b's */
	refuse_part(&far[2], 1);
	FAR_UNTIL(h->part[1].answered);
	ck_assert(!h->part[0].answered);
	ck_assert_uint_eq(h->place.refused_part, 1);
	refuse_part(&far[1], 0);
	FAR_UNTIL(h->part[0].answered);
}
END_TEST

/* ---- where parts are ---- */

START_TEST(parts_have_their_nodes)
{
	char name[NODE_NAME_MAX + 1];
	ck_assert_str_eq(members_at(d.members, h->part[0].node - 1)->facts.node, "b");
	ck_assert_str_eq(members_at(d.members, h->part[1].node - 1)->facts.node, "c");
	ck_assert(members_find(d.members, "b")->expected && members_find(d.members, "c")->expected);
	ck_assert_uint_eq(hosted_parts_here(h), 0);
	hosted_node_name(h, 1, name);
	ck_assert_str_eq(name, "c");
	struct hosted *second = rig_job(SECOND_JOB, getuid(), "ana", on_c_and_here);
	ck_assert_uint_eq(second->part[0].node, h->part[1].node);
	ck_assert_uint_eq(second->part[1].node, 0);
	ck_assert_uint_eq(hosted_parts_here(second), 1);
	hosted_node_name(second, 1, name);
	ck_assert_str_eq(name, "a");
	for (uint32_t rank = 0; rank < 5; rank++)
		ck_assert_uint_eq(hosted_part_with(h, rank), rank >= part_block(5, 2, 1));
	placing_answered(second, 0);
	hosted_drop_machines(h); /* c is needed still */
	ck_assert(!members_find(d.members, "b")->expected && members_find(d.members, "c")->expected);
	hosted_drop_machines(second);
	ck_assert(!members_find(d.members, "c")->expected);
}
END_TEST

/* The end of gaccd: no job is looked at that is freed already. */
START_TEST(all_jobs_are_freed_in_turn)
{
	mallopt(M_PERTURB, 165); /* what is freed cannot be used */
	rig_job(SECOND_JOB, getuid(), "ana", on_c_and_here);
	rig_job(SECOND_JOB + 1, getuid(), "ana", on_b_and_c);
	hosted_free_all(&d);
	ck_assert_uint_eq(d.n_jobs, 0);
	ck_assert(!members_find(d.members, "b")->expected && !members_find(d.members, "c")->expected);
}
END_TEST

static enum status check(const char *nodes, uint32_t parts, enum launch_mode launch, const char *text)
{
	char list[64], why[400] = "";
	const char *field = NULL;
	snprintf(list, sizeof(list), "%s", nodes);
	struct job_spec s = *h->spec;
	s.nodes = list;
	s.parts = parts;
	s.launch_mode = launch;
	enum status st = hosted_nodes_check(&d, &s, &field, why, sizeof(why));
	ck_assert_msg(strstr(why, text) != NULL, "%s", why);
	if (st)
		ck_assert_str_eq(field, "nodes");
	return st;
}

START_TEST(new_jobs_get_nodes_that_are_linked)
{
	const enum launch_mode external = h->spec->launch_mode;
	ck_assert_int_ne(external, LAUNCH_DAEMON);
	ck_assert_int_eq(check("a,z", 2, external, "no node z; it has a, b, c"), ST_INVALID_SPEC);
	ck_assert_int_eq(check("a,b", 2, external, "node b is not linked"), ST_UNAVAILABLE);
	hello(&far[1], "b", 0);
	ck_assert_int_eq(check("a,b", 2, external, ""), ST_OK);
	ck_assert_int_eq(check("a", 2, LAUNCH_DAEMON, ""), ST_OK);
	ck_assert_int_eq(check("a,b", 2, LAUNCH_DAEMON, ""), ST_OK);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("node_serve");
	TCase *t = tcase_create("node_serve"), *alone = tcase_create("alone"), *tls = tcase_create("tls");
	suite_add_tcase(s, t);
	suite_add_tcase(s, alone);
	suite_add_tcase(s, tls);
	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_checked_fixture(alone, open_job, close_job);
	tcase_set_timeout(t, 30);
	tcase_set_timeout(tls, 30);
	tcase_add_test(t, a_node_is_welcomed);
	tcase_add_test(t, hello_comes_once);
	tcase_add_loop_test(t, hello_comes_first, 0, 2);
	tcase_add_test(t, nodes_send_no_welcome);
	tcase_add_test(t, a_newer_link_fences_the_older);
	tcase_add_test(t, a_name_that_is_up_is_taken);
	tcase_add_test(t, a_gaccd_that_does_not_coordinate_welcomes_nobody);
	tcase_add_test(tls, the_certificate_says_which_node_it_is);
	tcase_add_test(t, beats_go_to_the_nodes);
	tcase_add_test(t, parts_are_placed_again_with_a_link);
	tcase_add_test(t, a_refused_part_of_a_job_that_has_begun_is_awaited);
	tcase_add_test(t, a_part_that_is_wanted_elsewhere_is_dropped);
	tcase_add_loop_test(t, parts_of_jobs_that_nobody_knows_stay, 0, 2);
	tcase_add_loop_test(t, a_part_that_is_no_longer_wanted_is_dropped, 0, 2);
	tcase_add_test(t, parts_of_a_job_that_is_set_aside_stay);
	tcase_add_test(t, an_end_goes_to_the_parts_node);
	tcase_add_test(t, far_placements_are_seldom_repeated);
	tcase_add_test(alone, what_a_placement_says_is_kept_for_nodes_elsewhere);
	tcase_add_loop_test(t, nodes_do_not_send_what_coordinators_send, 0, 8);
	tcase_add_test(t, each_kind_that_goes_up_is_taken);
	tcase_add_test(t, a_node_speaks_for_its_own_parts);
	tcase_add_test(alone, parts_have_their_nodes);
	tcase_add_test(alone, all_jobs_are_freed_in_turn);
	tcase_add_test(t, new_jobs_get_nodes_that_are_linked);
	return suite_run(s);
}
