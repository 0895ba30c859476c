/* SPDX-License-Identifier: Apache-2.0 */
/* sim_members [-n runs] [-s first seed] [-v]: nodes that connect, fall silent, die and come back, with and without
 * their state_dir; two gaccds with one name; a coordinator that is stopped for a while; half of the network gone. After
 * each event control/members.c must have kept its promises. Prints the first failing seed and exits 1. */
#include "control/members.h"
#include "control/messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS INT64_C(1000000)
#define SECOND (1000 * MS)
#define LEASE (15 * SECOND)
enum { NAMES = 8, PROCS = 12, LINKS = 4096, TERM = 3, MOST_EVENTS = 20 };

/* A gaccd, or one that may be started. */
struct proc {
	int name;
	uint8_t machine_start; /* boot_id */
	uint64_t incarnation;  /* in its state_dir */
	bool alive, frozen, cut;
	uint64_t link;	     /* 0: none, as far as it knows */
	bool link_is_broken; /* the coordinator does not hear what it says over the link */
	int64_t next_ns;     /* dials or beats */
};

struct line {
	bool live;	  /* as far as the coordinator was told */
	bool end_arrived; /* and is to be told */
	bool word_arrived;
	int proc;
};

struct name {
	int64_t counted_ns;   /* since its last word */
	int64_t undivided_ns; /* of that, what counts in any case: while most nodes spoke */
	enum member_state state;
	bool is_known, told_up;
	unsigned told; /* in this minute */
	int64_t minute_ns;
};

static struct world {
	uint64_t seed, random;
	struct now now;
	struct members *members;
	struct proc proc[PROCS];
	int n_procs, n_names;
	struct line line[LINKS]; /* [counter of the link] */
	uint64_t n_lines, closing;
	struct name name[NAMES];
	int64_t stopped_until_ns, ticked_ns;
	bool in_tick, ticked, quiet;
	jmp_buf failed;
} w;
static bool verbose;
static uint64_t n_downs, n_suspects, n_refused, n_replaced, n_isolations, n_events, n_stops;

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...)
{
	va_list list;
	printf("FAILED seed %llu at %lld ms: ", (unsigned long long)w.seed, (long long)(w.now.mono_ns / MS));
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	printf("\n");
	longjmp(w.failed, 1);
}

static uint64_t draw(uint64_t n)
{
	uint64_t x = w.random += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (x ^ (x >> 31)) % n;
}

static bool chance(unsigned one_in)
{
	return !draw(one_in);
}

static const struct member *member_of(int name)
{
	return members_find(w.members, (char[]){ (char)('a' + name), '\0' });
}

static struct line *line_of(uint64_t link)
{
	if (link >> 32 != TERM || (uint32_t)link > w.n_lines || !(uint32_t)link)
		fail("link %llx was never given", (unsigned long long)link);
	return &w.line[(uint32_t)link];
}

/* ---- ports ---- */

static void on_event(void *ctx, bool warning, const char *reason, const char *text)
{
	n_events++;
	if (verbose)
		printf("%9lld %s: %s\n", (long long)(w.now.mono_ns / MS), reason, text);
	if (!strcmp(reason, "CoordinatorIsolated")) {
		n_isolations += warning;
		return;
	}
	if (strcmp(reason, "NodeUp") != 0 && strcmp(reason, "NodeBack") != 0 && strcmp(reason, "NodeSuspect") != 0 &&
	    strcmp(reason, "NodeDown") != 0)
		return;
	if (strncmp(text, "node ", 5) != 0 || text[5] < 'a' || text[5] >= 'a' + w.n_names)
		fail("an event of nobody: %s", text);
	struct name *n = &w.name[text[5] - 'a'];
	n->told_up = !warning;
	if (w.now.mono_ns - n->minute_ns >= 60 * SECOND) {
		n->minute_ns = w.now.mono_ns;
		n->told = 0;
	}
	if (++n->told > MOST_EVENTS)
		fail("too many events of node %c", text[5]);
}

static void on_changed(void *ctx, uint32_t index)
{
	if (index >= members_n(w.members))
		fail("no member %u has changed", index);
}

/* The node learns of it, unless it is cut off. */
static void on_close(void *ctx, uint64_t link)
{
	struct line *l = line_of(link);
	if (!l->live)
		fail("link %u is closed twice", (uint32_t)link);
	if (members_of_link(w.members, link))
		fail("link %u is somebody's while it is closed", (uint32_t)link);
	l->live = false;
	w.closing = link;
	if (w.proc[l->proc].link == link && !w.proc[l->proc].cut)
		w.proc[l->proc].link = 0;
	n_replaced++;
}

/* ---- what must hold ---- */

static void check_links(void)
{
	for (uint64_t i = 1; i <= w.n_lines; i++) {
		const struct member *s = members_of_link(w.members, (uint64_t)TERM << 32 | i);
		if (!!s != w.line[i].live)
			fail("link %u is %s", (unsigned)i, s ? "believed after its end" : "forgotten");
		if (s &&
		    (s->link != ((uint64_t)TERM << 32 | i) || s->facts.node[0] != 'a' + w.proc[w.line[i].proc].name))
			fail("link %u is another node's", (unsigned)i);
	}
	for (uint32_t i = 0; i < members_n(w.members); i++) {
		const struct member *s = members_at(w.members, i);
		if (members_find(w.members, s->facts.node) != s)
			fail("two members have the name %s", s->facts.node);
		if (s->link && !line_of(s->link)->live)
			fail("node %s has a link that has ended", s->facts.node);
		if (s->state == MEMBER_UP && !s->link)
			fail("node %s is UP without a link", s->facts.node);
	}
}

static bool is_divided(void)
{
	unsigned up = 0, silent = 0;
	for (uint32_t i = 0; i < members_n(w.members); i++) {
		up += members_at(w.members, i)->state == MEMBER_UP;
		silent += members_at(w.members, i)->state == MEMBER_SUSPECT;
	}
	return silent >= 2 && silent >= up;
}

/* Only time in which the coordinator ran makes a node silent, and it does so in time. */
static void check_states(bool divided_before, bool divided_now, unsigned downs)
{
	for (int i = 0; i < w.n_names; i++) {
		const struct member *s = member_of(i);
		struct name *n = &w.name[i];
		if (!s)
			continue;
		if (s->state != n->state && s->state == MEMBER_DOWN) {
			n_downs++;
			if (!w.in_tick || n->counted_ns < LEASE)
				fail("node %c is DOWN after %lld ms", 'a' + i, (long long)(n->counted_ns / MS));
			if (divided_now && downs > 0)
				fail("node %c is DOWN while most nodes are silent", 'a' + i);
		}
		n_suspects += s->state != n->state && s->state == MEMBER_SUSPECT;
		if (s->state == MEMBER_UP && n->counted_ns >= MEMBERS_SUSPECT_NS)
			fail("node %c is UP after %lld silent ms", 'a' + i, (long long)(n->counted_ns / MS));
		if (s->state == MEMBER_SUSPECT && n->undivided_ns >= LEASE + SECOND && !divided_before && !divided_now)
			fail("node %c is SUSPECT after %lld silent ms", 'a' + i, (long long)(n->undivided_ns / MS));
		n->state = s->state;
	}
}

static void heard(int name)
{
	const struct member *s = member_of(name);
	w.name[name].counted_ns = w.name[name].undivided_ns = 0;
	w.name[name].is_known = true;
	if (!s || s->state != MEMBER_UP || s->heard_ns != w.now.mono_ns)
		fail("node %c has spoken and is not UP", 'a' + name);
	w.name[name].state = MEMBER_UP;
}

/* ---- the coordinator ---- */

static struct member_facts facts_of(const struct proc *p)
{
	struct member_facts f = { .node = { (char)('a' + p->name) },
				  .boot_id = { p->machine_start },
				  .incarnation = p->incarnation,
				  .protocol_min = 1,
				  .protocol_max = 2,
				  .data_address = "10.0.0.1",
				  .term_seen = TERM };
	return f;
}

static void hello(int index)
{
	struct proc *p = &w.proc[index];
	struct member_facts f = facts_of(p);
	const struct member *s = member_of(p->name);
	char why[300];
	uint64_t link = 0, old = s ? s->link : 0;
	uint32_t at;
	const bool is_up = s && s->state == MEMBER_UP;
	const bool is_later = is_up && s->facts.boot_id[0] == p->machine_start && p->incarnation > s->facts.incarnation;
	const bool is_ahead = chance(50);
	f.term_seen += is_ahead;
	w.closing = 0;
	enum status st = members_hello(w.members, &f, w.now, &link, &at, why, sizeof(why));
	if (!st != (!is_ahead && (!is_up || is_later)))
		fail("a Hello of node %c is %s", 'a' + p->name, st ? why : "accepted");
	if (st) {
		n_refused++;
		if (w.closing)
			fail("a Hello that was refused has closed a link");
		return;
	}
	if ((uint32_t)link != w.n_lines + 1 || link >> 32 != TERM || w.n_lines + 2 >= LINKS)
		fail("link %llx after %llu", (unsigned long long)link, (unsigned long long)w.n_lines);
	if (w.closing != old)
		fail("node %c: link %u is closed, and %u was live", 'a' + p->name, (uint32_t)w.closing, (uint32_t)old);
	w.line[++w.n_lines] = (struct line){ .live = true, .proc = index };
	p->link = link;
	p->link_is_broken = false;
	heard(p->name);
}

/* What has arrived is read; a link that is no longer live is nobody's. */
static void read_all(void)
{
	for (uint64_t i = 1; i <= w.n_lines; i++) {
		struct line *l = &w.line[i];
		const uint64_t link = (uint64_t)TERM << 32 | i;
		if (l->word_arrived) {
			l->word_arrived = false;
			bool believed = members_heard(w.members, link, w.now, &(struct member_beat){ 1, 1 });
			if (believed != l->live)
				fail("a word over link %u is %s", (unsigned)i, believed ? "believed" : "not believed");
			if (believed)
				heard(w.proc[l->proc].name);
		}
		if (l->end_arrived) {
			l->end_arrived = false;
			if (members_link_gone(w.members, link, "", w.now) != l->live)
				fail("the end of link %u", (unsigned)i);
			l->live = false;
		}
	}
}

static void tick(void)
{
	int64_t more = w.ticked ? w.now.mono_ns - w.ticked_ns : 0;
	const bool before = members_isolated(w.members); /* what is_divided() was after the last tick */
	unsigned downs = 0;
	more = more < SECOND ? more : SECOND;
	w.ticked = w.in_tick = true;
	w.ticked_ns = w.now.mono_ns;
	for (int i = 0; i < w.n_names; i++) {
		w.name[i].counted_ns += more;
		w.name[i].undivided_ns += before ? 0 : more;
	}
	members_tick(w.members, w.now);
	for (int i = 0; i < w.n_names; i++)
		downs += member_of(i) && member_of(i)->state == MEMBER_DOWN && w.name[i].state != MEMBER_DOWN;
	if (is_divided() != members_isolated(w.members))
		fail("isolated is %d", members_isolated(w.members));
	check_states(before, is_divided(), downs);
	w.in_tick = false;
}

/* ---- the nodes ---- */

static void end_process(struct proc *p, bool unseen)
{
	if (p->link && !unseen && !p->cut && !p->link_is_broken)
		line_of(p->link)->end_arrived = true;
	p->alive = p->frozen = false;
	p->link = 0;
}

static void start_process(struct proc *p)
{
	if (chance(6))
		p->incarnation = 0; /* its state_dir is lost */
	p->incarnation++;
	p->alive = true;
	p->next_ns = w.now.mono_ns;
}

static void fault(void)
{
	struct proc *p = &w.proc[draw((uint64_t)w.n_procs)];
	switch (draw(10)) {
	case 0:
	case 1:
		end_process(p, false);
		break;
	case 2: /* the machine */
		end_process(p, true);
		p->machine_start = (uint8_t)(10 + draw(200));
		break;
	case 3:
		p->frozen = p->alive && !p->frozen;
		break;
	case 4: /* a link that breaks, which only its node notices */
		if (p->link)
			p->link = 0;
		break;
	case 5:
	case 6:
		p->cut = !p->cut;
		break;
	case 7:
		for (int i = 0; i < w.n_procs; i++)
			w.proc[i].cut = chance(2);
		break;
	case 8:
		for (int i = 0; i < w.n_procs; i++)
			w.proc[i].cut = false;
		break;
	default:
		w.stopped_until_ns = w.now.mono_ns + (int64_t)draw(60) * SECOND;
		n_stops++;
	}
}

static void live(int index)
{
	struct proc *p = &w.proc[index];
	const bool stopped = w.now.mono_ns < w.stopped_until_ns;
	if (!p->alive && (w.quiet || chance(40)))
		start_process(p);
	if (w.quiet)
		p->frozen = p->cut = false;
	if (!p->alive || p->frozen || w.now.mono_ns < p->next_ns)
		return;
	p->next_ns = w.now.mono_ns + SECOND;
	if (p->link && p->cut && chance(10))
		p->link = 0; /* gives up */
	if (p->link && !line_of(p->link)->live && !p->cut)
		p->link = 0; /* now it learns that the coordinator has closed it */
	if (p->cut)
		return;
	if (p->link) {
		line_of(p->link)->word_arrived = true;
	} else if (!stopped) {
		p->next_ns = w.now.mono_ns + (int64_t)(100 + draw(900)) * MS;
		hello(index);
	}
}

static void step(void)
{
	w.now.mono_ns += (int64_t)(20 + draw(300)) * MS;
	w.now.unix_ns = w.now.mono_ns;
	if (!w.quiet && chance(25))
		fault();
	for (int i = 0; i < w.n_procs; i++)
		live(i);
	if (w.now.mono_ns < w.stopped_until_ns)
		return;
	const bool late = chance(4); /* the tick before what has arrived */
	if (late)
		tick();
	read_all();
	if (!late)
		tick();
	if (w.n_lines && chance(5)) { /* of an older link, or of an earlier term */
		uint64_t i = 1 + draw(w.n_lines);
		if (members_heard(w.members, (uint64_t)(TERM - 1) << 32 | i, w.now, NULL))
			fail("a link of another term is believed");
		if (!w.line[i].live && members_heard(w.members, (uint64_t)TERM << 32 | i, w.now, NULL))
			fail("link %u is believed after its end", (unsigned)i);
	}
	check_links();
}

/* ---- a run ---- */

static void begin(uint64_t seed)
{
	memset(&w, 0, sizeof(w));
	w.seed = w.random = seed;
	w.now = (struct now){ 1000 * SECOND, 1000 * SECOND };
	w.n_names = 1 + (int)draw(NAMES);
	w.n_procs = w.n_names + (int)draw(3);
	for (int i = 0; i < w.n_procs; i++)
		w.proc[i] = (struct proc){ .name = i < w.n_names ? i : (int)draw((uint64_t)w.n_names),
					   .machine_start = (uint8_t)(i < w.n_names ? i : (int)draw(10)) };
	w.members = members_new(&(struct members_ports){ NULL, on_event, on_changed, on_close }, "head", LEASE, TERM);
	for (int i = 0; i < w.n_names; i++)
		if (chance(3))
			members_expect(w.members, (char[]){ (char)('a' + i), '\0' }, true, w.now);
	for (int i = 0; i < w.n_names; i++)
		w.name[i].state = MEMBER_SUSPECT;
}

/* When nothing happens any more, one gaccd of each name is UP, and operators know it. */
static void settle(void)
{
	w.quiet = true;
	w.stopped_until_ns = 0;
	for (int64_t end = w.now.mono_ns + 80 * SECOND; w.now.mono_ns < end;)
		step();
	for (int i = 0; i < w.n_names; i++) {
		const struct member *s = member_of(i);
		if (!s || s->state != MEMBER_UP || !s->link)
			fail("node %c is not UP in the end", 'a' + i);
		if (!w.name[i].told_up)
			fail("nobody was told that node %c is UP", 'a' + i);
	}
}

static bool run(uint64_t seed)
{
	begin(seed);
	if (setjmp(w.failed)) {
		members_free(w.members);
		return false;
	}
	for (uint64_t n = 200 + draw(1500); n; n--)
		step();
	settle();
	members_free(w.members);
	return true;
}

int main(int argc, char **argv)
{
	uint64_t runs = 1000, first = 1;
	int opt;
	while ((opt = getopt(argc, argv, "n:s:v")) != -1) {
		if (opt == 'n')
			runs = strtoull(optarg, NULL, 10);
		else if (opt == 's')
			first = strtoull(optarg, NULL, 10);
		else if (opt == 'v')
			verbose = true;
		else
			return 2;
	}
	for (uint64_t seed = first; seed < first + runs; seed++)
		if (!run(seed))
			return 1;
	printf("%llu runs, %llu stops, %llu nodes SUSPECT, %llu DOWN, %llu links replaced, %llu Hellos refused, %llu "
	       "isolations, %llu events: all invariants held\n",
	       (unsigned long long)runs, (unsigned long long)n_stops, (unsigned long long)n_suspects,
	       (unsigned long long)n_downs, (unsigned long long)n_replaced, (unsigned long long)n_refused,
	       (unsigned long long)n_isolations, (unsigned long long)n_events);
	return 0;
}
