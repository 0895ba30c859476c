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

#include "engine/apply.h"
#include "engine/comm.h"
#include "sim.h"

#define CLUSTER_MAX 16 /* nodes, and parts */
#define CLUSTER_RANKS (CLUSTER_MAX * SIM_MAX_RANKS)
#define CLUSTER_WORDS CLUSTER_RANKS /* max_micro_size is 64 at most */
#define CLUSTER_COORDS 16	    /* that run at once */
#define CLUSTER_COMMS 4096
#define CLUSTER_STALL_NS (1000 * MS) /* coll.stall */

/* Behind struct event's own types, which are those of one part. */
enum item_kind {
	ITEM_SIM,
	ITEM_CALL, /* of an engine, in its communicator: it comes back, or gets on */
	ITEM_REPORT,
	ITEM_ORDER,
	ITEM_BLOB,
	ITEM_BOARD,
	ITEM_STORE,
	ITEM_NODE_UP,
	ITEM_GACCD_UP,
	ITEM_TICK,
	ITEM_FAULT,
	ITEM_AIMED
};

/* An event of the cluster. */
struct item {
	struct event e; /* first: struct sim's code knows no more */
	enum item_kind kind;
	struct sim *of;	   /* its part */
	uint32_t node;	   /* ITEM_*_UP */
	uint64_t *counted; /* ITEM_STORE, EV_PERSISTED: of the whole job */
	void *bytes;	   /* ITEM_REPORT, _ORDER, _BLOB, _BOARD: the message */
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
	uint64_t comm, attempt; /* of its last orders */
	/* of each part, the newest report that it has got */
	struct cluster_said {
		uint64_t incarnation, number, life, comm, term;
	} said[CLUSTER_MAX];
};

/* What the engines of a communicator do together, one after the other: the sum of an attempt, parameters that the
 * others get from one of them, or the shares of a step. */
enum op_kind { OP_NONE, OP_SUM, OP_FILL, OP_GATHER };
struct cluster_op {
	enum op_kind kind;
	uint64_t window, attempt;   /* OP_SUM, OP_GATHER */
	uint32_t root;		    /* OP_FILL */
	uint32_t entered, finished; /* bits of parts */
	struct sim_sums sums[CLUSTER_MAX];
	uint64_t digest;	      /* of the root's parameters */
	uint64_t shares[CLUSTER_MAX]; /* OP_GATHER: as cluster_member.share */
};

/* A communicator as its engines see it together (coll/coll.h). One that dies, leaves or gives up breaks it for the
 * others: at once if all have joined, else some of them wait for it until their time is over. */
struct cluster_comm {
	uint64_t term, k;
	uint64_t life[CLUSTER_MAX]; /* of each engine, as the first that was told of it was told; 0: nobody was */
	uint32_t joining, gone;	    /* bits of parts: they know all addresses; they were in it */
	bool joined, broken;	    /* all have joined; no call succeeds any more */
	struct cluster_op op;	    /* the last one */
};

/* An engine's place in its communicator: the table of engine/comm.h, and what waits for it. */
struct cluster_engine {
	enum comm_state state;
	uint32_t comm; /* + 1: the newest that it has been in; 0: none */
	uint32_t n_told;
	uint64_t told[CLUSTER_MAX]; /* lives, as the board says */
	uint64_t call;		    /* counts what it waits for: events of an earlier one are dropped */
	int64_t join_ns, old_until; /* a member that was aborted has left by then */
	int64_t moved_ns;	    /* its call has got on */
	uint64_t pieces;
	struct go_sum sum;
	enum go_stage fill_stage;
	bool filled, filling_old; /* it is done; the call of the one before fills, and has not come back */
	struct engine_command fill;
	struct apply_at_hand apply; /* of a sharded job */
	struct apply_gathered gathered;
	bool serves;
};

/* Half 1-x of the accumulator, in the part's memory. */
struct cluster_half {
	bool whole;
	uint64_t window, term, attempt, digest;
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
	struct cluster_comm comm[CLUSTER_COMMS];
	uint32_t n_comms;
	uint64_t slow_window; /* the sum of which takes long; UINT64_MAX: none does */
	uint32_t givers;      /* bits of parts whose ranks give parameters */
	struct cluster_member {
		struct cluster_engine engine; /* dies with it */
		struct cluster_half half;
		uint64_t share; /* + 1: the window of the step that it was updated in last; in the part's memory */
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
		uint64_t trainers, engines, gaccds, nodes, takeovers, cuts, flushes, comms, joined, sums, fills,
			gathers, serves, broken, lost;
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
void cluster_on_blob(struct cluster *, const struct item *);
void cluster_on_board(struct cluster *, const struct item *);

/* cluster_store.c */
struct item *cluster_write(struct coordinator *, enum event_type);
void cluster_on_store(struct cluster *, const struct item *);
/* All but `order` and `board`. */
void cluster_store_ports(struct coord_ports *);

/* cluster_comm.c */
void cluster_on_call(struct cluster *, const struct item *);
static inline struct cluster_engine *cluster_engine(struct sim *s)
{
	return &cluster_of(s)->member[cluster_part(s)].engine;
}

/* How the communicator stands with this engine. */
enum go_comm cluster_standing(struct sim *, uint64_t term, uint64_t k);
/* cluster_apply.c: the COMMIT at hand ends; goes on if its communicator is connected; has all shares */
void cluster_apply_end(struct sim *, enum status, uint32_t suspects);
void cluster_apply_if_due(struct sim *);
void cluster_apply_finish(struct sim *);

/* cluster_exchange.c. A call of an engine comes back with an ITEM_CALL. */
uint32_t cluster_comm_open(struct cluster *, uint64_t term, uint64_t k); /* + 1 */
/* Its engine knows all addresses. */
void cluster_comm_join(struct cluster *, struct sim *part);
/* entered, finished: 0 */
void cluster_comm_enter(struct cluster *, struct sim *part, const struct cluster_op *);
void cluster_comm_leave(struct cluster *, struct sim *part);
/* In order of the parts, so that all find the same bits. */
struct sim_sums cluster_sum_up(const struct cluster *, const struct cluster_op *);
/* The network between engines breaks. */
void cluster_break_comm(struct cluster *);
/* The call of this part's engine comes back with this. */
void cluster_comm_back(struct cluster *, struct sim *part, enum status, int64_t delay);

/* cluster_faults.c */
void cluster_fault(struct cluster *);
/* Now and then something breaks soon after this; NULL: anything, else the engine of this part. */
void cluster_aim(struct cluster *, struct sim *part, int per_mille);
void cluster_aimed(struct cluster *, struct sim *part);
/* Ranks give parameters, until the job has some. */
void cluster_give_params(struct cluster *);
/* The operator lets a held job go on, when it is time. */
void cluster_resume(struct cluster *);

/* cluster_check.c */
void cluster_check(struct cluster *, struct sim *part); /* NULL: all */
void cluster_check_commit(struct cluster *, const struct commit *, const uint64_t *counted);
void cluster_check_end(struct cluster *, enum status, const char *reason);
void cluster_check_report(struct cluster *, const struct sim *part, const struct report *);
void cluster_check_entry(struct cluster *, const struct engine_command *go);
/* The engine of this part is told, or says, that this is the other's life; or begins something with all of them. */
void cluster_check_life(struct cluster *, struct cluster_comm *, uint32_t part, uint64_t life);
void cluster_check_order(struct coordinator *, const struct order *);
void cluster_check_board(struct coordinator *, const struct part_board *);
/* A coordinator says that an attempt has failed, and why. */
void cluster_check_failure(const struct coordinator *, const char *why);
/* What a stuck run looks like. */
void cluster_dump(struct cluster *);

#endif
