/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a cluster as their coordinator sees them: which are there, which are silent, and by which link each
 * speaks. Pure: no clock, no socket; the caller says what has happened and when. One thread.
 *
 * | state   | event                                                        | next    | what happens                |
 * |---------|--------------------------------------------------------------|---------|-----------------------------|
 * | -       | Hello                                                        | UP      | NodeUp                      |
 * | -       | a job's part is placed there (members_expect)                | SUSPECT | its lease runs from now     |
 * | UP      | no word for MEMBERS_SUSPECT_NS, or its link ends             | SUSPECT | NodeSuspect; jobs wait      |
 * | UP      | Hello of a later life: same machine start, higher incarnation| UP      | its old link is closed      |
 * | UP      | any other Hello under its name                               | UP      | that Hello is refused       |
 * | SUSPECT | a word over its link; Hello (an old link is closed)          | UP      | NodeBack                    |
 * | SUSPECT | no word for the lease, and the coordinator is not isolated   | DOWN    | NodeDown; jobs wait for it  |
 * | DOWN    | a word over its link; Hello (an old link is closed)          | UP      | NodeBack                    |
 * | any     | drain                                                        | same    | it gets no new parts        |
 *
 * A lease counts only time in which the coordinator ran and read: a tick counts one second at most, so that a
 * coordinator which was stopped for a minute finds nobody silent. While half or more of the nodes (two at least) that
 * are not DOWN are SUSPECT, the network of the coordinator is the likelier culprit: it is isolated, the lease of none
 * runs, and one event says so. A node that is expected and has not said Hello counts among them.
 *
 * No safety rests on this: a job is decided by its journal, and a node acts on durable orders alone.
 */
#ifndef GACC_CONTROL_MEMBERS_H
#define GACC_CONTROL_MEMBERS_H

#include "proto/status.h"

#include "base/node_name.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct now;
struct members;

#define MEMBER_NAME (NODE_NAME_MAX + 1) /* bytes of a node's name, with its end */
#define MEMBER_ADDRESS 48		/* bytes of an IP address, with its end */
#define MEMBERS_MAX 1024
#define MEMBERS_SUSPECT_NS (INT64_C(3) * 1000000000)
#define MEMBERS_TICK_NS (INT64_C(1) * 1000000000) /* a tick counts so much at most, and is due as often at least */
/* versions of peer.proto that this gaccd speaks as a coordinator */
#define MEMBERS_PROTOCOL_MIN 1
#define MEMBERS_PROTOCOL_MAX 2

/* Of a node, at its Hello. */
struct member_facts {
	char node[MEMBER_NAME]; /* node_name_ok */
	uint8_t boot_id[16];	/* which start of the machine this is */
	uint64_t incarnation;	/* of its gaccd: grows with each start, unless its state_dir was lost; at least 1 */
	uint32_t protocol_min, protocol_max; /* 1 <= min <= max */
	char version[32];		     /* of gaccd, for people */
	char coll[32];			     /* what its engines speak to each other: "gloo/4" */
	char kernels[32];		     /* for people: "avx2" */
	char data_address[MEMBER_ADDRESS];   /* an IP address: engines of other nodes reach its engines there */
	uint32_t kernels_revision;	     /* KERNELS_REVISION of its build; at least 1 */
	uint32_t cpus;
	uint64_t memory_limit; /* bytes of shared memory that jobs may have there */
	uint64_t memory_used;
	uint64_t term_seen; /* the highest of any coordinator that it has heard of; 0: none */
};

/* What a node repeats while its link is up, because it changes. */
struct member_beat {
	uint64_t memory_limit, memory_used;
};

#define MEMBER_END 160
#define MEMBER_REASON (MEMBER_END + 40)

enum member_state { MEMBER_UP, MEMBER_SUSPECT, MEMBER_DOWN };

struct member {
	struct member_facts facts; /* the newest; of one that is not `known`, its name only */
	enum member_state state;
	int64_t since_ns, since_unix_ns; /* of the state: mono_ns, unix_ns */
	int64_t heard_ns, heard_unix_ns; /* its last word; 0: none in this term */
	int64_t silent_ns;		 /* what counts of the time since then */
	uint64_t link;			 /* 0: none */
	char end[MEMBER_END];		 /* why its last link has ended; "": that is not known */
	bool known;			 /* it has said Hello in this term */
	bool expected;			 /* parts of jobs are placed there */
	bool drained;
};

/* None may call back into this room before it has returned. */
struct members_ports {
	void *ctx;
	/* Something that an operator wants to read: NodeUp, NodeSuspect, NodeDown, NodeBack, CoordinatorIsolated, and
	 * of Hellos that were refused NodeNameTwice, NodeAhead, NodeRefused. At most ten in a minute of one node, and
	 * of refused Hellos ten of each kind; the last state of a node is told in any case, up to a minute later. */
	void (*event)(void *ctx, bool warning, const char *reason, const char *text);
	/* The state, the link, the facts or a flag of a member differ; not told of beats. */
	void (*changed)(void *ctx, uint32_t index);
	/* This link is to be ended: a newer one takes its place. It is nobody's from here on. */
	void (*close_link)(void *ctx, uint64_t link);
};

/* Of the coordinator with this name; term: its own, 1 to UINT32_MAX. A lease below MEMBERS_SUSPECT_NS counts as so
 * much. NULL: no memory, which nothing else here asks for. */
struct members *members_new(const struct members_ports *, const char *own_name, int64_t lease_ns, uint64_t term);
void members_free(struct members *); /* takes NULL; links are not closed */

/* A node says Hello, with valid facts. ST_OK: the link that it has come by gets the number *out_link, which is higher
 * than that of any before, of this term or an earlier one; *out_index is the node's. Else `why` is one sentence for the
 * node's log, and the node may try again at any time:
 * ST_VERSION_SKEW      no common protocol
 * ST_ALREADY_EXISTS    the coordinator's name, or that of a node which is UP. A node whose link broke and which the
 *                      coordinator still believes to be UP is refused for up to MEMBERS_SUSPECT_NS
 * ST_STALE_TERM        it has seen a higher term than ours; never believed, because a wrong node could say anything
 * ST_RESOURCE_EXHAUSTED MEMBERS_MAX nodes are known, and none of them can be forgotten */
enum status members_hello(struct members *, const struct member_facts *, struct now, uint64_t *out_link,
			  uint32_t *out_index, char *why, size_t n_why);
/* Something has come over this link, a beat or anything else (NULL). false: the link is nobody's any more, and the
 * message is not to be believed. */
bool members_heard(struct members *, uint64_t link, struct now, const struct member_beat *);
/* The link has ended; why, for people, or "". false: it was nobody's any more. */
bool members_link_gone(struct members *, uint64_t link, const char *why, struct now);
/* Each MEMBERS_TICK_NS or more often, after what can be read has been read. */
void members_tick(struct members *, struct now);
/* Whether parts of live jobs are placed on this node. Of the coordinator itself: nothing. ST_INVALID_ARGUMENT: no
 * node's name; ST_RESOURCE_EXHAUSTED. */
enum status members_expect(struct members *, const char *name, bool, struct now);
/* ST_INVALID_ARGUMENT: no such member. */
enum status members_drain(struct members *, const char *name, bool);

/* Lent until the next call that changes something. A member keeps its index, unless it is DOWN, not expected, not
 * drained, and its place is needed for a new one. */
uint32_t members_n(const struct members *);
const struct member *members_at(const struct members *, uint32_t index);
const struct member *members_find(const struct members *, const char *name); /* NULL: none */
const struct member *members_of_link(const struct members *, uint64_t link); /* NULL: nobody's */
bool members_isolated(const struct members *);
/* Why it is not UP, one clause: "no word for 4 s"; "" of one that is UP. */
void members_reason(const struct members *, const struct member *, char out[MEMBER_REASON]);
const char *member_state_name(enum member_state); /* "UP"; static */

#endif
