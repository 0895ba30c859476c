/* SPDX-License-Identifier: Apache-2.0 */
/* A job on many nodes in one process: 1 to 16 parts, placed on 1 to 16 nodes, the real coordinator, the real job of
 * each part and the real messages between them, with a fake clock, network, store, engines and trainers.
 *
 * Each part is a `struct sim`, whose engine, trainers and streams are those of the simulation of one node
 * (sim_engine.c, sim_trainer.c, sim_stream.c). What sim.c is to them there cluster*.c is here. One more `struct sim`,
 * `whole`, is the job as one node would see it: sim_check.c looks at that, too. Everything random comes from one seed.
 */
#ifndef GACC_TESTS_CLUSTER_H
#define GACC_TESTS_CLUSTER_H

#include "sim.h"

#define CLUSTER_MAX 16 /* nodes, and parts */
#define CLUSTER_RANKS (CLUSTER_MAX * SIM_MAX_RANKS)
#define CLUSTER_WORDS CLUSTER_RANKS /* max_micro_size is 64 at most */
#define CLUSTER_COORDS 16	    /* that run at once */
#define CLUSTER_EXCHANGES 4096

/* Behind struct event's own types, which are those of one part. */
enum item_kind { ITEM_SIM, ITEM_EXCHANGE, ITEM_STORE, ITEM_NODE_UP, ITEM_GACCD_UP, ITEM_TICK, ITEM_FAULT, ITEM_AIMED };

/* An event of the cluster. */
struct item {
	struct event e; /* first: struct sim's code knows no more */
	enum item_kind kind;
	struct sim *of;	   /* its part */
	uint32_t node;	   /* ITEM_*_UP */
	uint64_t *counted; /* ITEM_STORE, EV_PERSISTED: of the whole job */
	uint32_t exchange; /* ITEM_EXCHANGE */
	void *bytes;	   /* ITEM_SIM, EV_REPORT and EV_ORDER: the message */
	size_t n_bytes;
};

struct node {
	bool up, gaccd_up; /* the machine; gaccd on it */
	uint64_t gaccd_life;
	int64_t deaf_until, mute_until; /* the network brings nothing to it, takes nothing from it */
};

/* A coordinator lives as long as the gaccd that it is in, also when another has taken over. */
struct coordinator {
	struct cluster *cluster;
	struct coord *c; /* NULL: a free place */
	uint64_t term;
	uint32_t node;
};

/* The engines' collective of one attempt. An engine that dies or leaves breaks it for those that have not finished;
 * another life of it is refused. */
struct exchange {
	uint64_t term, attempt;
	uint32_t entered, finished; /* bits of parts */
	bool broken;
	struct sim_sums sums[CLUSTER_MAX];
};

struct cluster {
	struct sim whole; /* first: cluster_of(). Chance, time, spec, log, updates, what operators want */
	struct sim part[CLUSTER_MAX];
	uint32_t n_parts, n_nodes;
	uint32_t node_of[CLUSTER_MAX];		      /* of a part */
	uint32_t rank_of[CLUSTER_MAX][SIM_MAX_RANKS]; /* the job's number of a part's rank */
	struct part_ranks ranks[CLUSTER_MAX];
	struct node node[CLUSTER_MAX];
	int64_t fault_every; /* twice the mean time between two faults */
	uint32_t home;	     /* the node whose gaccd starts a coordinator */
	struct coordinator coord[CLUSTER_COORDS];
	struct exchange exchange[CLUSTER_EXCHANGES];
	uint32_t n_exchanges;
	struct cluster_member {
		struct engine_command go;
		uint32_t exchange;     /* + 1; 0: it is in none */
		uint64_t said_in_life; /* its last report: of which gaccd, in which term */
		uint64_t said_term;
	} member[CLUSTER_MAX];
	struct {
		struct commit commit;
		uint64_t counted[CLUSTER_WORDS];
	} log[SIM_MAX_WINDOWS];
	uint64_t digest[SIM_MAX_WINDOWS]; /* of the parameters after the window, as the first part has them; 0: none */
	uint64_t flushed_window;	  /* + 1: the newest one that an operator has closed */
	bool memory_lost;		  /* of a part, for good */
	char end_reason[256];
	uint64_t ended_by; /* term */
	int64_t ended_at;
	/* when the log grew last, and the longest time for which it did not once nothing hindered it */
	int64_t moved_at, longest_still;
	struct cluster_counts {
		uint64_t trainers, engines, gaccds, nodes, takeovers, cuts, flushes, exchanges, broken, lost;
	} n;
};

/* cluster.c: true: all invariants held and the job ended. parts 0: drawn by the seed. */
bool cluster_run(struct cluster *, uint64_t seed, uint32_t parts, char *why, size_t n_why);
struct item *cluster_item(struct cluster *, int64_t delay, enum item_kind);
/* Whose part it is, or whose whole. */
static inline struct cluster *cluster_of(struct sim *s)
{
	return (struct cluster *)(s->whole ? s->whole : s);
}

static inline uint32_t cluster_part(const struct sim *s)
{
	return s->part.number;
}

/* Where people want to read on. */
void cluster_say(const struct cluster *, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* cluster_world.c: lives and messages */
void cluster_start_gaccd(struct cluster *, uint32_t node);
void cluster_kill_gaccd(struct cluster *, uint32_t node);
void cluster_kill_node(struct cluster *, uint32_t node, bool memory_too);
void cluster_node_up(struct cluster *, uint32_t node);
void cluster_start_coordinator(struct cluster *, uint32_t node);
/* The one with the highest term, if it lives; or the one of this term. */
struct coordinator *cluster_newest(struct cluster *);
struct coordinator *cluster_find(struct cluster *, uint64_t term);
void cluster_on_report(struct cluster *, const struct item *);
void cluster_on_order(struct cluster *, const struct item *);

/* cluster_store.c */
struct item *cluster_write(struct coordinator *, enum event_type);
void cluster_on_store(struct cluster *, const struct item *);
/* All but `order`. */
void cluster_store_ports(struct coord_ports *);

/* cluster_exchange.c */
void cluster_on_exchange(struct cluster *, const struct item *);
void cluster_break_exchange(struct cluster *);

/* cluster_faults.c */
void cluster_fault(struct cluster *);
/* An engine has begun with an attempt: now and then something breaks soon after. */
void cluster_aim(struct cluster *);
void cluster_aimed(struct cluster *);
/* The operator lets a held job go on, when it is time. */
void cluster_resume(struct cluster *);

/* cluster_check.c */
void cluster_check(struct cluster *, struct sim *part); /* NULL: all */
void cluster_check_commit(struct cluster *, const struct commit *, const uint64_t *counted);
void cluster_check_end(struct cluster *, enum status, const char *reason);
void cluster_check_report(struct cluster *, const struct sim *part, const struct report *);
void cluster_check_entry(struct cluster *, const struct engine_command *go);
/* What a stuck run looks like. */
void cluster_dump(struct cluster *);

#endif
